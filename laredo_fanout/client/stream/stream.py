"""A stream: one attempt at the Sync call, from the handshake to its end."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from laredo_fanout.client.errors import BadTableName, of_status
from laredo_fanout.client.events import Event
from laredo_fanout.client.filters import Filter
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.translate import BATCH_CAPABILITY, BOUNDARY_CAPABILITY, Translator
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire import replication_pb2_grpc
from laredo_model import position as position_
from laredo_model.history import History
from laredo_model.position import Position


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The request of one stream: the table, where to resume, and the form of what is sent.

    With neither ``position`` nor ``sequence`` the stream starts with a snapshot.
    """

    #: schema.table.
    table: str
    client_id: str
    #: Resume after this position: the last whole transaction seen.
    position: Position | None = None
    #: The history of ``position``.
    history: History | None = None
    #: Or else resume after this journal entry.
    sequence: int | None = None
    filters: tuple[Filter, ...] = ()
    #: Whether changes carry the old rows too.
    want_old: bool = False
    #: Whether many rows may travel in one message; False asks for the base wire form.
    batches: bool = True
    #: Whether the server sends the table's verified position, and checks the catalog sooner for it;
    #: only with ``batches``.
    boundaries: bool = False

    def request(self) -> wire.SyncRequest:
        """:raises BadTableName: if ``table`` isn't schema.table."""
        schema, name = split_table(self.table)
        return wire.SyncRequest(
            schema=schema,
            table=name,
            client_id=self.client_id,
            last_known_sequence=self.sequence or 0,
            last_known_source_position=(
                "" if self.position is None else position_.text(self.position)
            ),
            history="" if self.history is None else str(self.history),
            filters=[condition.to_wire() for condition in self.filters],
            capabilities=self._capabilities(),
            want_old=self.want_old,
        )

    def _capabilities(self) -> list[str]:
        if not self.batches:
            return []
        return [BATCH_CAPABILITY, BOUNDARY_CAPABILITY] if self.boundaries else [BATCH_CAPABILITY]


def split_table(table: str) -> tuple[str, str]:
    """Schema and name of ``schema.table``.

    :raises BadTableName: if there is no dot, or nothing on one side of the first.
    """
    schema, dot, name = table.partition(".")
    if not (schema and dot and name):
        raise BadTableName(table)
    return schema, name


@asynccontextmanager
async def open_stream(
    endpoint: Endpoint, options: SyncOptions
) -> AsyncIterator[AsyncIterator[Event]]:
    """``async with open_stream(...) as events: async for event in events``.

    Messages that aren't taken stay with the server (HTTP/2 flow control), so a
    slow consumer needs no memory here. Leaving the block ends the stream.

    :raises BadEndpoint: if the TLS files can't be used.
    :raises StreamError: when the stream ends, with the kind that the server's
        status stands for; a stream that the server ends normally just ends.
    """
    request = options.request()
    channel = endpoint.channel()
    try:
        stub = replication_pb2_grpc.LaredoReplicationServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Sync(request, metadata=endpoint.metadata())
        events = _events(
            endpoint.server, call, Translator(endpoint.server, want_old=options.want_old)
        )
        try:
            yield events
        finally:
            call.cancel()
            await events.aclose()
    finally:
        await channel.close(None)


async def _events(
    server: str,
    call: "grpc.aio.UnaryStreamCall[wire.SyncRequest, wire.SyncResponse]",
    translator: Translator,
) -> AsyncGenerator[Event, None]:
    try:
        async for message in call:
            for event in translator.events(message):
                yield event
    except grpc.aio.AioRpcError as ended:
        raise of_status(server, ended.code(), ended.details()) from ended
