"""The connections that read rows for copies: how many there are, what each reads, how fast, and
what is done when one fails. What becomes of a chunk that was read: table_copies.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from laredo_fanout.catalog import append_only
from laredo_fanout.catalog.side_connection import ConnectionRequest, Request
from laredo_fanout.copy import chunk_leaves
from laredo_fanout.copy.range_reader import CopyReader, Progress, ReadFailed

if TYPE_CHECKING:
    from laredo_fanout.copy.copy_state import CopyChunk
    from laredo_fanout.copy.table_copies import TableCopies
    from laredo_fanout.copy.table_copy import TableCopy
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions
    from laredo_fanout.tables.status import Counters
    from laredo_fanout.tables.write_batch import WriteBatch

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
        self._jobs: dict[CopyReader, _ChunkJob] = {}
        self._requested = 0
        self._not_before = 0.0
        self._paced_until = 0.0
        configured = options.copy
        # Half of the memory is for what libpq holds of each connection.
        share = configured.max_memory // (2 * configured.connections)
        self._bytes_a_fill = max(_SMALLEST_FILL, min(_BYTES_A_FILL, share))

    @property
    def active(self) -> bool:
        """True while rows are being read."""
        return bool(self._jobs)

    @property
    def connections(self) -> int:
        """Number of connections that copy rows, or are being opened for that."""
        return len(self._jobs) + len(self._idle) + self._requested

    @property
    def bytes_in_flight(self) -> int:
        """Number of bytes that were read and not written yet; callable from any thread."""
        return sum(job.bytes for job in list(self._jobs.values()))

    def readers(self) -> list[CopyReader]:
        """The readers whose sockets are to be waited for."""
        return list(self._jobs)

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
        if not self._copies.under_way:
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

    def close(self) -> None:
        """Close every connection."""
        for reader in (*self._idle, *self._jobs):
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
        self._jobs[reader] = job
        try:
            reader.begin(copy.statement(reading), with_leaves=copy.table.partitioned)
        except ReadFailed as failed:
            self._reading_failed(reader, job, failed)

    def _may_use(self, reader: CopyReader, job: _ChunkJob) -> bool:
        """True if an append-only table's snapshot sees all that was streamed before it."""
        if job.copy.transaction_filter is None or reader.snapshot is None or job.snapshot_known:
            return True
        taken = append_only.snapshot(reader.snapshot)
        if job.copy.machine.ended or job.copy.transaction_filter.read_at(taken):
            job.snapshot_known = True
            return True
        # A commit reaches the stream a moment before all others see it.
        del self._jobs[reader]
        reader.close()
        job.copy.machine.put_back(job.reading)
        job.copy.not_before = time.monotonic() + random.uniform(0.1, 0.3)
        return False

    def _keep_leaves(self, job: _ChunkJob, reader: CopyReader) -> None:
        found, reader.leaves = reader.leaves, None
        if found is not None and not job.copy.machine.ended:
            chunk_leaves.keep(
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
        self._jobs.pop(reader, None)
        # A refused statement leaves a transaction behind that takes no other.
        reader.close()
        if failed.connection_lost:
            self._not_before = time.monotonic() + random.uniform(0.5, 1.5)
        if not job.copy.machine.ended:
            self._copies.reading_failed(job.copy, job.reading, failed)
