"""Spools of snapshots: temporary files of rows, which slow readers of one snapshot share.

A spool has a snapshot's rows from some key on to the last one. The first reader that is too slow
writes all its remaining rows. A reader at an earlier key writes only the rows up to the spool's
first; all others write nothing. Each reads at its own offset.
"""

import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from laredo_fanout.store.errors import SpoolFailed
from laredo_service import figures, record_file
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
        """The snapshot's spool, new if there is none, until :meth:`give_back`."""
        with self._lock:
            spool = self._open.get(snapshot)
            if spool is None:
                spool = self._open[snapshot] = SharedSpool(self, snapshot)
            spool.readers += 1
            return spool

    def give_back(self, spool: "SharedSpool") -> None:
        """Return a borrowed spool; its files are closed with the last reader."""
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
        """Create a file without a name.

        :raises SpoolFailed: if it can't be created.
        """
        try:
            return RecordFile(self._directory)
        except OSError as failed:
            raise self.failed(failed) from failed

    def take(self, size: int) -> None:
        """Count bytes that are about to be written.

        :raises SpoolFailed: if there would be more than ``max_bytes``.
        """
        with self._lock:
            if self._max_bytes is not None and self.bytes + size > self._max_bytes:
                why = f"all {figures.size(self._max_bytes)} of fanout.spool_max_size are in use"
                raise SpoolFailed(str(self._where), why)
            self.bytes += size

    def untake(self, size: int) -> None:
        """Subtract bytes that were counted and weren't written."""
        with self._lock:
            self.bytes -= size

    def failed(self, why: OSError) -> SpoolFailed:
        """The error to raise for an error of the system."""
        return SpoolFailed(str(self._where), str(why))

    @property
    def _where(self) -> str | Path:
        return self._directory or tempfile.gettempdir()


class _Piece:
    """A file with the rows after one key, up to the start of the next piece."""

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
        """The rows after this key, read at an offset of the caller's own."""
        number = bisect_right(self._keys, after)
        offset = self._offsets[max(number - 1, 0)] if self._offsets else 0
        for key, line in self.file.read(offset):
            if key > after:
                yield key, line


class SharedSpool:
    """The spool of one snapshot; SharedSpools counts its ``readers``."""

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
        """Write the rows after this key that the spool lacks; ``batches`` has them all, in order.

        If ``batches`` raises an error, none of its rows stay.

        :raises SpoolFailed: if there is no room; the spool is unchanged then.
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
        """The rows after this key, in order; call :meth:`fill` first."""
        pieces = self._pieces
        first = max(number for number, each in enumerate(pieces) if each.after <= after)
        for piece in pieces[first:]:
            yield from piece.read(after)

    def close(self) -> int:
        """Close the files; returns the number of their bytes."""
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
