"""A stream: one attempt at the Sync call, from the handshake to its end."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from laredo_fanout.client.errors import BadTableName
from laredo_fanout.client.events import Event
from laredo_fanout.client.filters import Filter
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.translate import (
    BATCH_CAPABILITY,
    BOUNDARY_CAPABILITY,
    RELAY_CAPABILITY,
    Translator,
)
from laredo_fanout.client.stream.transport.opening import transport_to
from laredo_fanout.client.stream.transport.transport import Transport
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.position import History, Position


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
    #: Whether the handshake names the histories that the server's goes on from; only with
    #: ``batches``.
    relay: bool = False

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
        wanted = {BOUNDARY_CAPABILITY: self.boundaries, RELAY_CAPABILITY: self.relay}
        return [BATCH_CAPABILITY, *(name for name, asked in wanted.items() if asked)]


def split_table(table: str) -> tuple[str, str]:
    """Schema and name of ``schema.table``.

    :raises BadTableName: if there is no dot, or nothing on one side of the first.
    """
    if not isinstance(table, str):
        raise BadTableName(table)
    schema, dot, name = table.partition(".")
    if not (schema and dot and name):
        raise BadTableName(table)
    return schema, name


@asynccontextmanager
async def open_stream(
    endpoint: Endpoint, options: SyncOptions, *, transport: Transport | None = None
) -> AsyncIterator[AsyncIterator[Event]]:
    """``async with open_stream(...) as events: async for event in events``.

    Messages that aren't taken stay with the server (flow control of HTTP/2 or TCP), so a slow
    consumer needs no memory here. Leaving the block ends the stream. ``transport``: one that other
    streams use too; None: one of its own, as the endpoint names it.

    :raises BadEndpoint: if the TLS files can't be used. :raises StreamError: when the stream ends,
    with the kind of the server's status; a stream that the server ends normally just ends.
    """
    request = options.request()
    translator = Translator(endpoint.server, want_old=options.want_old)
    async with (
        (transport or transport_to(endpoint)).sync(request) as messages,
        aclosing(_events(messages, translator)) as events,
    ):
        yield events


async def _events(
    messages: AsyncIterator[wire.SyncResponse], translator: Translator
) -> AsyncGenerator[Event, None]:
    share = LoopShare.of_running_loop()
    async for message in messages:
        share.note_work()
        for event in translator.events(message):
            await share.pause_if_used()
            if event is not None:
                yield event
        await share.pause_if_used()
