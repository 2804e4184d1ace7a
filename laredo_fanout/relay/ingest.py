"""A relay's ingest: one session of the upstream's streams after another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.batch.status import CommitInfo, Counters, IngestStatus, ReplicatedTableStatus
from laredo_fanout.errors import RecopyRefused
from laredo_fanout.ingest.change_source import PendingSourceChange
from laredo_fanout.postgres.connections import SourceError, SourceUnavailable
from laredo_fanout.relay import received_table
from laredo_fanout.relay.path import BatchAbandoned, HistoryMoved, Hop, RelayCounters, RelayStatus
from laredo_fanout.relay.session import RelaySession
from laredo_fanout.store import reader
from laredo_fanout.store.errors import Damage, RowDamaged
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.batch.write_batch import OnCommit
    from laredo_fanout.relay.path import Path, RelayOptions
    from laredo_fanout.relay.session import TableStream
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_RETRY = Backoff(initial=0.1, maximum=5.0)
_LOG_AGAIN_S = 60.0


class RelayIngest:
    """Run it in a thread of its own; it is the only one that writes the store meanwhile.

    ``on_commit`` is called in that thread after each durable commit, then ``prune``.
    """

    def __init__(
        self,
        options: RelayOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        on_commit: OnCommit,
        prune: Callable[[], None] = lambda: None,
        *,
        change: PendingSourceChange[RelayOptions] | None = None,
    ) -> None:
        self.options = options
        """The upstream, as it is followed."""
        self._tables = tuple(tables)
        self._change: PendingSourceChange[RelayOptions] = change or PendingSourceChange()
        self._store = store
        self._on_commit = on_commit
        self._prune = prune
        self._counters = Counters(last_recopies=dict(store.last_recopies))
        self._relay_counters = RelayCounters()
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: asyncio.Task[None] | None = None
        self._session: RelaySession | None = None
        self._error: SourceError | None = None
        self._logged_at = 0.0
        self._newest_us = store.time_us
        self.path: Path | None = None
        """The servers between PostgreSQL and this one, as they were last asked for."""
        self.delay_s: float | None = None
        """Seconds from the newest transaction's commit until it was durable here."""

    def run(self) -> None:
        """Follow the upstream until :meth:`stop`.

        :raises StoreError: if the store can't be written.
        """
        asyncio.run(self._run())

    def stop(self) -> None:
        """Have :meth:`run` commit what is whole and return; from any thread."""
        self._stopping.set()
        self._end_session()

    def change(self, options: RelayOptions, tables: Sequence[SourceTableOptions]) -> Future[None]:
        """Follow these tables, with these options, from now on; from any thread.

        Every table's stream is opened again, and resumes where the store is.
        """
        taken = self._change.put(options, tables)
        self._end_session()
        return taken

    reads_split_backlog = False

    def _end_session(self) -> None:
        loop, running = self._loop, self._running
        if loop is not None and running is not None:
            try:
                loop.call_soon_threadsafe(running.cancel)
            except RuntimeError:
                return  # it has ended already

    def check_catalog_soon(self) -> None:
        """Do nothing: the upstream checks the catalog for what it sends here."""

    def recopy(self, table: str) -> Future[None]:
        """Have ``table`` sent as a snapshot and compared with what is here; from any thread.

        The future is done once :meth:`status` shows it, or fails with RecopyRefused.

        :raises SourceUnavailable: while the upstream isn't followed.
        :raises KeyError: if the source has no such table.
        """
        if all(each.qualified != table for each in self._tables):
            raise KeyError(table)
        session, loop = self._session, self._loop
        stream = None if session is None else session.streams.get(table)
        if loop is None or stream is None or not stream.connected:
            raise SourceUnavailable(
                f"table {table} can't be copied again: the upstream isn't followed just now"
                f" ({self._error or 'it is connecting'}); ask again when it is"
            )
        answer = Future[None]()

        def begin() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            if stream.writer.forgets or stream.writer.copy_rows is not None:
                answer.set_exception(
                    RecopyRefused(table, "a snapshot is on its way already", "wait for its end")
                )
                return
            stream.start_over()
            answer.set_result(None)

        loop.call_soon_threadsafe(begin)
        return answer

    def repair(self, found: Damage) -> None:
        """Have damage repaired that was found in the store; from any thread.

        While the upstream isn't followed, this has no effect: the next reader of the damage reports
        it again.
        """
        session, loop = self._session, self._loop
        if session is not None and loop is not None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(session.repair, found, self._counters)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        failures = 0
        while not self._stopping.is_set():
            change = self._change.take()
            if change is not None:
                self.options, self._tables = change.options, change.tables
            self._session = session = RelaySession(
                self.options,
                self._tables,
                self._store,
                on_commit=self._committed,
                prune=self._prune,
                counters=self._counters,
                relay_counters=self._relay_counters,
                found_path=self._found_path,
            )
            begun_at = self._store.position
            self._running = asyncio.create_task(session.run())
            if self._stopping.is_set() or self._change.waits:
                self._running.cancel()
            await asyncio.wait({self._running})
            if self._running.cancelled():
                continue
            error = self._running.exception()
            if self._store.position > begun_at:
                failures = 0
            failures = await self._after(error, session, failures)
        self._loop = None

    async def _after(
        self, error: BaseException | None, session: RelaySession, failures: int
    ) -> int:
        """Wait before the next session, if need be; returns how many failed in a row."""
        if isinstance(error, HistoryMoved) and session.moved_to is not None:
            store = self._store
            received_table.adopt(store, session.moved_to)
            # Wakes the serving processes.
            self._on_commit(CommitInfo(store.position, store.time_us, frozenset()))
            # One change of history is a failover; an upstream that changes it each time must wait.
            self._counters.reconnects += 1
            await self._wait(_RETRY.delay(failures) if failures else 0)
            return failures + 1
        if isinstance(error, RowDamaged):
            self._note_damage(error)
            return failures
        if isinstance(error, BatchAbandoned):
            _log.info("streams restarted: one ended within a transaction")
            await self._wait(_RETRY.delay(failures + 1))
            return failures + 1
        if not isinstance(error, SourceError):
            assert error is not None
            raise error
        failures = 1 if session.was_connected else failures + 1
        pause = _RETRY.delay(failures)
        self._failed(error, pause)
        await self._wait(pause)
        return failures

    async def _wait(self, pause: float) -> None:
        """Wait for the next session; :meth:`stop` and :meth:`change` end the pause."""
        self._running = asyncio.create_task(asyncio.sleep(pause))
        if self._stopping.is_set():
            self._running.cancel()
        await asyncio.wait({self._running})

    def _note_damage(self, error: RowDamaged) -> None:
        """Have the next session ask for a snapshot of the table, whose stored rows are damaged."""
        _log.error("stored rows damaged", table=error.table, where=str(error))
        self._counters.count_damage(error.table)
        with self._store.transaction() as transaction:
            for record in list(transaction.tables.values()):
                if record.qualified == error.table and record.live:
                    transaction.put_table(replace(record, damage=str(error)))

    def _failed(self, error: SourceError, pause: float) -> None:
        """Log the failure: at once if it is new, else once a minute."""
        self._counters.reconnects += 1
        known = self._error is not None and str(self._error) == str(error)
        self._error = error
        now = time.monotonic()
        if not known or now - self._logged_at > _LOG_AGAIN_S:
            self._logged_at = now
            _log.error(
                "upstream failed; retry scheduled",
                error=str(error),
                retry_in_s=round(pause, 1),
                attempts=self._counters.reconnects,
            )

    def _found_path(self, path: Path) -> None:
        self.path, self._error = path, None
        self._change.followed()

    def _committed(self, info: CommitInfo) -> None:
        if info.time_us > self._newest_us:
            self._newest_us = info.time_us
            self.delay_s = max(0.0, time.time() - info.time_us / 1e6)
        self._on_commit(info)

    # ------------------------------------------------------------ status

    def relay_status(self) -> RelayStatus:
        """The path to PostgreSQL, and the relay's own counters; from any thread."""
        here = Hop(self._store.server_id, "", self._store.position, self.delay_s)
        path, counters = self.path, self._relay_counters
        return RelayStatus(
            path=(here, *(() if path is None else path.hops)),
            goaways=counters.goaways,
            snapshots=dict(counters.snapshots),
        )

    @property
    def brought_to(self) -> int:
        """Upstream's position as its streams last reported it, committed or not."""
        streams = {} if self._session is None else self._session.streams
        return max((each.writer.upstream_position for each in streams.values()), default=0)

    def status(self) -> IngestStatus:
        """Current status; callable from any thread."""
        session, store = self._session, self._store
        streams = {} if session is None else session.streams
        connected = bool(streams) and all(stream.connected for stream in streams.values())
        reached = self.brought_to
        behind = store.time_us > 0 and (not connected or reached > store.position)
        error = None if self._error is None or connected else str(self._error)
        # The committed records: the open batch belongs to the relay's own thread.
        records = reader.current_of_each(store.tables.values())
        return IngestStatus(
            connected=connected,
            phase="streaming" if connected else "connecting",
            error=error or next((s.error for s in streams.values() if s.error), None),
            position=store.position,
            lag_bytes=max(0, reached - store.position) if store.position else 0,
            lag_seconds=max(0.0, time.time() - store.time_us / 1e6) if behind else 0.0,
            reconnects=self._counters.reconnects,
            changes={
                action.name.lower(): number for action, number in self._counters.changes.items()
            },
            tables={
                name: self._table(name, streams.get(name), records.get(name))
                for name in (table.qualified for table in self._tables)
            },
        )

    def _table(
        self, name: str, stream: TableStream | None, record: TableRecord | None
    ) -> ReplicatedTableStatus:
        counters = self._counters
        copying = None if stream is None else stream.writer.copy_rows
        shown = record is not None and record.shown
        phase = "waiting for the upstream" if record is None else str(record.status)
        if copying is not None:
            phase = f"snapshot, {copying[0]:,} of {copying[1]:,} rows"
        return ReplicatedTableStatus(
            phase=phase,
            error=None if stream is None or stream.connected else stream.error,
            copied_rows=counters.copied_rows.get(name, 0),
            estimated_rows=None if copying is None else copying[1],
            recopying=shown
            and (copying is not None or (stream is not None and stream.writer.forgets)),
            last_recopy=counters.last_recopies.get(name),
            recopied_rows=counters.recopied_rows.get(name, 0),
            damages=counters.damages.get(name, 0),
        )
