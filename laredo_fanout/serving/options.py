"""The options of a serving process: configuration, checked and with defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal


class BufferPolicy(StrEnum):
    """The policy for a live client whose cursor lies more than max_size behind."""

    DROP_DISCONNECT = "drop_disconnect"
    SLOW_DOWN = "slow_down"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; with `client_ca` a client must show a certificate that it signed."""

    cert: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Where to listen for the Connect protocol; all else is as for gRPC."""

    host: str = "127.0.0.1"
    port: int = 4003


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """Where and how to listen. Several processes may share the port (SO_REUSEPORT).

    `spool_path`: directory for snapshots spooled for slow readers, and `spool_max_bytes` how much
    this process may spool there; `drain_grace_s`: how long
    clients may stay after GoAway; `behind_wait_s`: how long a client that is ahead waits for this
    server; `stall_timeout_s`: how long a client that isn't live yet may take no message at all,
    and `pin_limit_s` how long in all it may keep journal entries from being pruned.
    """

    host: str = "127.0.0.1"
    port: int = 4002
    tls: TlsFiles | None = None
    tokens_file: Path | None = None
    drain_grace_s: float = 10.0
    behind_wait_s: float = 10.0
    stall_timeout_s: float = 300.0
    pin_limit_s: float = 3600.0
    spool_path: Path | None = None
    spool_max_bytes: int = 32 * 10**9
    connect: ConnectOptions | None = None


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Where a table's archive is: below a directory (`path`), or below a prefix of a bucket.

    `formats`: which to read, the first that an artifact is there in. `profile` is a named one of
    the AWS configuration files; `role_arn` is assumed with it, or with whoever the environment
    says.
    """

    key_prefix: str
    formats: tuple[str, ...] = ("jsonl", "protobuf")
    path: Path | None = None
    bucket: str | None = None
    prefix: str = ""
    region: str | None = None
    endpoint: str | None = None
    addressing: Literal["auto", "path", "virtual"] = "auto"
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class TableOptions:
    """One table's serving options, by "schema.name" in ServingOptions.

    `buffer_max_size` counts transactions; `snapshot_path` is where the ingest process keeps the
    table's periodic snapshots; `archive` is read for clients behind the journal.
    """

    buffer_max_size: int = 50_000
    buffer_policy: BufferPolicy = BufferPolicy.DROP_DISCONNECT
    heartbeat_interval_s: float = 10.0
    snapshot_path: Path | None = None
    archive: ArchiveOptions | None = None


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """All options of a serving process."""

    listener: ListenerOptions = field(default_factory=ListenerOptions)
    tables: Mapping[str, TableOptions] = field(default_factory=dict)
