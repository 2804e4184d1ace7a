"""A stream of one table's events: one attempt at the Sync call, and the next after its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from types import TracebackType
from typing import Self

from laredo_fanout.client.errors import (
    BadTableName,
    GaveUp,
    ProtocolViolation,
    StreamBroken,
    StreamError,
)
from laredo_fanout.client.events import (
    Changes,
    Event,
    Filter,
    GoAway,
    Handshake,
    Heartbeat,
    Mode,
    SnapshotBegin,
    SnapshotEnd,
)
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Endpoint, Transport
from laredo_fanout.client.stream.grpc_transport import replication_status
from laredo_fanout.client.stream.servers import Servers, Turns, transport_to
from laredo_fanout.client.stream.translate import (
    BATCH_CAPABILITY,
    BOUNDARY_CAPABILITY,
    RELAY_CAPABILITY,
    STANDBY_CAPABILITY,
    Translator,
)
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.position import History, Position
from laredo_service.log import Log
from laredo_service.retry import Backoff
from laredo_service.table_pattern import TableName


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The request of one stream: the table, the position to resume from, and the wire form.

    With neither ``position`` nor ``sequence`` the stream starts with a snapshot.
    """

    #: schema.table.
    table: str
    client_id: str
    #: The position to resume from: the last whole transaction seen.
    position: Position | None = None
    #: The history of ``position``.
    history: History | None = None
    #: The journal entry to resume from, without a position.
    sequence: int | None = None
    filters: tuple[Filter, ...] = ()
    #: Whether changes carry the old rows too.
    want_old: bool = False
    #: Whether many rows may travel in one message; False asks for the base wire form.
    batches: bool = True
    #: Whether the server sends the table's verified position, and checks the catalog sooner for it;
    #: only with ``batches``.
    boundaries: bool = False
    #: Whether the handshake has the ancestors of the server's history; only with ``batches``.
    relay: bool = False
    #: Whether the server sends the state with which a standby takes over its slot; only with
    #: ``relay``.
    standby: bool = False

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
        wanted = {
            BOUNDARY_CAPABILITY: self.boundaries,
            RELAY_CAPABILITY: self.relay,
            STANDBY_CAPABILITY: self.standby,
        }
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
    consumer needs no memory here. Leaving the block ends the stream. If the endpoint has several
    servers, the first is asked. ``transport``: one that other streams use too; None: a new one.

    :raises BadEndpoint: if the TLS files can't be used.
    :raises StreamError: when the stream ends, unless the server ends it normally.
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


log = Log(__name__)

_RESTART_S = 60.0
"""Time after GoAway within which the server, or another one in its place, is expected."""
_RESTART_WAIT_S = 0.4
"""Longest pause between two attempts in that time."""


class Observer:
    """Callbacks about a subscription's streams, for your metrics; they must not raise or block."""

    def connected(self, handshake: Handshake) -> None:
        """Called when a stream began."""

    def disconnected(self, error: StreamError, delay: float) -> None:
        """Called when a stream broke, or an attempt failed; the next comes in ``delay`` seconds."""

    def going_away(self, event: GoAway) -> None:
        """Called when the server is shutting down and asks to reconnect."""


