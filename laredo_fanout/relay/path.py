"""The path of a relay: the servers between PostgreSQL and it, by which it finds loops.

Each server answers with itself and with the path that it knows, so that a server's id comes round
to it within as many calls as a loop has servers, also where none of them has a table yet. What is
known ends at one's own id, else the path of a loop would grow for ever.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from laredo_fanout.client.errors import StreamError
from laredo_fanout.client.stream.stream import split_table
from laredo_fanout.client.stream.translate import RELAY_CAPABILITY
from laredo_fanout.client.stream.transport.grpc_transport import replication_status
from laredo_fanout.relay.errors import RelayLoop, UpstreamTooOld, UpstreamUnavailable
from laredo_fanout.relay.options import RelayOptions
from laredo_fanout.relay.tls_cure import with_cure
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.errors import ModelError

_MOST_HOPS = 16
_LONGEST = 256
_ANSWER_S = 10.0
_LONGEST_DELAY_US = 10**15


class Hop(NamedTuple):
    """A server on the way from PostgreSQL to this one."""

    server_id: str
    #: Where the server after it reaches it.
    address: str
    position: int
    #: How long after its commit the newest transaction could be read there; None: there was none.
    delay_s: float | None


class Path(NamedTuple):
    """The servers from the upstream to the one that follows PostgreSQL."""

    hops: tuple[Hop, ...]
    #: How long the call took (monotonic time from its beginning to its end).
    round_trip_s: float

    def to_bytes(self) -> bytes:
        """As the store keeps it, and the serving processes send it."""
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
