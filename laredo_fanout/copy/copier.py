"""Copying tables beside the stream: readers, chunks, and the way to each table's barrier.

Stream writes win; copied rows fill absent keys, and a deleted key counts as present; a
chunk that began before a TRUNCATE is thrown away; nothing is shown before the barrier
that was sent after the last reading comes back in the stream. Then every key holds what
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

from laredo_fanout.catalog import append_only
from laredo_fanout.catalog.side_connection import (
    BarrierRequest,
    ConnectionRequest,
    PrepareRequest,
    Request,
)
from laredo_fanout.copy import chunk_leaves, recopy
from laredo_fanout.copy.range_reader import CopyReader, Progress, ReadFailed
from laredo_fanout.copy.table_copy import Phase, Reading, TableCopy
from laredo_fanout.errors import CopyFailed
from laredo_fanout.postgres import wal_message
from laredo_fanout.store.errors import ChunkStale
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.catalog.side_connection import Prepared, Waiting
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.tables.status import Counters
    from laredo_fanout.tables.write_batch import WriteBatch

_log = structlog.get_logger()

_ROWS_A_FILL = 512
"""While they are written nobody reads. A socket's buffer holds about as many, so that backends go
on meanwhile; with more of them they and we take turns, each on one core."""
_BYTES_A_FILL = 8 << 20
_SMALLEST_FILL = 64 << 10
_MOST_FAILURES = 5
_MOST_PARTIAL_KEYS = 100_000


@dataclass(eq=False)
class _Job:
    copy: TableCopy
    reading: Reading
    generation: int
    keys: list[bytes] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    bytes: int = 0
    stale: bool = False
    snapshot_known: bool = False
    heard_at: float = field(default_factory=time.monotonic)


class Copying:
    """All copies of one run; driven by the ingest loop, never waits."""

    def __init__(
        self,
        options: SourceOptions,
        batch: WriteBatch,
        request: Callable[[Request], None],
        *,
        look_now: Callable[[], int],
        failed: Callable[[int, CopyFailed], None],
        counters: Counters,
    ) -> None:
        self._counters = counters
        self._options = options
        self._batch = batch
        self._request = request
        self._look_now = look_now
        self._failed = failed
        self._copies: dict[int, TableCopy] = {}
        self._idle: list[CopyReader] = []
        self._jobs: dict[CopyReader, _Job] = {}
        self._requested = 0
        self._not_before = 0.0
        self._paced_until = 0.0
        said = options.copy
        # Half of the memory is for what libpq holds of each connection.
        share = said.max_memory // (2 * said.connections)
        self._bytes_a_fill = max(_SMALLEST_FILL, min(_BYTES_A_FILL, share))

    @property
    def copies(self) -> Iterable[TableCopy]:
        """The copies that aren't done."""
        return list(self._copies.values())

    @property
    def active(self) -> bool:
        """Whether rows are being read."""
        return bool(self._jobs)

    @property
    def connections(self) -> int:
        """How many connections copy rows, or are being opened for that."""
        return len(self._jobs) + len(self._idle) + self._requested

    @property
    def bytes_in_flight(self) -> int:
        """What was read and isn't written yet; from any thread."""
        return sum(job.bytes for job in list(self._jobs.values()))

    def readers(self) -> list[CopyReader]:
        """The readers whose sockets are to be waited for."""
        return list(self._jobs)

    def get(self, table_id: int) -> TableCopy | None:
        """The copy of this incarnation."""
        return self._copies.get(table_id)

    def add(self, copy: TableCopy) -> None:
        """Begin, or go on with, a table's copy."""
        self._copies[copy.table_id] = copy
        self._request(PrepareRequest(copy.table_id, copy.table, copy.splits))

    def remove(self, table_id: int) -> None:
        """Forget a copy, and a re-copy beside this incarnation; what is being read for them is
        thrown away."""
        for copy in self.copies:
            if table_id in (copy.table_id, copy.beside):
                del self._copies[copy.table_id]
                copy.cancelled = True

    def prepared(self, prepared: Prepared) -> None:
        """The side connection found that the copy may begin."""
        copy = self._copies.get(prepared.table_id)
        if copy is None:
            return
        copy.begin(prepared.splits)
        self._store_progress(copy)
        _log.info(
            "copy begins",
            table=copy.table.qualified,
            ranges=copy.ranges,
            done=copy.ranges_done,
            rows_estimated=max(0, int(copy.table.rows_estimated)),
        )
        if copy.complete:
            self._batch.when_durable(lambda: self._settle(copy))

    def waiting(self, waiting: Waiting) -> None:
        """The side connection waits for these processes."""
        copy = self._copies.get(waiting.table_id)
        if copy is None or copy.waiting_for == waiting.pids:
            return
        copy.waiting_for = waiting.pids
        _log.info(
            "copy waits for transactions that were writing to the table",
            table=copy.table.qualified,
            pids=list(waiting.pids),
        )

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
        for reader, job in list(self._jobs.items()):
            # It may wait for a lock; then it waits again, with a new connection.
            if now - job.heard_at > self._options.receive_timeout:
                silent = f"nothing came for {now - job.heard_at:.0f} s"
                self._reading_failed(reader, job, ReadFailed(silent, "08006", connection_lost=True))
        if not self._copies:
            while self._idle:
                self._idle.pop().close()

    def pump(self, ready: Iterable[CopyReader]) -> int:
        """Take what these readers have got; how many rows that were."""
        rows = 0
        for reader in ready:
            job = self._jobs[reader]
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
                del self._jobs[reader]
                self._idle.append(reader)
                self._finish(job)
        return rows

    def barrier_arrived(
        self, payload: str, position: int, time_us: int, between: Callable[[], None]
    ) -> tuple[int, int] | None:
        """The stream has a barrier: the table that it makes live, if it is an awaited one, and,
        if it is a re-copy, how many rows differed. ``between`` is called while they are compared.
        """
        copy = next((each for each in self.copies if each.barrier == payload), None)
        if copy is None or copy.phase is not Phase.BARRIER:
            return None
        transaction = self._batch.transaction
        partial = list(islice(transaction.partial_keys(copy.table_id), _MOST_PARTIAL_KEYS))
        if partial:
            # Keys that moved with a TOAST value after the chunk with the old key was read.
            copy.read_again(partial)
            return None
        if copy.beside is not None:
            return copy.table_id, self._put_right(copy, position, time_us, between)
        record = transaction.publish(copy.table_id, position, time_us)
        kept = {name: copy.to_json()[name] for name in ("shape", "version")}
        transaction.put_table(replace(record, copy=kept))
        self._batch.touch(copy.table_id)
        self.remove(copy.table_id)
        _log.info(
            "table live",
            table=copy.table.qualified,
            rows=record.rows,
            read=copy.rows,
            position=position_.text(position),
        )
        return copy.table_id, 0

    def _put_right(
        self, copy: TableCopy, position: int, time_us: int, between: Callable[[], None]
    ) -> int:
        """A re-copy's barrier: what differs goes into the live table; how many rows that are."""
        begun = time.monotonic()
        transaction = self._batch.transaction
        live, differing = recopy.publish(copy, transaction, position, time_us, between)
        self._batch.touch(live.id)
        self.remove(copy.table_id)
        _log.info(
            "re-copy done",
            table=copy.table.qualified,
            differing=differing,
            rows=live.rows,
            compared_in_s=round(time.monotonic() - begun, 3),
        )
        if live.doubts and (doubt := live.doubts[-1]).end == position:
            _log.info(
                "rows that had moved with a partition are right",
                table=copy.table.qualified,
                since=position_.text(doubt.start),
                until=position_.text(doubt.end),
                why=doubt.because,
            )
        return differing

    def close(self) -> None:
        """Close every connection."""
        for reader in (*self._idle, *self._jobs):
            reader.close()

    def _next(self, now: float) -> TableCopy | None:
        if now < self._paced_until:
            return None
        workers = self._options.copy.workers
        ready = [
            copy for copy in self._copies.values() if copy.has_work(now) and copy.active < workers
        ]
        return min(ready, key=lambda copy: copy.active, default=None)

    def _begin(self, reader: CopyReader, copy: TableCopy) -> None:
        reading = copy.take()
        job = _Job(copy, reading, self._batch.generation(copy.table_id))
        self._jobs[reader] = job
        try:
            reader.begin(copy.statement(reading), tells=copy.table.partitioned)
        except ReadFailed as failed:
            self._reading_failed(reader, job, failed)

    def _may_use(self, reader: CopyReader, job: _Job) -> bool:
        """Whether an append-only table's snapshot shows all that was streamed before it."""
        if job.copy.intake is None or reader.snapshot is None or job.snapshot_known:
            return True
        taken = append_only.snapshot(reader.snapshot)
        if job.copy.cancelled or job.copy.intake.read_at(taken):
            job.snapshot_known = True
            return True
        # A commit reaches the stream a moment before all others see it.
        del self._jobs[reader]
        reader.close()
        job.copy.give_back(job.reading)
        job.copy.not_before = time.monotonic() + random.uniform(0.1, 0.3)
        return False

    def _keep_leaves(self, job: _Job, reader: CopyReader) -> None:
        told, reader.told = reader.told, None
        if told is not None and not job.copy.cancelled:
            chunk_leaves.keep(told, job.copy.partitions, job.copy.shown_id, self._batch.transaction)

    def _gather(self, job: _Job, keys: list[bytes], lines: list[bytes]) -> None:
        if job.copy.cancelled or job.stale or not keys:
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
        """What was read puts off the next range: in a range nothing waits, or its lock and its
        snapshot would live longer."""
        rate = self._options.copy.max_rows_per_second
        if rate is not None:
            self._paced_until = max(self._paced_until, time.monotonic()) + rows / rate

    def _fill(self, job: _Job) -> None:
        keys, lines = job.keys, job.lines
        job.keys, job.lines, job.bytes = [], [], 0
        if not keys:
            return
        try:
            if job.copy.intake is not None:
                self._batch.add(job.copy.table_id, lines, job.generation)
            else:
                self._batch.fill(job.copy.table_id, keys, lines, job.generation)
        except ChunkStale:
            job.stale = True

    def _finish(self, job: _Job) -> None:
        copy = job.copy
        if copy.cancelled:
            return
        if not job.stale:
            self._fill(job)
        if job.stale or self._batch.generation(copy.table_id) != job.generation:
            if copy.intake is not None:
                self._give_up(copy, "it was truncated while its rows were read")
                return
            copy.give_back(job.reading)
            return
        copy.finish(job.reading)
        self._store_progress(copy)
        if copy.complete:
            self._batch.when_durable(lambda: self._settle(copy))

    def _settle(self, copy: TableCopy) -> None:
        """Everything read is durable: read partial rows once more, then send the barrier."""
        if copy.cancelled or not copy.complete:
            return
        if copy.phase is Phase.READING:
            keys = self._batch.transaction.partial_keys(copy.table_id)
            partial = list(islice(keys, _MOST_PARTIAL_KEYS))
            if partial:
                copy.read_again(partial)
                return
        copy.phase = Phase.BARRIER
        copy.barrier = wal_message.barrier_payload(self._options.slot_name)
        self._store_progress(copy)
        self._batch.when_durable(lambda: self._send_barrier(copy))

    def _send_barrier(self, copy: TableCopy) -> None:
        if copy.cancelled or copy.barrier is None:
            return
        beside = copy.beside is not None
        self._request(BarrierRequest(copy.barrier, copy.options, copy.shape, copy.version, beside))

    def _store_progress(self, copy: TableCopy) -> None:
        transaction = self._batch.transaction
        record = transaction.tables[copy.table_id]
        transaction.put_table(replace(record, copy=copy.to_json()))

    def _reading_failed(self, reader: CopyReader, job: _Job, failed: ReadFailed) -> None:
        self._jobs.pop(reader, None)
        copy = job.copy
        now = time.monotonic()
        # A refused statement leaves a transaction behind that takes no other.
        reader.close()
        if failed.connection_lost:
            self._not_before = now + random.uniform(0.5, 1.5)
        if copy.cancelled:
            return
        copy.give_back(job.reading)
        _log.warning(
            "reading a chunk failed; it is read again",
            table=copy.table.qualified,
            error=str(failed),
            sqlstate=failed.sqlstate,
        )
        if copy.intake is not None:
            self._give_up(copy, f"its rows can't be read: {failed}")
            return
        if failed.connection_lost:
            return
        copy.failures += 1
        copy.not_before = now + random.uniform(0.05, 0.15) * 2**copy.failures
        if copy.failures >= _MOST_FAILURES:
            self._give_up(copy, f"its rows can't be read: {failed}")
        else:
            self._look_now()

    def _give_up(self, copy: TableCopy, problem: str) -> None:
        """What was copied is thrown away."""
        name = copy.table.qualified
        then = "it is tried again later" if copy.beside is None else "ask again for the re-copy"
        self._failed(copy.table_id, CopyFailed(name, problem, then))
