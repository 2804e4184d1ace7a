"""The copies of all tables of a session, and the connections that read rows for them.

Changes of the stream win: a copied row is written only if its key is absent, and a
deleted key counts as present. A chunk that began before a TRUNCATE is discarded. The
table is live when the barrier, which was sent after the last chunk, comes back in the
stream. Then every key has the row of its last streamed change, or, if no change
touched it, its only version.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.copy import range_reader, recopy
from laredo_fanout.copy.range_reader import CopyReader, Progress, ReadFailed
from laredo_fanout.copy.table_copy import CopyState
from laredo_fanout.errors import CopyFailed
from laredo_fanout.pg_catalog import requirements
from laredo_fanout.pg_catalog.side_connection import (
    BarrierRequest,
    ConnectionRequest,
    PrepareRequest,
    Request,
)
from laredo_fanout.postgres import pgoutput
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.copy.table_copy import CopyChunk, TableCopy
    from laredo_fanout.pg_catalog.side_connection import CopyPlan, PrepareFailed, WriterWait
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions

# Connections that read rows for copies: their number, chunks, rate and failures.

_ROWS_A_FILL = 512
"""Number of rows to write at a time. Nobody reads meanwhile, but a socket's buffer has room for
about as many, so the backends go on; with more rows, they and the ingest would take turns."""
_BYTES_A_FILL = 8 << 20
_SMALLEST_FILL = 64 << 10


@dataclass(eq=False)
class _ChunkJob:
    """A chunk that a connection reads."""

    copy: TableCopy
    reading: CopyChunk
    keys: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    bytes: int = 0
    snapshot_known: bool = False
    heard_at: float = field(default_factory=time.monotonic)


class Copier:
    """Reader of rows for all copies of a session. The ingest loop calls it, and it never waits."""

    def __init__(
        self,
        options: SourceOptions,
        batch: WriteBatch,
        copies: TableCopies,
        request: Callable[[Request], None],
        counters: Counters,
    ) -> None:
        self._counters = counters
        self._options = options
        self._batch = batch
        self._copies = copies
        self._request = request
        self._idle: list[CopyReader] = []
        self.reading: dict[CopyReader, _ChunkJob] = {}
        """The chunk that each connection reads; the loop waits for these connections' sockets."""
        self._requested = 0
        self._not_before = 0.0
        self._paced_until = 0.0
        configured = options.copy
        # Half of the memory is for libpq's buffers.
        share = configured.max_memory // (2 * configured.connections)
        self._bytes_a_fill = max(_SMALLEST_FILL, min(_BYTES_A_FILL, share))

    @property
    def connections(self) -> int:
        """Number of connections that copy rows, or are being opened for that."""
        return len(self.reading) + len(self._idle) + self._requested

    @property
    def bytes_in_flight(self) -> int:
        """Number of bytes that were read and not written yet; may be called from any thread."""
        return sum(job.bytes for job in list(self.reading.values()))

    def connected(self, connection: Connection) -> None:
        """Add a connection that was requested."""
        self._requested -= 1
        self._idle.append(CopyReader(connection, self._bytes_a_fill))

    def assign(self) -> None:
        """Give chunks of all tables to idle readers; open and close readers."""
        now = time.monotonic()
        self._end_chunks(now)
        while self._idle:
            copy = self._next(now)
            if copy is None:
                break
            self._begin(self._idle.pop(), copy)
        waiting = self._next(now) is not None
        room = self._options.copy.connections - self.connections
        if waiting and room > 0 and now >= self._not_before:
            self._requested += 1
            self._request(ConnectionRequest())
        if not self._copies.under_way:
            while self._idle:
                self._idle.pop().close()

    def pump(self, ready: Iterable[CopyReader]) -> int:
        """Take the rows that these readers have read; returns their number."""
        rows = 0
        for reader in ready:
            job = self.reading[reader]
            try:
                keys, lines = reader.read()
            except ReadFailed as failed:
                self._reading_failed(reader, job, failed)
                continue
            rows += len(keys)
            job.heard_at = time.monotonic()
            if not self._may_use(reader, job):
                continue
            self._keep_leaves(job, reader)
            self._gather(job, keys, lines)
            if reader.progress is Progress.DONE:
                del self.reading[reader]
                self._idle.append(reader)
                self._finish(job)
        return rows

    def close(self) -> None:
        """Close every connection."""
        for reader in (*self._idle, *self.reading):
            reader.close()

    def _end_chunks(self, now: float) -> None:
        """Close the connections of chunks that are of no use, or bring nothing."""
        for reader, job in list(self.reading.items()):
            if job.copy.machine.ended:
                # Its snapshot would hold vacuum back for rows that are of no use.
                del self.reading[reader]
                reader.close()
            # It may wait for a lock; then it waits again, with a new connection.
            elif now - job.heard_at > self._options.receive_timeout:
                silent = f"PostgreSQL sent nothing for {now - job.heard_at:.0f} s"
                self._reading_failed(reader, job, ReadFailed(silent, "08006", connection_lost=True))

    def _next(self, now: float) -> TableCopy | None:
        if now < self._paced_until:
            return None
        workers = self._options.copy.workers
        ready = [
            copy
            for copy in self._copies.under_way
            if copy.has_work(now) and copy.machine.active < workers
        ]
        return min(ready, key=lambda copy: copy.machine.active, default=None)

    def _begin(self, reader: CopyReader, copy: TableCopy) -> None:
        reading = copy.machine.take(self._batch.table(copy.table_id).generation)
        job = _ChunkJob(copy, reading)
        self.reading[reader] = job
        try:
            reader.begin(copy.statement(reading), with_leaves=copy.table.partitioned)
        except ReadFailed as failed:
            self._reading_failed(reader, job, failed)

    def _may_use(self, reader: CopyReader, job: _ChunkJob) -> bool:
        """True if an append-only table's snapshot shows all transactions that were left out."""
        if job.copy.transaction_filter is None or reader.snapshot is None or job.snapshot_known:
            return True
        taken = requirements.snapshot(reader.snapshot)
        if job.copy.machine.ended or job.copy.transaction_filter.read_at(taken):
            job.snapshot_known = True
            return True
        # A commit reaches the stream a moment before other transactions see it.
        del self.reading[reader]
        reader.close()
        job.copy.machine.put_back(job.reading)
        job.copy.not_before = time.monotonic() + random.uniform(0.1, 0.3)
        return False

    def _keep_leaves(self, job: _ChunkJob, reader: CopyReader) -> None:
        found, reader.leaves = reader.leaves, None
        if found is not None and not job.copy.machine.ended:
            range_reader.keep(
                found, job.copy.partitions, job.copy.shown_id, self._batch.transaction
            )

    def _gather(self, job: _ChunkJob, keys: list[bytes], lines: list[bytes]) -> None:
        if not keys or self._is_ignored(job):
            return
        job.copy.rows += len(keys)
        self._pace(len(keys))
        name = job.copy.table.qualified
        self._counters.copied_rows[name] = self._counters.copied_rows.get(name, 0) + len(keys)
        job.keys += keys
        job.lines += lines
        job.bytes += sum(map(len, lines))
        if len(job.keys) >= _ROWS_A_FILL or job.bytes >= self._bytes_a_fill:
            self._fill(job)

    def _pace(self, rows: int) -> None:
        """Delay the next range after these rows, to keep the configured rate.

        Within a range there is no delay: its lock and its snapshot would live longer.
        """
        rate = self._options.copy.max_rows_per_second
        if rate is not None:
            self._paced_until = max(self._paced_until, time.monotonic()) + rows / rate

    def _fill(self, job: _ChunkJob) -> None:
        keys, lines = job.keys, job.lines
        job.keys, job.lines, job.bytes = [], [], 0
        if not keys:
            return
        generation = job.reading.generation
        if job.copy.transaction_filter is not None:
            self._batch.add(job.copy.table_id, lines, generation)
        else:
            self._batch.fill(job.copy.table_id, keys, lines, generation)

    def _finish(self, job: _ChunkJob) -> None:
        if job.copy.machine.ended:
            return
        if not self._is_ignored(job):
            self._fill(job)
        self._copies.finished(job.copy, job.reading)

    def _is_ignored(self, job: _ChunkJob) -> bool:
        """True if the rows can't be used: the incarnation has ended, or was truncated since."""
        return (
            job.copy.machine.ended
            or self._batch.table(job.copy.table_id).generation != job.reading.generation
        )

    def _reading_failed(self, reader: CopyReader, job: _ChunkJob, failed: ReadFailed) -> None:
        self.reading.pop(reader, None)
        # A refused statement leaves an aborted transaction, which takes no other statement.
        reader.close()
        if failed.connection_lost:
            self._not_before = time.monotonic() + random.uniform(0.5, 1.5)
        if not job.copy.machine.ended:
            self._copies.reading_failed(job.copy, job.reading, failed)


