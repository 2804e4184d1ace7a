"""Options of a serving process, and their changes while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal


class BufferPolicy(StrEnum):
    """The policy for a live client whose cursor is more than max_size behind."""

    DROP_DISCONNECT = "drop_disconnect"
    SLOW_DOWN = "slow_down"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS for the server: paths of PEM files."""

    cert: Path
    key: Path
    #: The CA that must have signed the clients' certificates; None: they need none.
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Address for the Connect protocol; all other options are gRPC's."""

    host: str = "127.0.0.1"
    port: int = 4003


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """The gRPC listener, whose port several processes may share (SO_REUSEPORT)."""

    host: str = "127.0.0.1"
    port: int = 4002
    tls: TlsFiles | None = None
    tokens_file: Path | None = None
    #: Longest stay of clients after GoAway.
    drain_grace_s: float = 10.0
    #: Longest wait of a client that is ahead of this server.
    behind_wait_s: float = 10.0
    #: Longest time for which a client that isn't live yet may take no message.
    stall_timeout_s: float = 300.0
    #: Longest time in all for which a client may keep journal entries from being pruned.
    pin_limit_s: float = 3600.0
    #: The directory for snapshots that are spooled for slow readers.
    spool_path: Path | None = None
    #: Most bytes that this process may spool there.
    spool_max_bytes: int = 32 * 10**9
    connect: ConnectOptions | None = None
    #: The token of servers that share the slot, as `call.peer_token` made it.
    peer_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The location of an archive: below a directory (`path`), or below a prefix of a bucket."""

    key_prefix: str
    #: The formats to read: the first one that an artifact has.
    formats: tuple[str, ...] = ("jsonl", "jsonl.zst", "protobuf", "protobuf.zst")
    path: Path | None = None
    bucket: str | None = None
    prefix: str = ""
    region: str | None = None
    endpoint: str | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    #: A profile of the AWS configuration files.
    profile: str | None = None
    #: The role that is assumed with the profile, or with the environment's credentials.
    role_arn: str | None = None
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class ServingTableOptions:
    """The serving options of one table."""

    #: In transactions.
    buffer_max_size: int = 50_000
    buffer_policy: BufferPolicy = BufferPolicy.DROP_DISCONNECT
    heartbeat_interval_s: float = 10.0
    #: Directory of the table's periodic snapshots, which the main process keeps.
    snapshot_path: Path | None = None
    #: The archive that is read for clients whose position the journal no longer has.
    archive: ArchiveOptions | None = None


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """All options of a serving process."""

    listener: ListenerOptions = field(default_factory=ListenerOptions)
    #: By "schema.name".
    tables: Mapping[str, ServingTableOptions] = field(default_factory=dict)


class ServingOptionChanges:
    """A queue of options for a serving process, each with a callback for when they apply.

    Options that are put before the process serves apply once it does.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[ServingOptions, Callable[[], None]]] = asyncio.Queue()

    def put(self, options: ServingOptions, done: Callable[[], None]) -> None:
        """Serve with these from now on; ``done`` is called once streams of other tables ended."""
        self._queue.put_nowait((options, done))

    async def follow(self, change: Callable[[ServingOptions], Awaitable[None]]) -> None:
        """Give the options to ``change``, one after the other; never returns."""
        while True:
            options, done = await self._queue.get()
            await change(options)
            done()
