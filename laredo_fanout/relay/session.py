"""A session of a relay: every table's stream, and the commits of their changes.

All run on one event loop, in the only thread that writes the store. A commit contains the changes
of all tables so far. While a commit waits for the end of one table's transaction, other tables
begin no new one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.batch.write_batch import OnCommit, WriteBatch
from laredo_fanout.client.errors import StreamBroken, StreamError
from laredo_fanout.client.events import GoAway, Handshake
from laredo_fanout.client.stream.servers import transport_to
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_fanout.relay import path, received_table
from laredo_fanout.relay.path import BatchAbandoned, HistoryMoved, UpstreamUnavailable, with_cure
from laredo_fanout.relay.peers import Peer, PeerNotHolder
from laredo_fanout.relay.received_table import ReceivedTable, StartOver
from laredo_fanout.store import reader
from laredo_fanout.store.errors import Damage
from laredo_fanout.store.table import Status
from laredo_model import position as position_
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.client.events import Event
    from laredo_fanout.client.stream.endpoint import Endpoint, Transport
    from laredo_fanout.relay.path import Path, RelayCounters, RelayOptions
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.environment import SourceIdentity
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_RETRY = Backoff(initial=0.1, maximum=5.0)
_LEAVING = Backoff(initial=0.1, maximum=0.1)


class TableStream:
    """Follows one table until it is cancelled. ``turn`` is awaited before each event, ``wrote``
    called after it; ``check_history`` is given each handshake."""

    def __init__(
        self,
        options: RelayOptions,
        writer: ReceivedTable,
        store: Store,
        counters: Counters,
        relay_counters: RelayCounters,
        *,
        turn: Callable[[ReceivedTable], Awaitable[None]],
        wrote: Callable[[], None],
        check_history: Callable[[Handshake], None],
        transport: Callable[[], tuple[Endpoint, Transport]],
    ) -> None:
        """``transport`` returns the connection to use, which others use too."""
        self.writer = writer
        self._transport = transport
        self._options = options
        self._store = store
        self._counters = counters
        self._relay_counters = relay_counters
        self._turn = turn
        self._wrote = wrote
        self._check_history = check_history
        self.connected = self.was_connected = False
        self.error: str | None = None

    async def run(self) -> None:
        """Follow the table; a stream that ends is opened again.

        :raises BatchAbandoned: if it ended within a transaction that is written in part.
        :raises HistoryMoved: from ``check_history``.
        :raises StoreError: if the store can't be written.
        """
        failures = 0
        while True:
            delay = _LEAVING.delay(1)
            try:
                async with aclosing(self._one_stream()) as events:
                    async for event in events:
                        if not isinstance(event, Handshake):
                            failures = 0
            except StartOver:
                self.writer.forgets = True
            except (StreamError, UpstreamUnavailable) as error:
                failures += 1
                delay = _RETRY.delay(failures)
                self._disconnected(error, delay, failures)
            finally:
                self.connected = False
            if self.writer.is_open:
                raise BatchAbandoned
            self.writer.drop_copy()
            self._wrote()
            await asyncio.sleep(delay)

    def start_over(self) -> None:
        """Have the next stream begin with a snapshot."""
        self.writer.forgets = True

    async def _one_stream(self) -> AsyncGenerator[Event, None]:
        """Take one stream's events; ends after GoAway, and raises at any other end."""
        writer = self.writer
        snapshot_asked = writer.forgets
        deadline: datetime | None = None
        leaving = False
        endpoint, transport = self._transport()
        async with open_stream(endpoint, self._request(), transport=transport) as events:
            async for event in events:
                if isinstance(event, Handshake):
                    self._check_history(event)
                    self.connected = self.was_connected = True
                    self.error = None
                elif isinstance(event, GoAway):
                    self._relay_counters.goaways += 1
                    leaving, deadline = True, event.deadline
                    _log.info(
                        "GoAway received",
                        table=writer.options.qualified,
                        reason=event.reason,
                    )
                await self._take(event)
                # Once the snapshot is here, another one may be asked for.
                snapshot_asked = snapshot_asked and writer.forgets
                yield event
                if leaving and (writer.between_transactions or _passed(deadline)):
                    return
                if writer.forgets and not snapshot_asked and writer.between_transactions:
                    return
        if not leaving:
            raise StreamBroken(
                self._options.server, "the server ended the stream without a reason (GoAway)"
            )

    async def _take(self, event: Event) -> None:
        await self._turn(self.writer)
        for _ in self.writer.take(event):
            self._wrote()
            # Other tables' changes are written and committed meanwhile.
            await asyncio.sleep(0)
            await self._turn(self.writer)
        self._wrote()

    def _request(self) -> SyncOptions:
        position, source = self.writer.position, self._store.source
        return SyncOptions(
            self.writer.options.qualified,
            self._options.client_id,
            position=None if position is None else position_.Position(position),
            history=None if position is None or source is None else source.history,
            boundaries=True,
            relay=True,
            standby=self._options.standby,
        )

    def _disconnected(self, error: Exception, delay: float, failures: int) -> None:
        self._counters.reconnects += 1
        text = with_cure(str(error), self._options)
        level = _log.debug if text == self.error else _log.warning
        self.error = text
        level(
            "table's upstream stream ended; retry scheduled",
            table=self.writer.options.qualified,
            error=text,
            attempt=failures,
            retry_in_s=round(delay, 2),
        )


