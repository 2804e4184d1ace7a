"""The path of a relay to PostgreSQL: options, servers on the way, status, and errors.

Each server answers with itself and with the path that it knows. So in a loop a server finds its own
id after as many calls as the loop has servers, even if none of them has a table yet. A path ends at
the server's own id, or the path of a loop would grow for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path as FilePath
from typing import NamedTuple

from laredo_fanout.client.errors import BadEndpoint, StreamError
from laredo_fanout.client.stream.endpoint import Endpoint, Tls
from laredo_fanout.client.stream.grpc_transport import replication_status
from laredo_fanout.client.stream.stream import split_table
from laredo_fanout.client.stream.translate import RELAY_CAPABILITY
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.source_options import CommitIntervals
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.errors import ModelError

# Errors that keep a relay from following its upstream.
#
# SourceError                    (postgres/connections.py)
# ├── UpstreamUnavailable        can't connect, or the call was refused: tried again
# ├── UpstreamTooOld             it doesn't know relays
# └── RelayLoop                  this server is among those that the upstream follows


class UpstreamUnavailable(SourceError):
    """The upstream can't be connected to, or refuses the call; retried with growing pauses."""


class UpstreamTooOld(SourceError):
    """The upstream doesn't know relays: it is of an earlier version, or another program."""

    def __init__(self, server: str) -> None:
        super().__init__(
            f"the server {server} doesn't know relays (capability relay.v1): run this version of"
            " laredo-fanout there"
        )


class RelayLoop(SourceError):
    """The upstream follows this server: neither would ever get a change."""


class BatchAbandoned(Exception):
    """The uncommitted batch was given up: all streams restart from the store's position."""


class HistoryMoved(Exception):
    """The upstream follows another history than this store."""


@dataclass(frozen=True)
class RelayOptions:
    """Another laredo-fanout, and how it is followed. Times are in seconds."""

    #: ``host:port``.
    server: str
    client_id: str
    tls: Tls | None = None
    token: str | None = field(default=None, repr=False)
    #: A file with the token alone, which is read for each connection.
    token_file: FilePath | None = None
    #: Interval at which the path to PostgreSQL is asked for.
    path_interval: float = 5.0
    commits: CommitIntervals = field(default_factory=CommitIntervals)
    #: Name of the source in the configuration, for the keys in errors.
    source_name: str = "NAME"
    #: True if it is a peer that shares the slot, whose standby this server is.
    standby: bool = False

    def endpoint(self) -> Endpoint:
        """Address of the upstream, with the token as it is now.

        :raises UpstreamUnavailable: if the token's file can't be used.
        """
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UpstreamUnavailable(
                    f"token_file {self.token_file} can't be read: {error}"
                ) from error
        if token is not None and not (token and token.isascii() and token.isprintable()):
            given = "token" if self.token_file is None else f"token_file {self.token_file}"
            raise UpstreamUnavailable(f"{given} has no token; write one line of printable ASCII")
        try:
            return Endpoint(self.server, self.tls, token)
        except BadEndpoint as wrong:
            raise UpstreamUnavailable(str(wrong)) from wrong


# Advice for the configuration when no TLS connection to the upstream can be made.
#
# gRPC reports its TLS library's error, which names no key of the configuration.

_CLOSED = ("Socket closed", "Connection reset", "Broken pipe")
"""Errors of a connection that the upstream closes without a reason."""


def with_cure(error: str, options: RelayOptions) -> str:
    """The error, followed by the cure if it is about TLS."""
    found = _cure(error, options)
    return f"{error}; {found}" if found else error


def _cure(error: str, options: RelayOptions) -> str:
    tls = options.tls
    keys = "standby.tls" if options.standby else f"sources.{options.source_name}.tls"
    closed = any(text in error for text in _CLOSED)
    if tls is None:
        return f"if {options.server} speaks TLS, give {keys}" if closed else ""
    signers = "the system's CAs have" if tls.ca is None else f"{tls.ca} has"
    cures = {
        "CERTIFICATE_VERIFY_FAILED": (
            f"{signers} not signed the certificate of {options.server}: let {keys}.ca be the file"
            " of the CA that did"
        ),
        "Hostname Verification": (
            f"the certificate of {options.server} is for another name: give that as"
            f" {keys}.server_name"
        ),
        "WRONG_VERSION_NUMBER": f"{options.server} doesn't speak TLS: remove {keys}, or correct"
        " the port",
        "security handshaker": f"a file can't be used: {keys}.key must be the key of {keys}.cert,"
        " both as PEM",
    }
    for text, cure in cures.items():
        if text in error:
            return cure
    if closed:
        return (
            f"if {options.server} asks for a client's certificate, give one that its"
            f" fanout.grpc.tls.client_ca has signed, as {keys}.cert and {keys}.key"
        )
    return ""