class Subscription:
    """``async with Subscription(endpoint, options) as events: async for event in events``.

    The events of :func:`~laredo_fanout.client.stream.stream.open_stream`, across reconnects. Each
    stream begins with a Handshake. An unfinished transaction or snapshot is then sent again from
    its start; a whole transaction never is. The position to resume from (:attr:`position`,
    :attr:`history`, :attr:`sequence`) moves only at the end of a transaction or a snapshot, after
    the consumer has asked for the next event.

    If the endpoint has several servers, the next stream comes from another one, see
    :class:`~laredo_fanout.client.stream.servers.Turns`; :attr:`server` is the one whose turn it is.

    One task iterates; cancel it, or leave the block, to end. Errors that another attempt can't
    cure are raised, see :mod:`laredo_fanout.client.errors`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: SyncOptions,
        *,
        backoff: Backoff | None = None,
        observer: Observer | None = None,
        servers: Servers | None = None,
    ) -> None:
        """``servers``: those of the endpoint, if other streams share their connections."""
        self.endpoint = endpoint
        self._turns = Turns(servers or Servers(endpoint))
        self._options = options
        self._backoff = backoff or Backoff()
        self._observer = observer or Observer()
        self._reached = _StreamPosition(options.position, options.history, options.sequence)
        self._events: AsyncGenerator[Event, None] | None = None
        self._starts_over = False
        self._rejected: ProtocolViolation | None = None
        self._rejections, self._rejected_at = 0, 0.0
        self._restarts_until = 0.0
        self._log = log.bind(table=options.table)

    @property
    def server(self) -> str:
        """The server that the stream comes from, or that is tried."""
        return self._turns.now.server

    @property
    def position(self) -> Position | None:
        """The last whole transaction, snapshot or heartbeat that was consumed."""
        return self._reached.position

    @property
    def history(self) -> History | None:
        """The history of :attr:`position`; None while no server has sent one."""
        return self._reached.history

    @property
    def sequence(self) -> int | None:
        """The last entry of the last whole transaction that was consumed."""
        return self._reached.sequence

    def start_over(self) -> None:
        """After the current event, leave the stream and ask for a snapshot in a new one."""
        self._starts_over = True

    def reject(self, what: str) -> None:
        """After the current event, leave the stream, which broke the contract by ``what``, and ask
        for a snapshot in a new one."""
        self._rejected = ProtocolViolation(self.server, what)
        # Each such stream begins well, so its first events don't prove that the server is cured.
        lately = monotonic() < self._rejected_at + _RESTART_S
        self._rejections, self._rejected_at = self._rejections * lately + 1, monotonic()

    async def __aenter__(self) -> Self:
        self._events = self._run()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._events is not None:
            await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        assert self._events is not None, "enter the subscription with `async with` first"
        return await anext(self._events)

    async def _run(self) -> AsyncGenerator[Event, None]:
        turns = self._turns
        while True:
            try:
                async with (
                    asyncio.timeout(turns.answer_limit) as limit,
                    aclosing(self._one_stream()) as events,
                ):
                    async for event in events:
                        limit.reschedule(None)
                        if not isinstance(event, Handshake):
                            if turns.rounds:
                                self._log.info(
                                    "connected again", server=self.server, attempts=turns.rounds
                                )
                            turns.served()
                        yield event
                self._log.info(
                    "reconnect started", server=self.server, position=self._reached.text()
                )
                delay = self._delay(1)
            except TimeoutError:
                delay = self._after(turns.too_slow())
            except StreamError as error:
                delay = self._after(error)
            await asyncio.sleep(delay)

    def _after(self, error: StreamError) -> float:
        turns, backoff = self._turns, self._backoff
        news = turns.is_news(error)
        ended = turns.pass_on(error)
        if ended and backoff.attempts is not None and turns.rounds >= backoff.attempts:
            raise GaveUp(str(turns.servers), turns.rounds, error) from error
        failures = turns.rounds if ended else 1
        if isinstance(error, ProtocolViolation):
            failures = max(failures, self._rejections)
        delay = self._delay(failures)
        self._observer.disconnected(error, delay)
        (self._log.warning if news else self._log.debug)(
            "disconnected",
            server=error.server,
            error=error.details,
            kind=type(error).__name__,
            attempt=turns.rounds + (not ended),
            retry_in_s=round(delay, 2),
            next_server=self.server,
            position=self._reached.text(),
        )
        return delay

    def _delay(self, failures: int) -> float:
        """The wait before the next attempt; short while the server is restarted."""
        backoff = self._backoff
        if monotonic() < self._restarts_until:
            backoff = replace(backoff, maximum=min(backoff.maximum, _RESTART_WAIT_S))
        return backoff.delay(failures)

    async def _one_stream(self) -> AsyncGenerator[Event, None]:
        """One stream's events; ends only when the server asked to go, else raises."""
        reached = self._reached
        options = replace(
            self._options,
            position=reached.position,
            history=reached.history,
            sequence=reached.sequence,
        )
        reached.restart()
        deadline: datetime | None = None
        leaving = False
        turns = self._turns
        transport = turns.servers.transport(turns.now)
        async with open_stream(turns.now, options, transport=transport) as events:
            async for sent in events:
                event = reached.unseen(sent) if isinstance(sent, Changes) else sent
                if event is None:
                    continue
                if isinstance(event, Handshake):
                    turns.check(event, resumes=options.position is not None)
                    self._observer.connected(event)
                elif isinstance(event, GoAway):
                    self._observer.going_away(event)
                    self._log.info("GoAway received", server=self.server, reason=event.reason)
                    leaving, deadline = True, event.deadline
                    self._restarts_until = monotonic() + _RESTART_S
                yield event
                if (rejected := self._rejected) is not None:
                    self._rejected = None
                    self._reached = _StreamPosition(None, None, None)
                    raise rejected
                if self._starts_over:
                    self._starts_over = False
                    self._reached = _StreamPosition(None, None, None)
                    return
                reached.consumed(event)
                if leaving and (reached.between_transactions or _passed(deadline)):
                    break
        if not leaving:
            raise StreamBroken(
                turns.now.server, "the server ended the stream without a reason (GoAway)"
            )
        turns.pass_on(None)