def _passed(deadline: datetime | None) -> bool:
    return deadline is not None and datetime.now(UTC) >= deadline


_SHARE = 9
"""Ratio of the pause between two commits to a commit's duration: under load commits take a tenth of
the time."""
_LONGEST_PAUSE = 1.0
_RECLAIM_STEP_S, _RECLAIM_CHECK_S = 0.05, 1.0
_REPORT_S, _REPORT_AGAIN_S = 0.1, 1.0
_REPORT_PATIENCE_S = 30.0
_CONNECTIONS = 16
"""Most connections of a session: a serving process accepts a limited number. More than one, as
each is served by one process."""


class RelaySession:
    """Follows the upstream until it is cancelled, or an error requires another session.

    ``run`` leaves no transaction half written: uncommitted changes are dropped at its end.
    """

    def __init__(
        self,
        options: RelayOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        *,
        on_commit: OnCommit,
        prune: Callable[[], None],
        counters: Counters,
        relay_counters: RelayCounters,
        found_path: Callable[[Path], None],
    ) -> None:
        self._options = options
        self._tables = tables
        self._store = store
        self._prune = prune
        self._found_path = found_path
        self._batch = WriteBatch(store, on_commit, options.commits, counters)
        self.streams = {
            table.qualified: TableStream(
                options,
                ReceivedTable(
                    table,
                    self._batch,
                    counters,
                    self._records,
                    server=options.server,
                    count_snapshot=relay_counters.count_snapshot,
                    standby=options.standby,
                ),
                store,
                counters,
                relay_counters,
                turn=self._turn,
                wrote=self._dirty_now,
                check_history=self._check_history,
                transport=partial(self._transport, number % _CONNECTIONS),
            )
            for number, table in enumerate(tables)
        }
        self._transports: dict[int, tuple[Endpoint, Transport]] = {}
        self._dirty = asyncio.Event()
        self._committed = asyncio.Event()
        self._commit_waits = False
        self._committed_at = self._wrote_at = self._answered_at = 0.0
        self._follows = False
        self.moved_to: SourceIdentity | None = None
        """The history that this session ended for."""

    @property
    def was_connected(self) -> bool:
        """True if a table's stream was open."""
        return self.moved_to is not None or any(
            each.was_connected for each in self.streams.values()
        )

    async def run(self) -> None:
        """Follow every table.

        :raises SourceError: if the upstream isn't there, is too old, or follows this server.
        :raises HistoryMoved: if it follows another history; ``moved_to`` is that.
        :raises BatchAbandoned: if a stream ended within a transaction.
        :raises StoreError: if the store can't be written.
        """
        try:
            await self._ask_path()
            self._forget_leftovers()
            self._follows = True
            async with asyncio.TaskGroup() as tasks:
                for stream in self.streams.values():
                    tasks.create_task(stream.run())
                tasks.create_task(self._commit_as_it_comes())
                tasks.create_task(self._ask_path_again())
                tasks.create_task(self._reclaim_when_idle())
                if self._options.standby:
                    tasks.create_task(self._report())
        except BaseExceptionGroup as several:
            # They end together; the first error is the reason.
            error: BaseException = several
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._batch.abandon(error if isinstance(error, Exception) else None)
            raise error from several
        except asyncio.CancelledError:
            if self._is_whole:
                self._commit()
            raise
        finally:
            self._follows = False
            self._batch.abandon()

    def repair(self, found: Damage, counters: Counters) -> None:
        """Have damaged rows sent again, or drop the damaged part of a journal.

        Before and after :meth:`run` follows the tables nothing would commit or abandon a batch: it
        would block the store's next transaction.
        """
        if not self._follows:
            return
        record = self._records().get(found.table_id)
        if record is None or not record.shown:
            return
        if found.after is None and found.space != record.space:
            return  # the rows were replaced since they were read
        transaction = self._batch.transaction
        if found.after is not None:
            if not transaction.drop_damaged_journal(record.id, found.after):
                return
        elif not record.damage:
            transaction.put_table(replace(record, damage=found.why))
            _log.error("stored rows damaged", table=record.qualified, where=found.why)
            if (stream := self.streams.get(record.qualified)) is not None:
                stream.start_over()
        counters.count_damage(record.qualified)
        self._batch.touch(record.id)
        self._dirty_now()

    # ------------------------------------------------------------ the path

    async def _ask_path(self) -> None:
        known = self._store.server_id
        found = await path.ask(self._options, self._tables[0].qualified, known)
        with self._store.transaction() as transaction:
            transaction.set_upstream_path(found.to_bytes())
        self._found_path(found)
        path.check(found, self._options, known)

    async def _ask_path_again(self) -> None:
        known, table = self._store.server_id, self._tables[0].qualified
        while True:
            await asyncio.sleep(self._options.path_interval)
            try:
                found = await path.ask(self._options, table, known)
            except UpstreamUnavailable:
                # The tables' streams report it, and are opened again.
                continue
            self._found_path(found)
            self._batch.transaction.set_upstream_path(found.to_bytes())
            self._dirty_now()
            path.check(found, self._options, known)

    # ------------------------------------------------------------ the store

    def _records(self) -> dict[int, TableRecord]:
        """The tables' records, with the changes of the open batch."""
        return self._batch.transaction.tables if self._batch.is_open else self._store.tables

    def _forget_leftovers(self) -> None:
        """Forget tables that aren't configured any more, and snapshots that had not ended."""
        names = {table.qualified for table in self._tables}
        with self._store.transaction() as transaction:
            for record in list(transaction.tables.values()):
                if record.status is Status.COPYING or record.qualified not in names:
                    transaction.drop_table(record.id)
                elif record.live and not record.position:
                    transaction.set_table_position(record.id, transaction.position)

    def _check_history(self, handshake: Handshake) -> None:
        """:raises HistoryMoved: the stream has another history, then in ``moved_to``."""
        known = self._store.source
        now = received_table.of_upstream(handshake, self._options.server, known)
        if now != known:
            self.moved_to = now
            raise HistoryMoved(str(now.history))

    def _transport(self, number: int) -> tuple[Endpoint, Transport]:
        """One of the session's connections; another one once the token has changed.

        :raises UpstreamUnavailable: if the token's file can't be used.
        """
        endpoint, known = self._options.endpoint(), self._transports.get(number)
        if known is None or known[0] != endpoint:
            known = self._transports[number] = (endpoint, transport_to(endpoint))
        return known

    async def _turn(self, writer: ReceivedTable) -> None:
        """Wait before a table's next transaction while a commit waits for the end of another's."""
        while self._commit_waits and not writer.is_open:
            await self._committed.wait()

    def _dirty_now(self) -> None:
        if self._batch.is_open:
            self._wrote_at = time.monotonic()
            self._dirty.set()

    @property
    def _is_whole(self) -> bool:
        return not any(stream.writer.is_open for stream in self.streams.values())

    async def _commit_as_it_comes(self) -> None:
        while True:
            await self._dirty.wait()
            await self._pause()
            self._dirty.clear()
            self._commit_waits = not self._is_whole
            if not self._commit_waits:
                self._commit()

    async def _pause(self) -> None:
        """Wait until a commit is due, or nothing has come for as long as one takes.

        At least one turn of the loop, so that other tables' events of the same moment are included.
        """
        cost = self._batch.cost
        due = self._committed_at + min(_LONGEST_PAUSE, _SHARE * cost)
        pause = 0.0
        while pause >= 0:
            await asyncio.sleep(pause)
            pause = min(due, self._wrote_at + cost) - time.monotonic()

    async def _reclaim_when_idle(self) -> None:
        """Remove the old rows of truncated and compared tables, a step at a time."""
        while True:
            removed = 0 if self._batch.is_open else self._store.reclaim()
            await asyncio.sleep(_RECLAIM_STEP_S if removed else _RECLAIM_CHECK_S)

    async def _report(self) -> None:
        """Report each table's durable position to the holder.

        :raises UpstreamUnavailable: if it hasn't answered for ``_REPORT_PATIENCE_S``: each table's
            snapshot that is on its way begins anew in the next session.
        :raises PeerNotHolder: if it doesn't hold the slot any more.
        """
        self._answered_at = time.monotonic()
        while True:
            # Another connection after each failure: gRPC would make ever longer pauses.
            try:
                async with Peer(self._options) as holder:
                    await self._report_to(holder)
            except PeerNotHolder:
                raise
            except UpstreamUnavailable as silent:
                if time.monotonic() - self._answered_at > _REPORT_PATIENCE_S:
                    raise
                _log.warning("report to the holder not answered", reason=str(silent))
                await asyncio.sleep(_REPORT_AGAIN_S)

    async def _report_to(self, holder: Peer) -> None:
        reported: object = None
        reported_at = 0.0
        while True:
            durable = self._durable()
            now = time.monotonic()
            if durable != reported or now - reported_at >= _REPORT_AGAIN_S:
                role = await holder.role(self._store.server_id, durable)
                if not role.holder:
                    raise PeerNotHolder(f"{self._options.server} doesn't hold the slot")
                reported, reported_at = durable, now
                self._answered_at = time.monotonic()
                self._note_followed(durable, role.term)
            await asyncio.sleep(_REPORT_S)

    def _note_followed(self, durable: Mapping[str, object], term: int) -> None:
        """Note that all rows are the holder's, once every live table's stream has begun."""
        known = self._store.ownership
        live = {each.qualified for each in self._store.tables.values() if each.live}
        if known is None or not live or live != durable.keys():
            return
        now = known.followed_now(term)
        if now != known:
            self._batch.transaction.ownership = now
            self._dirty_now()

    def _durable(self) -> dict[str, tuple[int, int]]:
        """Each live table's incarnation at the holder, and its position."""
        incarnations = {name: stream.writer.incarnation for name, stream in self.streams.items()}
        return {
            record.qualified: (incarnations[record.qualified], record.position)
            for record in self._store.tables.values()
            if record.live and incarnations.get(record.qualified)
        }

    def _commit(self) -> None:
        if not self._batch.is_open:
            return
        current = reader.current_of_each(self._records().values())
        records = (current.get(name) for name in self.streams)
        shown = [each if each is not None and each.shown else None for each in records]
        if self._options.standby:
            # Tables that the holder still copies don't count.
            shown = [each for each in shown if each is not None and each.live]
        # The lowest position of any table is valid for all of them.
        position = min((0 if each is None else each.position for each in shown), default=0)
        self._batch.commit(position, self._batch.transaction.time_us)
        self._prune()
        self._committed_at = time.monotonic()
        self._committed.set()
        self._committed.clear()