_MOST_HOPS = 16
_LONGEST = 256
_ANSWER_S = 10.0
_LONGEST_DELAY_US = 10**15


class Hop(NamedTuple):
    """A server on the way from PostgreSQL to this one."""

    server_id: str
    #: Its address for the server after it.
    address: str
    position: int
    #: Time from the newest transaction's commit until it could be read there; None: there was none.
    delay_s: float | None


class Path(NamedTuple):
    """The servers from the upstream to the one that follows PostgreSQL."""

    hops: tuple[Hop, ...]
    #: Duration of the call.
    round_trip_s: float

    def to_bytes(self) -> bytes:
        """The path as the store keeps it, and as serving processes send it."""
        answer = wire.GetReplicationStatusResponse()
        for hop in self.hops:
            answer.path.add(
                server_id=hop.server_id,
                address=hop.address,
                source_position=position_.text(hop.position),
                delay_us=0 if hop.delay_s is None else int(hop.delay_s * 1e6),
            )
        return answer.SerializeToString()


async def ask(options: RelayOptions, table: str, server_id: str) -> Path:
    """Ask the upstream for its path, ended at ``server_id`` if that is in it.

    :raises UpstreamUnavailable: if it doesn't answer, or refuses the call.
    :raises UpstreamTooOld: if it doesn't know relays.
    """
    schema, name = split_table(table)
    request = wire.GetReplicationStatusRequest(
        schema=schema, table=name, capabilities=[RELAY_CAPABILITY]
    )
    begun = time.monotonic()
    try:
        answer = await replication_status(options.endpoint(), request, _ANSWER_S)
    except StreamError as refused:
        raise UpstreamUnavailable(with_cure(str(refused), options)) from refused
    if not answer.path:
        raise UpstreamTooOld(options.server)
    return Path(_hops(answer.path, options.server, server_id), time.monotonic() - begun)


def check(path: Path, options: RelayOptions, server_id: str) -> None:
    """Refuse a loop.

    :raises RelayLoop: if this server is in the path.
    """
    ids = [hop.server_id for hop in path.hops]
    if server_id and server_id in ids:
        way = " -> ".join(["this server", *(hop.address for hop in path.hops)])
        raise RelayLoop(
            f"{options.server} follows this server: {way}. Have one of them follow PostgreSQL; if"
            " none of them should follow this one, its state.path is a copy of another server's:"
            " empty it"
        )
    if len(ids) >= _MOST_HOPS:
        raise RelayLoop(
            f"there are {_MOST_HOPS} servers or more between PostgreSQL and this one: follow one"
            " that is nearer"
        )


def _hops(sent: Iterable[wire.ServerHop], server: str, server_id: str) -> tuple[Hop, ...]:
    hops = []
    for number, each in enumerate(islice(sent, _MOST_HOPS)):
        address = each.address if number else server
        try:
            position = position_.parse(each.source_position)
        except ModelError as wrong:
            raise UpstreamUnavailable(f"{server} sent a path with {wrong}") from wrong
        delay = min(each.delay_us, _LONGEST_DELAY_US) / 1e6 if each.delay_us > 0 else None
        hops.append(Hop(each.server_id[:_LONGEST], address[:_LONGEST], position, delay))
        if each.server_id == server_id:
            break
    return tuple(hops)


@dataclass
class RelayCounters:
    """Counters over all sessions of a relay; only its thread adds to them."""

    #: Notices of the upstream that it is shutting down, one for each table's stream.
    goaways: int = 0
    #: Snapshots that the upstream sent, by table.
    snapshots: dict[str, int] = field(default_factory=dict)

    def count_snapshot(self, table: str) -> None:
        """Count a snapshot of this table."""
        self.snapshots[table] = self.snapshots.get(table, 0) + 1


@dataclass(frozen=True)
class RelayStatus:
    """The relay's part of /status and /metrics."""

    #: This server, then those between it and PostgreSQL, as they were last asked for.
    path: tuple[Hop, ...]
    #: Notices of the upstream that it is shutting down.
    goaways: int
    #: Snapshots that the upstream sent, by table.
    snapshots: Mapping[str, int]
