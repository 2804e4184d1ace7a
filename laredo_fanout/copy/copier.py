"""The copies of all tables of a session, and the connections that read rows for them.

Stream writes win; copied rows fill absent keys, and a deleted key counts as present; a
chunk that began before a TRUNCATE is discarded; nothing is shown before the barrier
that was sent after the last chunk comes back in the stream. Then every key holds what
its last streamed change made of it, or, if none touched it, the one version there was.
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

# The connections that read rows for copies: how many there are, what each reads, how fast, and what
# is done when one fails. What becomes of a chunk that was read: TableCopies.

_ROWS_A_FILL = 512
"""While they are written nobody reads. A socket's buffer holds about as many, so that backends go
on meanwhile; with more of them they and we take turns, each on one core."""
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
    """Reads rows for all copies of one session of the stream; the ingest loop drives it, it never
    waits."""

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
        """The chunk that each connection reads; the sockets of these are to be waited for."""
        self._requested = 0
        self._not_before = 0.0
        self._paced_until = 0.0
        configured = options.copy
        # Half of the memory is for what libpq holds of each connection.
        share = configured.max_memory // (2 * configured.connections)
        self._bytes_a_fill = max(_SMALLEST_FILL, min(_BYTES_A_FILL, share))

    @property
    def connections(self) -> int:
        """Number of connections that copy rows, or are being opened for that."""
        return len(self.reading) + len(self._idle) + self._requested

    @property
    def bytes_in_flight(self) -> int:
        """Number of bytes that were read and not written yet; callable from any thread."""
        return sum(job.bytes for job in list(self.reading.values()))

    def connected(self, connection: Connection) -> None:
        """A connection that was asked for."""
        self._requested -= 1
        self._idle.append(CopyReader(connection, self._bytes_a_fill))

    def assign(self) -> None:
        """Give idle readers something to do, tables side by side; open and close readers."""
        now = time.monotonic()
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
        for reader, job in list(self.reading.items()):
            # It may wait for a lock; then it waits again, with a new connection.
            if now - job.heard_at > self._options.receive_timeout:
                silent = f"nothing came for {now - job.heard_at:.0f} s"
                self._reading_failed(reader, job, ReadFailed(silent, "08006", connection_lost=True))
        if not self._copies.under_way:
            while self._idle:
                self._idle.pop().close()

    def pump(self, ready: Iterable[CopyReader]) -> int:
        """Take what these readers have got; how many rows that were."""
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
        reading = copy.machine.take(self._batch.generation(copy.table_id))
        job = _ChunkJob(copy, reading)
        self.reading[reader] = job
        try:
            reader.begin(copy.statement(reading), with_leaves=copy.table.partitioned)
        except ReadFailed as failed:
            self._reading_failed(reader, job, failed)

    def _may_use(self, reader: CopyReader, job: _ChunkJob) -> bool:
        """True if an append-only table's snapshot sees all that was streamed before it."""
        if job.copy.transaction_filter is None or reader.snapshot is None or job.snapshot_known:
            return True
        taken = requirements.snapshot(reader.snapshot)
        if job.copy.machine.ended or job.copy.transaction_filter.read_at(taken):
            job.snapshot_known = True
            return True
        # A commit reaches the stream a moment before all others see it.
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

        Inside a range nothing waits, since its lock and its snapshot would live longer.
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
        """True if its rows have no use: the incarnation has ended, or was truncated since."""
        return (
            job.copy.machine.ended
            or self._batch.generation(job.copy.table_id) != job.reading.generation
        )

    def _reading_failed(self, reader: CopyReader, job: _ChunkJob, failed: ReadFailed) -> None:
        self.reading.pop(reader, None)
        # A refused statement leaves a transaction behind that takes no other.
        reader.close()
        if failed.connection_lost:
            self._not_before = time.monotonic() + random.uniform(0.5, 1.5)
        if not job.copy.machine.ended:
            self._copies.reading_failed(job.copy, job.reading, failed)


_log = structlog.get_logger()

_MOST_PARTIAL_KEYS = 100_000


