"""The rows of a streamed snapshot: read from the store, spooled to disk for a slow client.

The rows come from an LMDB read transaction, which keeps freed pages from being used again. So for a
slow client the rest of the rows is spooled in a temporary file, and the transaction is closed.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import structlog

from laredo_fanout.serving.errors import NoRoomToSpool
from laredo_fanout.store.errors import SpoolFailed
from laredo_fanout.store.reader import Batch, StoreReader
from laredo_fanout.store.shared_spool import SharedSpools
from laredo_service.files import make_private

log = structlog.get_logger(__name__)

BATCH_BYTES = 256 << 10
FIRST_BATCH_BYTES = 32 << 10
BATCH_ROWS = 1900
PIECE_ROWS = 380
SLOW_AFTER_S = 10.0
SLOW_BYTES_PER_S = 16 << 20
DISK_RESERVE = 1 << 30


class SpoolDirectory:
    """The directory of the spool files of slow clients; shared by a process's sessions."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        make_private(path)
        self.path = path
        self.spools = SharedSpools(path, max_bytes)
        self.one_at_a_time = asyncio.Lock()


class SnapshotRowStream:
    """The rows of one snapshot: `async with` it, then `next()` until None."""

    def __init__(
        self,
        reader: StoreReader,
        table_id: int,
        spool: SpoolDirectory,
        *,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._spool = spool
        self._snapshot = reader.snapshot(table_id, spools=spool.spools)
        self.sequence = self._snapshot.sequence
        self.position = self._snapshot.position
        self.rows = self._snapshot.rows
        self.view = self._snapshot.view
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._sent_bytes = self._sent_rows = 0
        self._piece = 16
        self._batch_rows = batch_rows
        # Begins small and doubles: hundreds of clients that never read hold little.
        self._batch_bytes = FIRST_BATCH_BYTES
        self._left_over: list[Batch] = []
        self._writing = False
        self._failure: NoRoomToSpool | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._spilling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> SnapshotRowStream:
        self._watch()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # A spill under way ends at its next step, and only then may its transaction be closed.
        self._snapshot.stop_spilling()
        try:
            if self._spilling is not None:
                if not self._writing:
                    self._spilling.cancel()
                await asyncio.wait([self._spilling])
        finally:
            if self._spilling is None or self._spilling.done():
                self._snapshot.close()
            else:
                self._spilling.add_done_callback(lambda _: self._snapshot.close())

    async def next(self) -> Batch | None:
        """The next rows, about BATCH_BYTES of them; None at the end.

        :raises NoRoomToSpool: the client is slow and the disk too full to spool the rest.
        """
        if self._left_over:
            return self._left_over.pop()
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            keys, lines, size = self._gather()
        if not keys:
            return None
        self._sent_rows += len(keys)
        self._sent_bytes += size
        self._batch_bytes = min(2 * self._batch_bytes, BATCH_BYTES)
        if size > 2 * BATCH_BYTES and len(keys) > 1:
            return self._split(keys, lines)
        return keys, lines

    def _gather(self) -> tuple[list[bytes], list[bytes], int]:
        """Gather small pieces until there is enough: one more wide row must not mean hundreds."""
        keys: list[bytes] = []
        lines: list[bytes] = []
        size = 0
        while size < self._batch_bytes and len(keys) < self._batch_rows:
            batch = next(self._snapshot.batches(self._piece), None)
            if batch is None:
                break
            piece_keys, piece_lines = batch
            piece_size = sum(map(len, piece_lines))
            keys += piece_keys
            lines += piece_lines
            size += piece_size
            average = piece_size // len(piece_lines) + 1
            self._piece = max(
                1, min(PIECE_ROWS, self._batch_rows, 2 * self._piece, BATCH_BYTES // average)
            )
        return keys, lines, size

    def _split(self, keys: list[bytes], lines: list[bytes]) -> Batch:
        start, size = 0, 0
        parts: list[Batch] = []
        for index, line in enumerate(lines):
            if size and size + len(line) > BATCH_BYTES:
                parts.append((keys[start:index], lines[start:index]))
                start, size = index, 0
            size += len(line)
        parts.append((keys[start:], lines[start:]))
        self._left_over = parts[:0:-1]
        return parts[0]

    def _watch(self) -> None:
        if self._slow():
            self._spilling = asyncio.create_task(self._spill())
        else:
            self._timer = self._loop.call_later(SLOW_AFTER_S, self._watch)

    async def _spill(self) -> None:
        # One at a time, so that no other spill takes the room that was checked.
        async with self._spool.one_at_a_time, self._lock:
            self._writing, table = True, self._snapshot.view.name
            try:
                self._check_room()
                await asyncio.to_thread(self._snapshot.spill)
            # OSError: the disk can't be asked for its room. RuntimeError: no thread can be started.
            except (SpoolFailed, NoRoomToSpool, OSError, RuntimeError) as failed:
                self._failure = NoRoomToSpool(
                    "this client reads the snapshot too slowly, and the rest of it can't be "
                    f"spooled: {failed}"
                )
                log.warning("snapshot of a slow client given up", table=table, error=str(failed))
                self._snapshot.close()
            else:
                log.info(
                    "snapshot of a slow client spooled", table=table, rows_sent=self._sent_rows
                )

    def _slow(self) -> bool:
        age = self._loop.time() - self._begun
        return age >= SLOW_AFTER_S and self._sent_bytes < age * SLOW_BYTES_PER_S

    def _check_room(self) -> None:
        if self._snapshot.spooled_by_another:
            return
        average = self._sent_bytes // max(self._sent_rows, 1)
        wanted = (self.rows - self._sent_rows) * (average + 32) + DISK_RESERVE
        free = shutil.disk_usage(self._spool.path).free
        if free < wanted:
            raise NoRoomToSpool(
                f"{wanted} bytes, {DISK_RESERVE} of them in reserve, are needed on the disk"
                f" of {self._spool.path}, {free} are free; free some space there, or have"
                " the client read faster"
            )
