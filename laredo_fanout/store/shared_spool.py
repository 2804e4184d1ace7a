"""The spool of a snapshot: rows that slow readers haven't taken yet, in one temporary file for all.

A spool holds a snapshot's rows from some key on to the last one. The first reader that is too slow
writes it from its position; one that is before that writes only what is between; all others write
nothing. Each reads at its own offset.
"""

import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from laredo_fanout.store.errors import SpoolFailed
from laredo_service import record_file
from laredo_service.record_file import RecordFile

Pair = tuple[bytes, bytes]
SnapshotId: TypeAlias = tuple[int, int, int]
"""Identity of the rows: key space, incarnation and newest entry."""


class SharedSpools:
    """The spools below one directory, with at most ``max_bytes`` in all. Threads may share it."""

    def __init__(self, directory: Path | None, max_bytes: int | None = None) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._open: dict[SnapshotId, SharedSpool] = {}
        self._lock = threading.Lock()
        self.bytes = 0

    def borrow(self, snapshot: SnapshotId) -> "SharedSpool":
        """The snapshot's spool, new if there is none; give it back."""
        with self._lock:
            spool = self._open.get(snapshot)
            if spool is None:
                spool = self._open[snapshot] = SharedSpool(self, snapshot)
            spool.readers += 1
            return spool

    def give_back(self, spool: "SharedSpool") -> None:
        """The last reader's end is the files'."""
        with self._lock:
            spool.readers -= 1
            if spool.readers:
                return
            del self._open[spool.snapshot]
            self.bytes -= spool.close()

    def holds(self, snapshot: SnapshotId, after: bytes) -> bool:
        """True if a spool already has all rows of the snapshot after this key."""
        with self._lock:
            spool = self._open.get(snapshot)
            return spool is not None and spool.holds(after)

    def new_file(self) -> RecordFile:
        """A file that has no name, and goes with its last descriptor.

        :raises SpoolFailed: if it can't be made.
        """
        try:
            return RecordFile(self._directory)
        except OSError as failed:
            raise self.failed(failed) from failed

    def take(self, size: int) -> None:
        """Count bytes that are about to be written.

        :raises SpoolFailed: there would be more than ``max_bytes``.
        """
        with self._lock:
            if self._max_bytes is not None and self.bytes + size > self._max_bytes:
                why = f"its {self._max_bytes} bytes are in use (fanout.spool_max_size)"
                raise SpoolFailed(str(self._where), why)
            self.bytes += size

    def untake(self, size: int) -> None:
        """They weren't written after all."""
        with self._lock:
            self.bytes -= size

    def failed(self, why: OSError) -> SpoolFailed:
        """The error to raise for this one."""
        return SpoolFailed(str(self._where), str(why))

    @property
    def _where(self) -> str | Path:
        return self._directory or tempfile.gettempdir()


class _Piece:
    """A file with the rows after one key, up to where the next piece begins."""

    def __init__(self, after: bytes, file: RecordFile) -> None:
        self.after = after
        self.file = file
        self.taken = 0
        self._keys: list[bytes] = []
        self._offsets: list[int] = []

    def write(self, first: bytes, block: bytes) -> None:
        self._keys.append(first)
        self._offsets.append(self.file.size)
        self.file.append(block)

    def read(self, after: bytes) -> Iterator[Pair]:
        """The rows beyond this key, at an offset of the reader's own."""
        number = bisect_right(self._keys, after)
        offset = self._offsets[max(number - 1, 0)] if self._offsets else 0
        for key, line in self.file.read(offset):
            if key > after:
                yield key, line


class SharedSpool:
    """One snapshot's. ``readers`` is SharedSpools' own count."""

    def __init__(self, spools: SharedSpools, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.readers = 0
        self._spools = spools
        self._pieces: list[_Piece] = []
        self._writing = threading.Lock()

    def holds(self, after: bytes) -> bool:
        """True if the spool has all rows after this key."""
        return bool(self._pieces) and self._pieces[0].after <= after

    def fill(self, after: bytes, batches: Iterable[list[Pair]]) -> None:
        """Write the rows beyond this key that it doesn't have; they come in order, to the last.

        Nothing stays of batches that break off with an error.

        :raises SpoolFailed: if there is no room; it is then as before.
        """
        with self._writing:
            if self.holds(after):
                return
            piece = _Piece(after, self._spools.new_file())
            try:
                self._write(piece, batches)
            except BaseException as failed:
                self._spools.untake(piece.taken)
                piece.file.close()
                if isinstance(failed, OSError):
                    raise self._spools.failed(failed) from failed
                raise
            self._pieces = [piece, *self._pieces]

    def read(self, after: bytes) -> Iterator[Pair]:
        """The rows beyond this key, in order; it holds them."""
        pieces = self._pieces
        first = max(number for number, each in enumerate(pieces) if each.after <= after)
        for piece in pieces[first:]:
            yield from piece.read(after)

    def close(self) -> int:
        """Let the files go; how many bytes they had."""
        for piece in self._pieces:
            piece.file.close()
        return sum(piece.taken for piece in self._pieces)

    def _write(self, piece: _Piece, batches: Iterable[list[Pair]]) -> None:
        begun = self._pieces[0].after if self._pieces else None
        for pairs in batches:
            missing = pairs if begun is None else [pair for pair in pairs if pair[0] <= begun]
            for (first, _), block in record_file.blocks(missing):
                self._spools.take(len(block))
                piece.taken += len(block)
                piece.write(first, block)
            if len(missing) < len(pairs):
                return
