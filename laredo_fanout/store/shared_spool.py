"""The spool of a snapshot: rows that slow readers haven't taken yet, in one temporary file for all.

A spool holds a snapshot's rows from some key on to the last one. The first reader that is too slow
writes it from its position; one that is before that writes only what is between; all others write
nothing. Each reads at its own offset.
"""

import os
import tempfile
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import IO, TypeAlias

from laredo_fanout.store.errors import SpoolFailed

_LENGTHS = Struct("<II")
_READ_BYTES = 256 << 10

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

    def new_file(self) -> IO[bytes]:
        """A file that has no name, and goes with its last descriptor.

        :raises SpoolFailed: if it can't be made.
        """
        try:
            return tempfile.TemporaryFile(dir=self._directory)
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

    def __init__(self, after: bytes, file: IO[bytes]) -> None:
        self.after = after
        self.file = file
        self.size = self.taken = 0
        self._keys: list[bytes] = []
        self._offsets: list[int] = []

    def write(self, pairs: list[Pair]) -> None:
        self._keys.append(pairs[0][0])
        self._offsets.append(self.size)
        data = b"".join(_LENGTHS.pack(len(key), len(line)) + key + line for key, line in pairs)
        self.file.write(data)
        self.size += len(data)

    def read(self, after: bytes) -> Iterator[Pair]:
        """The rows beyond this key, at an offset of the reader's own."""
        block = bisect_right(self._keys, after)
        offset = self._offsets[max(block - 1, 0)] if self._offsets else 0
        for pair in _pairs(self.file.fileno(), offset, self.size):
            if pair[0] > after:
                yield pair


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
                piece.file.flush()
            except BaseException as failed:
                self._spools.untake(piece.taken)
                with suppress(OSError):  # the same again: it tries to write what it holds
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
        return sum(piece.size for piece in self._pieces)

    def _write(self, piece: _Piece, batches: Iterable[list[Pair]]) -> None:
        begun = self._pieces[0].after if self._pieces else None
        for pairs in batches:
            missing = pairs if begun is None else [pair for pair in pairs if pair[0] <= begun]
            if missing:
                size = sum(_LENGTHS.size + len(key) + len(line) for key, line in missing)
                self._spools.take(size)
                piece.taken += size
                piece.write(missing)
            if len(missing) < len(pairs):
                return


def _pairs(descriptor: int, offset: int, end: int) -> Iterator[Pair]:
    held, at = b"", 0
    while offset + at < end:
        while len(held) - at < _LENGTHS.size:
            held, at, offset = _more(descriptor, held, at, offset)
        key_size, line_size = _LENGTHS.unpack_from(held, at)
        whole = _LENGTHS.size + key_size + line_size
        while len(held) - at < whole:
            held, at, offset = _more(descriptor, held, at, offset, whole)
        start = at + _LENGTHS.size
        yield held[start : start + key_size], held[start + key_size : at + whole]
        at += whole


def _more(
    descriptor: int, held: bytes, at: int, offset: int, wanted: int = 0
) -> tuple[bytes, int, int]:
    """More of the file behind what is held; ``offset`` is where ``held`` begins."""
    offset, held = offset + at, held[at:]
    read = os.pread(descriptor, max(_READ_BYTES, wanted - len(held)), offset + len(held))
    if not read:
        raise EOFError(f"a spool ends at byte {offset + len(held)}, within a row")
    return held + read, 0, offset