class TableCopies:
    """The copies under way in one session of the stream; used by the ingest thread, never waits."""

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
        """The copies that aren't done; from any thread."""
        return list(self._copies.values())

    def get(self, table_id: int) -> TableCopy | None:
        """The copy of this incarnation."""
        return self._copies.get(table_id)

    def add(self, copy: TableCopy) -> None:
        """Begin, or go on with, a table's copy."""
        self._copies[copy.table_id] = copy
        self._request(PrepareRequest(copy.table_id, copy.table, copy.splits))

    def remove(self, table_id: int) -> None:
        """Discard the copy of an incarnation that has ended, and its re-copy."""
        for copy in self.under_way:
            if table_id in (copy.table_id, copy.beside):
                del self._copies[copy.table_id]
                copy.machine.discard()

    def prepared(self, prepared: CopyPlan) -> None:
        """The side connection found that the copy may begin."""
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
        """The side connection waits for these processes."""
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
        """The side connection can't read the table."""
        copy = self._copies.get(failed.table_id)
        if copy is not None:
            copy.machine.give_up()
            problem = CopyFailed(copy.table.qualified, failed.problem, "see the server's log")
            self._failed(copy.table_id, problem)

    def finished(self, copy: TableCopy, reading: CopyChunk) -> None:
        """The chunk was read to its end; its rows are in the store's transaction unless a
        TRUNCATE came meanwhile: then it is read again."""
        copy.machine.finish(reading, self._batch.generation(copy.table_id))
        if copy.machine.state is CopyState.FAILED:
            self._give_up(copy, "it was truncated while its rows were read")
        else:
            self._progressed(copy)

    def reading_failed(self, copy: TableCopy, reading: CopyChunk, failed: ReadFailed) -> None:
        """The chunk is read again, unless that was tried often enough."""
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
        """The stream has a barrier: the table that it makes live, if it is an awaited one, and,
        if it is a re-copy, how many rows differed. ``between`` is called while they are compared.
        """
        copy = next((each for each in self.under_way if each.machine.awaits(payload)), None)
        if copy is None:
            return None
        partial = self._partial_keys(copy)
        if partial:
            # Keys that moved with a TOAST value after the chunk with the old key was read.
            copy.machine.reread(partial)
            return None
        differing = 0
        if copy.beside is None:
            self._publish(copy, position, time_us)
        else:
            differing = self._publish_differences(copy, position, time_us, between)
        copy.machine.publish()
        del self._copies[copy.table_id]
        return copy.table_id, differing

    def _publish(self, copy: TableCopy, position: int, time_us: int) -> None:
        """A copy's barrier has passed: the table is live."""
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
        """A re-copy's barrier has passed: what differs goes into the live table; how many rows
        that are."""
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
                since=position_.text(suspect_range.start),
                until=position_.text(suspect_range.end),
                why=suspect_range.because,
            )
        return differing

    def _progressed(self, copy: TableCopy) -> None:
        """Store how far it is; if all is read, go on when that is durable."""
        self._store_progress(copy)
        if copy.machine.state in (CopyState.READ, CopyState.REREAD):
            self._batch.when_durable(lambda: self._all_durable(copy))

    def _all_durable(self, copy: TableCopy) -> None:
        """Everything read is durable: read partial rows once more, then choose the barrier."""
        if copy.machine.ended:
            return
        if copy.machine.state is CopyState.READ and (partial := self._partial_keys(copy)):
            copy.machine.reread(partial)
            return
        copy.machine.choose_barrier(pgoutput.barrier_payload(self._slot_name))
        self._store_progress(copy)
        self._batch.when_durable(lambda: self._send_barrier(copy))

    def _send_barrier(self, copy: TableCopy) -> None:
        if copy.machine.ended:
            return
        copy.machine.barrier_durable()
        payload, beside = copy.machine.barrier, copy.beside is not None
        assert payload is not None, "it was chosen"
        self._request(BarrierRequest(payload, copy.options, copy.shape, copy.version, beside))

    def _partial_keys(self, copy: TableCopy) -> list[bytes]:
        """Keys of rows that lack unchanged TOAST values; not all of them at once."""
        keys = self._batch.transaction.partial_keys(copy.table_id)
        return list(islice(keys, _MOST_PARTIAL_KEYS))

    def _store_progress(self, copy: TableCopy) -> None:
        transaction = self._batch.transaction
        record = transaction.tables[copy.table_id]
        transaction.put_table(replace(record, copy=copy.to_json()))

    def _give_up(self, copy: TableCopy, problem: str) -> None:
        """Discard the rows of a copy that failed, and report the problem."""
        name = copy.table.qualified
        then = "it is tried again later" if copy.beside is None else "ask again for the re-copy"
        self._failed(copy.table_id, CopyFailed(name, problem, then))
