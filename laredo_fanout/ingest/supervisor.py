"""The ingest: one session of the replication stream after another, across broken connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import structlog

from laredo_fanout.batch.status import Counters, IngestStatus, ReplicatedTableStatus
from laredo_fanout.copy.recopy import RecopyAsked
from laredo_fanout.errors import SpoolFull
from laredo_fanout.ingest.change_source import PendingSourceChange
from laredo_fanout.ingest.session import IngestSession, StreamFaults
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import SlotLost, SourceError, SourceUnavailable, StreamFault
from laredo_fanout.slot import ownership
from laredo_fanout.slot import slot as slot_
from laredo_fanout.source_options import OnSlotLost
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.batch.write_batch import OnCommit
    from laredo_fanout.ingest.change_source import ChangeSource
    from laredo_fanout.pg_catalog.publication import TableDiscovery
    from laredo_fanout.slot.sharing import SlotSharing
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.store.errors import Damage
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_RETRY = Backoff(initial=0.1, maximum=15.0)
_SHARED_RETRY = Backoff(initial=0.1, maximum=1.0)
"""A standby that sees the slot free for longer takes it over."""
_FAULT_RETRY = Backoff(initial=0.1, maximum=60.0)
"""For a stream fault: PostgreSQL decodes everything before it in each attempt."""
_LOG_AGAIN_S = 60.0


class Ingest:
    """The ingest of one source. Run it in a thread of its own, which alone writes the store.

    ``on_commit`` is called in that thread after each durable commit, ``prune`` after the commit is
    confirmed.
    """

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        on_commit: OnCommit,
        prune: Callable[[], None] = lambda: None,
        *,
        change_source: ChangeSource | None = None,
        discovery: TableDiscovery | None = None,
        sharing: SlotSharing | None = None,
        change: PendingSourceChange[SourceOptions] | None = None,
    ) -> None:
        self._sharing = sharing
        self._options = options
        self._discovery = discovery
        self._change: PendingSourceChange[SourceOptions] = change or PendingSourceChange()
        self._change_source = change_source
        self._tables = tuple(tables)
        self._store = store
        self._on_commit = on_commit
        self._prune = prune
        self._stopping = threading.Event()
        self._streaming: IngestSession | None = None
        self._error: SourceError | None = None
        self._counters = Counters(last_recopies=dict(store.last_recopies))
        self._faults = StreamFaults(store, self._counters)
        self._logged_at = 0.0
        self._is_cut_off = False

    def run(self) -> None:
        """Follow the source until :meth:`stop`; a broken connection is replaced.

        :raises SlotLost: if changes are gone and ``on_slot_lost`` is fail.
        :raises SourceError: if another server reads the slot from now on.
        :raises SpoolFull: if a giant transaction has no room on the disk.
        :raises StoreError: if the store can't be written.
        """
        failures = 0
        while not self._stopping.is_set():
            streaming = None
            self._take_change()
            self._faults.begin()
            position = self._store.position
            try:
                self._streaming = streaming = IngestSession(
                    ownership.with_slot_name(self._options, self._store.source),
                    self._tables,
                    self._store,
                    on_commit=self._on_commit,
                    prune=self._prune,
                    counters=self._counters,
                    stopping=self._stopping,
                    change_source=self._change_source,
                    discovery=self._discovery,
                    faults=self._faults,
                    connected=self._change.followed,
                    sharing=self._sharing,
                )
                if self._change.waits:
                    streaming.make_way()
                streaming.run()
                self._error = None
                continue
            except SpoolFull as full:
                self._error = full
                raise
            except SourceError as failed:
                error = failed
            except psycopg.Error as failed:
                error = connections.refusal(failed, "follow the source")
            if self._stopping.is_set():
                return
            if self._sharing is not None and self._sharing.ends(error):
                raise error
            if isinstance(error, SlotLost) and self._options.on_slot_lost is OnSlotLost.FAIL:
                self._error = error
                raise error
            # A connection alone is no progress: the next one may end at the same place.
            if streaming is not None and streaming.was_connected:
                self._is_cut_off = False
                failures = 0 if self._store.position > position else failures
            failures += 1
            if isinstance(error, StreamFault):
                self._read_slot()
                error = self._faults.met(error, 0 if streaming is None else streaming.wal_end)
                pause = _FAULT_RETRY.delay(failures)
                self._failed(error, pause)
            else:
                pause = (_SHARED_RETRY if self._sharing else _RETRY).delay(failures)
                self._failed(error, pause)
                self._read_slot()
            self._stopping.wait(pause)

    def _take_change(self) -> None:
        """Follow other tables from here on, if that was requested.

        The segments of a split backlog were begun for the present tables, so it waits for their
        end.
        """
        if self._change_source is not None and self._store.catchup_plan is not None:
            return
        change = self._change.take()
        if change is not None:
            self._options, self._tables = change.options, change.tables
            # The status of the session that has ended isn't shown any more.
            self._streaming = None

    def _failed(self, error: SourceError, pause: float) -> None:
        """Log a new error at once, and the same error again once a minute."""
        self._counters.reconnects += 1
        known = self._error is not None and str(self._error) == str(error)
        self._error = error
        now = time.monotonic()
        if not known or now - self._logged_at > _LOG_AGAIN_S:
            self._logged_at = now
            _log.error(
                "stream failed; retry scheduled",
                error=str(error),
                retry_in_s=round(pause, 1),
                attempts=self._counters.reconnects,
            )

    def _read_slot(self) -> None:
        """Read the slot's state over another connection while no stream is connected.

        It needs no walsender, so it often works when the stream doesn't. If it fails, the stream's
        error, which was logged, has the reason.
        """
        known = self._store.source
        if known is None or not self._store.position:
            return
        watch = self._counters.slot
        try:
            options = ownership.with_slot_name(self._options, known)
            with (
                connections.connect(options, role="slot") as connection,
                connections.TimeLimit(connection, options.connect_timeout),
            ):
                watch.update(slot_.read(connection, options.slot_name))
                self._is_cut_off = False
        except (SourceError, psycopg.Error):
            self._is_cut_off = True
            watch.unknown()

    @property
    def is_cut_off(self) -> bool:
        """True if PostgreSQL couldn't be reached after the stream had ended; from any thread."""
        streaming = self._streaming
        return self._is_cut_off and not (streaming is not None and streaming.connected)

    def stop(self) -> None:
        """Make :meth:`run` commit and return; may be called from any thread."""
        self._stopping.set()
        if self._streaming is not None:
            self._streaming.stop()

    def change(self, options: SourceOptions, tables: Sequence[SourceTableOptions]) -> Future[None]:
        """Follow these tables, with these options, from the next session on.

        May be called from any thread. The present session ends between two commits, or at the end
        of a split backlog. The future is done when the next session has connected.
        """
        taken = self._change.put(options, tables)
        streaming = self._streaming
        if streaming is not None:
            streaming.make_way()
        return taken

    @property
    def reads_split_backlog(self) -> bool:
        """True while a split backlog is read, for whose end a change of tables waits."""
        return self._change_source is not None and self._store.catchup_plan is not None

    def check_catalog_soon(self) -> None:
        """Request the next possible catalog check; may be called from any thread.

        While the stream isn't followed it has no effect: callers that wait ask again.
        """
        streaming = self._streaming
        if streaming is not None and streaming.connected:
            streaming.check_catalog_soon()

    def recopy(self, table: str) -> Future[None]:
        """Request a re-copy of ``table`` while its readers go on; may be called from any thread.

        The future is done once the re-copy is durable, so that a restart continues it. It fails
        with RecopyRefused or SourceUnavailable.

        :raises SourceUnavailable: while the stream isn't followed.
        :raises KeyError: if the source has no such table.
        """
        if all(each.qualified != table for each in self._tables):
            raise KeyError(table)
        streaming = self._streaming
        if streaming is None or not streaming.connected:
            raise SourceUnavailable(
                f"table {table} can't be copied again: the server isn't connected to its source"
                f" ({self._error or 'it is connecting'}); ask again when it is"
            )
        asked = RecopyAsked(table, Future())
        streaming.recopy(asked)
        return asked.answer

    def repair(self, found: Damage) -> None:
        """Request the repair of damage in the store; may be called from any thread.

        While the stream isn't followed it has no effect: the next reader of the damaged place
        reports it again.
        """
        streaming = self._streaming
        if streaming is not None and streaming.connected:
            streaming.repair(found)

    @property
    def brought_to(self) -> int:
        """Position up to which the last session's stream had brought changes, committed or not."""
        return 0 if self._streaming is None else self._streaming.brought_to

    def status(self) -> IngestStatus:
        """Current status; may be called from any thread."""
        streaming, store = self._streaming, self._store
        connected = streaming is not None and streaming.connected
        watch = self._counters.slot
        slot = watch.slot
        wal_end = streaming.wal_end if streaming is not None else 0
        if not connected and slot is not None:
            wal_end = max(wal_end, slot.wal_position or 0)
        caught_up = connected and streaming is not None and not streaming.busy
        behind = not caught_up and store.time_us > 0
        fault = self._faults.current
        error = self._error
        if connected and streaming is not None:
            error = streaming.tables.trouble
        if fault is not None and (connected or error is None):
            error = StreamFault(fault.text)
        return IngestStatus(
            connected=connected,
            phase=streaming.phase if streaming is not None else "starting",
            error=None if error is None else str(error),
            stream_faults=dict(self._counters.stream_faults),
            stream_fault=fault,
            position=store.position,
            lag_bytes=max(0, wal_end - store.position) if wal_end else 0,
            lag_seconds=max(0.0, time.time() - store.time_us / 1e6) if behind else 0.0,
            slot=slot,
            slot_seen_at=watch.seen_at,
            slot_warnings=watch.warnings,
            slot_losses=self._counters.slot_losses,
            senders_ended=self._counters.senders_ended,
            strange_messages=self._counters.strange_messages,
            reconnects=self._counters.reconnects,
            recopies=self._counters.recopies,
            copied_again_at=dict(self._counters.copied_again_at),
            changes={
                action.name.lower(): number for action, number in self._counters.changes.items()
            },
            asked_recopies=dict(self._counters.asked_recopies),
            copy_connections=0 if streaming is None else streaming.tables.copier.connections,
            copy_bytes=0 if streaming is None else streaming.tables.copier.bytes_in_flight,
            tables={table.qualified: self._table(table.qualified) for table in self._tables},
        )

    def _table(self, name: str) -> ReplicatedTableStatus:
        streaming = self._streaming
        tracked = streaming.tables.tracked.tables.get(name) if streaming is not None else None
        copied = self._counters.copied_rows.get(name, 0)
        last_recopy = self._counters.last_recopies.get(name)
        if streaming is None or tracked is None:
            return ReplicatedTableStatus(copied_rows=copied, last_recopy=last_recopy)
        problem = None if tracked.problem is None else str(tracked.problem)
        copies = streaming.tables.copies
        copy = None if tracked.table_id is None else copies.get(tracked.table_id)
        recopy = None if tracked.recopy_id is None else copies.get(tracked.recopy_id)
        status = ReplicatedTableStatus(
            error=problem,
            copied_rows=copied,
            recopying=tracked.recopy_id is not None,
            last_recopy=last_recopy,
            recopied_rows=self._counters.recopied_rows.get(name, 0),
            repaired=self._counters.repaired.get(name, 0),
            damages=self._counters.damages.get(name, 0),
            altered_by=tuple(sorted(tracked.altered_by)),
        )
        if (shown := copy or recopy) is not None:
            status = replace(status, copy=shown.progress(time.monotonic()))
        if copy is not None:
            estimated = int(copy.table.rows_estimated)
            return replace(
                status,
                phase=str(copy.phase),
                estimated_rows=estimated if estimated >= 0 else None,
                ranges=copy.ranges,
                ranges_done=copy.ranges_done,
                waiting_for=copy.waiting_for,
            )
        record = None if tracked.table_id is None else self._store.tables.get(tracked.table_id)
        phase = "waiting" if record is None else str(record.status)
        return replace(status, phase="refused" if problem else phase)
