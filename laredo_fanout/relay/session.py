"""A session of a relay: every table's stream, and the commits of what they bring.

All run on one event loop, in the thread that alone writes the store. A commit takes what every
table has brought so far; while a transaction of a table is written in part, the others wait before
they begin another one, so that it comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laredo_fanout.relay import history, path
from laredo_fanout.relay.errors import HistoryMoved, UpstreamUnavailable
from laredo_fanout.relay.received_table import ReceivedTable
from laredo_fanout.relay.table_stream import TableStream
from laredo_fanout.store.table import Status
from laredo_fanout.tables.write_batch import OnCommit, WriteBatch

if TYPE_CHECKING:
    from laredo_fanout.client.events import Handshake
    from laredo_fanout.relay.options import RelayOptions
    from laredo_fanout.relay.path import Path
    from laredo_fanout.relay.status import RelayCounters
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.meta import SourceIdentity
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.writer import Store
    from laredo_fanout.tables.status import Counters

_SHARE = 9
"""Between two commits so many times what one takes, so that a tenth goes into them while changes
never stop."""
_LONGEST_PAUSE = 1.0
_RECLAIM_STEP_S, _RECLAIM_CHECK_S = 0.05, 1.0


class RelaySession:
    """Follows the upstream until it is cancelled, or something can't go on without beginning again.

    ``run`` leaves nothing half written: what isn't committed when it ends is forgotten.
    """

    def __init__(
        self,
        options: RelayOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        *,
        on_commit: OnCommit,
        counters: Counters,
        relay_counters: RelayCounters,
        found_path: Callable[[Path], None],
    ) -> None:
        self._options = options
        self._tables = tables
        self._store = store
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
                ),
                store,
                counters,
                relay_counters,
                turn=self._turn,
                wrote=self._dirty_now,
                check_history=self._check_history,
            )
            for table in tables
        }
        self._dirty = asyncio.Event()
        self._committed = asyncio.Event()
        self._commit_waits = False
        self._committed_at = self._wrote_at = 0.0
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
            async with asyncio.TaskGroup() as tasks:
                for stream in self.streams.values():
                    tasks.create_task(stream.run())
                tasks.create_task(self._commit_as_it_comes())
                tasks.create_task(self._ask_path_again())
                tasks.create_task(self._reclaim_when_idle())
        except BaseExceptionGroup as several:
            # They end together; the first one says why.
            error: BaseException = several
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._batch.abandon(error if isinstance(error, Exception) else None)
            raise error from several
        except asyncio.CancelledError:
            self._commit_if_whole()
            raise
        finally:
            self._batch.abandon()

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
                # The tables' streams say so, and are opened again.
                continue
            self._found_path(found)
            self._batch.transaction.set_upstream_path(found.to_bytes())
            self._dirty_now()
            path.check(found, self._options, known)

    # ------------------------------------------------------------ the store

    def _records(self) -> dict[int, TableRecord]:
        """The tables' records, as far as they are written."""
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
        """Refuse a stream of another history than the store's, until that is taken over.

        :raises HistoryMoved: it is of another one.
        """
        known = self._store.source
        now = history.of_upstream(handshake, self._options.server, known)
        if now != known:
            self.moved_to = now
            raise HistoryMoved(str(now.history))

    async def _turn(self, writer: ReceivedTable) -> None:
        """Wait before a table begins another transaction, while a commit waits for others' ends."""
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

        At least one turn of the loop: other tables' events of the same moment go with it.
        """
        cost = self._batch.cost
        due = self._committed_at + min(_LONGEST_PAUSE, _SHARE * cost)
        pause = 0.0
        while pause >= 0:
            await asyncio.sleep(pause)
            pause = min(due, self._wrote_at + cost) - time.monotonic()

    async def _reclaim_when_idle(self) -> None:
        """Remove what truncated and compared tables left, a step at a time."""
        while True:
            removed = 0 if self._batch.is_open else self._store.reclaim()
            await asyncio.sleep(_RECLAIM_STEP_S if removed else _RECLAIM_CHECK_S)

    def _commit_if_whole(self) -> None:
        if self._batch.is_open and self._is_whole:
            self._commit()

    def _commit(self) -> None:
        if not self._batch.is_open:
            return
        shown = [stream.writer.record for stream in self.streams.values()]
        # The least that any table has: it holds for all of them.
        position = min((0 if each is None else each.position for each in shown), default=0)
        self._batch.commit(position, self._batch.transaction.time_us)
        self._committed_at = time.monotonic()
        self._committed.set()
        self._committed.clear()