_log = structlog.get_logger()

_MOST_PARTIAL_KEYS = 100_000


class TableCopies:
    """The running copies of one session; used by the ingest thread, and never waits."""

    def __init__(
        self,
        slot_name: str,
        batch: WriteBatch,
        request: Callable[[Request], None],
        *,
        request_snapshot: Callable[[], int],
        failed: Callable[[int, CopyFailed], None],
    ) -> None:
        self._slot_name = slot_name
        self._batch = batch
        self._request = request
        self._request_snapshot = request_snapshot
        self._failed = failed
        self._copies: dict[int, TableCopy] = {}

    @property
    def under_way(self) -> list[TableCopy]:
        """The copies that aren't done; may be called from any thread."""
        return list(self._copies.values())

    def get(self, table_id: int) -> TableCopy | None:
        """The running copy of this incarnation, or None."""
        return self._copies.get(table_id)

    def add(self, copy: TableCopy) -> None:
        """Begin or continue a table's copy."""
        self._copies[copy.table_id] = copy
        self._request(PrepareRequest(copy.table_id, copy.table, copy.splits))

    def remove(self, table_id: int) -> None:
        """Discard the copy of an incarnation that has ended, and its re-copy."""
        for copy in self.under_way:
            if table_id in (copy.table_id, copy.live_id):
                del self._copies[copy.table_id]
                copy.machine.discard()

    def prepared(self, prepared: CopyPlan) -> None:
        """Start a copy that may begin."""
        copy = self._copies.get(prepared.table_id)
        if copy is None:
            return
        copy.plan(prepared.splits)
        _log.info(
            "copy started",
            table=copy.table.qualified,
            ranges=copy.ranges,
            done=copy.ranges_done,
            rows_estimated=max(0, int(copy.table.rows_estimated)),
        )
        self._progressed(copy)

    def waiting(self, waiting: WriterWait) -> None:
        """Note the processes for which the side connection waits."""
        copy = self._copies.get(waiting.table_id)
        if copy is None or copy.waiting_for == waiting.pids:
            return
        copy.machine.wait_for(waiting.pids)
        _log.info(
            "copy delayed by writing transactions",
            table=copy.table.qualified,
            pids=list(waiting.pids),
        )

    def prepare_failed(self, failed: PrepareFailed) -> None:
        """Give up the copy of a table that the side connection can't read."""
        copy = self._copies.get(failed.table_id)
        if copy is not None:
            copy.machine.give_up()
            problem = CopyFailed(copy.table.qualified, failed.problem, "see PostgreSQL's log")
            self._failed(copy.table_id, problem)

    def finished(self, copy: TableCopy, reading: CopyChunk) -> None:
        """Finish a chunk whose rows are in the store's transaction.

        If a TRUNCATE came meanwhile, it is read again.
        """
        copy.machine.finish(reading, self._batch.table(copy.table_id).generation)
        if copy.machine.state is CopyState.FAILED:
            self._give_up(copy, "it was truncated while its rows were read")
        else:
            self._progressed(copy)

    def reading_failed(self, copy: TableCopy, reading: CopyChunk, failed: ReadFailed) -> None:
        """Read the chunk again, or give up after several refusals."""
        machine = copy.machine
        if failed.connection_lost:
            machine.repeat(reading)
        else:
            machine.refuse(reading)
        _log.warning(
            "chunk not read",
            table=copy.table.qualified,
            error=str(failed),
            sqlstate=failed.sqlstate,
        )
        if machine.state is CopyState.FAILED:
            self._give_up(copy, f"its rows can't be read: {failed}")
        elif not failed.connection_lost:
            copy.not_before = time.monotonic() + random.uniform(0.05, 0.15) * 2**machine.refusals
            self._request_snapshot()

    def barrier_arrived(
        self, payload: str, position: int, time_us: int, between: Callable[[], None]
    ) -> tuple[int, int] | None:
        """End the copy whose barrier has arrived, or read partial rows again.

        Returns the table's id and the number of rows that differed (0 unless it is a re-copy); None
        if no copy ends. ``between`` is called while a re-copy's rows are compared.
        """
        copy = next((each for each in self.under_way if each.machine.awaits(payload)), None)
        if copy is None:
            return None
        partial = self._partial_keys(copy)
        if partial:
            # Rows whose key changed, with a TOAST value, after the chunk of the old key was read.
            copy.machine.reread(partial)
            return None
        differing = 0
        if copy.live_id is None:
            self._publish(copy, position, time_us)
        else:
            differing = self._publish_differences(copy, position, time_us, between)
        copy.machine.publish()
        del self._copies[copy.table_id]
        return copy.table_id, differing

    def _publish(self, copy: TableCopy, position: int, time_us: int) -> None:
        """Make the table of a copy live."""
        transaction = self._batch.transaction
        record = transaction.publish(copy.table_id, position, time_us)
        kept = {name: copy.to_json()[name] for name in ("shape", "version")}
        transaction.put_table(replace(record, copy=kept))
        self._batch.touch(copy.table_id)
        _log.info(
            "table live",
            table=copy.table.qualified,
            rows=record.rows,
            read=copy.rows,
            position=position_.text(position),
        )

    def _publish_differences(
        self, copy: TableCopy, position: int, time_us: int, between: Callable[[], None]
    ) -> int:
        """Write a re-copy's differences to the live table; returns the number of rows."""
        begun = time.monotonic()
        transaction = self._batch.transaction
        live, differing = recopy.publish(copy, transaction, position, time_us, between)
        self._batch.touch(live.id)
        _log.info(
            "re-copy completed",
            table=copy.table.qualified,
            differing=differing,
            rows=live.rows,
            compared_in_s=round(time.monotonic() - begun, 3),
        )
        if live.suspect_ranges and (suspect_range := live.suspect_ranges[-1]).end == position:
            _log.info(
                "rows repaired after a partition moved",
                table=copy.table.qualified,
                from_position=position_.text(suspect_range.start),
                to_position=position_.text(suspect_range.end),
                reason=suspect_range.because,
            )
        return differing

    def _progressed(self, copy: TableCopy) -> None:
        """Store the copy's progress; if all is read, continue when that is durable."""
        self._store_progress(copy)
        if copy.machine.state in (CopyState.READ, CopyState.REREAD):
            self._batch.when_durable(lambda: self._all_durable(copy))

    def _all_durable(self, copy: TableCopy) -> None:
        """Read partial rows again, or send the barrier, once everything read is durable."""
        if copy.machine.ended:
            return
        if copy.machine.state is CopyState.READ and (partial := self._partial_keys(copy)):
            copy.machine.reread(partial)
            return
        payload, is_recopy = pgoutput.barrier_payload(self._slot_name), copy.live_id is not None
        copy.machine.send_barrier(payload)
        self._request(BarrierRequest(payload, copy.options, copy.shape, copy.version, is_recopy))

    def barrier_refused(self, request: BarrierRequest) -> None:
        """Keep a barrier that wasn't sent, because the table had changed."""
        for copy in self.under_way:
            if copy.machine.awaits(request.payload):
                copy.refused = request

    def send_refused(self) -> None:
        """Send refused barriers again, after a catalog check that ended no such copy.

        A re-copy's isn't sent before the check has shown another version, with which it compares.
        """
        for copy in self.under_way:
            refused = copy.refused
            if refused is not None and (copy.live_id is None or copy.version != refused.version):
                copy.refused = None
                self._request(refused._replace(version=copy.version))

    def _partial_keys(self, copy: TableCopy) -> list[bytes]:
        """Keys of rows that lack unchanged TOAST values, a bounded number."""
        keys = self._batch.transaction.partial_keys(copy.table_id)
        return list(islice(keys, _MOST_PARTIAL_KEYS))

    def _store_progress(self, copy: TableCopy) -> None:
        transaction = self._batch.transaction
        record = transaction.tables[copy.table_id]
        transaction.put_table(replace(record, copy=copy.to_json()))

    def _give_up(self, copy: TableCopy, problem: str) -> None:
        """Report the problem of a copy that failed."""
        then = "another copy follows" if copy.live_id is None else "request the re-copy again"
        self._failed(copy.table_id, CopyFailed(copy.table.qualified, problem, then))