class _StreamPosition:
    """The position to resume from, and whether the stream is between transactions."""

    __slots__ = (
        "_in_snapshot",
        "_open",
        "_replayed_below",
        "_stream_history",
        "history",
        "position",
        "sequence",
    )

    def __init__(
        self, position: Position | None, history: History | None, sequence: int | None
    ) -> None:
        self.position = position
        self.history = history
        self.sequence = sequence
        self._stream_history = history
        self.restart()

    def restart(self) -> None:
        self._in_snapshot = False
        self._open = False
        self._replayed_below = 0

    @property
    def between_transactions(self) -> bool:
        return not (self._in_snapshot or self._open)

    def text(self) -> str | None:
        return None if self.position is None else position_.text(self.position)

    def unseen(self, changes: Changes) -> Changes | None:
        """The changes without transactions that were consumed, which a server may send again."""
        if self.position is None or not changes.positions:
            return changes
        if changes.positions[0] == 0:  # a server that sends no positions: by sequence
            seen = self.sequence or 0
            return None if changes.actions and changes.last_sequence <= seen else changes
        if changes.first_sequence < self._replayed_below:
            # In the base form all of an archive's diff but its end has the position before it.
            return changes
        return changes.beyond(self.position)

    def consumed(self, event: Event) -> None:
        if isinstance(event, Changes):
            self._consumed_changes(event)
        elif isinstance(event, Heartbeat):
            if self.between_transactions and event.position is not None:
                self.position = max(self.position or event.position, event.position)
        elif isinstance(event, SnapshotBegin):
            self._in_snapshot = True
            self._open = False
        elif isinstance(event, SnapshotEnd):
            self._in_snapshot = False
            self.position, self.sequence = event.position, event.sequence
            self.history = self._stream_history
        elif isinstance(event, Handshake):
            self._stream_history = event.history
            replays = event.mode is Mode.REPLAY_ARCHIVE
            self._replayed_below = event.oldest_sequence if replays else 0
            if not event.snapshot_follows:
                # The server counts the old position as one of its own history.
                self.history = event.history or self.history

    def _consumed_changes(self, changes: Changes) -> None:
        self._open = changes.open
        whole = len(changes.counts) - changes.open
        if not whole:
            return
        position = changes.positions[whole - 1]
        self.position = Position(position) if position else None
        done = sum(changes.counts[:whole])
        self.sequence = changes.sequence(done - 1) if done else changes.first_sequence - 1


def _passed(deadline: datetime | None) -> bool:
    return deadline is not None and datetime.now(UTC) >= deadline


_CAPABILITY = "tables.v1"
_ANSWER_S = 10.0


async def served_tables(endpoint: Endpoint) -> frozenset[TableName]:
    """Ask for the tables that the server serves now, and that the endpoint's token may read.

    If there are several servers, the first that answers decides.

    :raises StreamError: if none answers; InvalidRequest if the server is too old.
    """
    *others, last = endpoint.each()
    for each in others:
        with suppress(StreamError):
            return await _served_tables(each)
    return await _served_tables(last)


async def _served_tables(endpoint: Endpoint) -> frozenset[TableName]:
    request = wire.GetReplicationStatusRequest(capabilities=[_CAPABILITY])
    answer = await replication_status(endpoint, request, _ANSWER_S)
    try:
        return frozenset(TableName(*split_table(name)) for name in answer.tables)
    except BadTableName as wrong:
        raise ProtocolViolation(
            endpoint.server, f"in the list of its tables, {wrong}; is this a laredo-fanout?"
        ) from wrong
