"""A temporary file for a transaction that is too big for memory: sorted runs, merged when read.

Each run holds net changes sorted by key, one per key; a later run's changes
happened after an earlier one's. The file has no name from the start where the
system allows it, so a kill leaves nothing behind.
"""

import heapq
import struct
import tempfile
from collections.abc import Iterable, Iterator
from io import BufferedRandom
from operator import itemgetter
from pathlib import Path
from typing import IO, NamedTuple, cast

_HEAD = struct.Struct("<Iii")
_READ_AHEAD_TOTAL = 8 << 20
_READ_AHEAD_LEAST = 16 << 10
_READ_AHEAD_MOST = 1 << 20

Net = tuple[bytes, bytes | None, bytes | None]
"""One key's net change: key, old line, new line."""


class _Run(NamedTuple):
    start: int
    stop: int


class SpillFile:
    """Runs of net changes on disk. Not thread-safe; one user at a time."""

    def __init__(self, directory: Path | None) -> None:
        """``directory`` defaults to the system's temporary one.

        :raises OSError: if no file can be made there.
        """
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115  # closed by close()
            dir=directory, prefix="laredo-spill-"
        )
        self._runs: list[_Run] = []
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._end

    def write(self, changes: Iterable[Net]) -> None:
        """Add one run; ``changes`` are sorted by key.

        :raises OSError: if the disk is full.
        """
        start = self._end
        self._file.seek(start)
        pack, write, end = _HEAD.pack, self._file.write, start
        for key, old, new in changes:
            old_size = -1 if old is None else len(old)
            new_size = -1 if new is None else len(new)
            end += write(
                b"".join((pack(len(key), old_size, new_size), key, old or b"", new or b""))
            )
        self._file.flush()
        self._end = end
        self._runs.append(_Run(start, end))

    def adopt(self, other: "SpillFile") -> None:
        """Take over the runs of ``other``, which come after all of this file's, and close it."""
        for run in other._runs:
            self.write(other._read(run, _READ_AHEAD_MOST))
        other.close()

    def merged(self, last: Iterable[Net]) -> Iterator[Net]:
        """Every key's net change over all runs and ``last`` (sorted by key), in key order.

        A key may come out with its old line equal to its new one; the caller drops it.
        """
        ahead = _READ_AHEAD_TOTAL // max(1, len(self._runs))
        ahead = min(_READ_AHEAD_MOST, max(_READ_AHEAD_LEAST, ahead))
        runs = [self._read(run, ahead) for run in self._runs]
        # merge() is stable: of equal keys the earlier run's comes first.
        merged = heapq.merge(*runs, last, key=itemgetter(0))
        current = next(merged, None)
        if current is None:
            return
        key, old, new = current
        for following in merged:
            if following[0] == key:
                new = following[2]
                continue
            yield key, old, new
            key, old, new = following
        yield key, old, new

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()
        self._runs.clear()

    def _read(self, run: _Run, ahead: int) -> Iterator[Net]:
        at, data, offset = run.start, b"", 0
        while True:
            if len(data) - offset < _HEAD.size or len(data) - offset < self._need(data, offset):
                need = _HEAD.size
                if len(data) - offset >= _HEAD.size:
                    need = self._need(data, offset)
                if at == run.stop and offset == len(data):
                    return
                more = self._read_at(at, min(run.stop - at, max(ahead, need)))
                at += len(more)
                data, offset = data[offset:] + more, 0
                continue
            key_size, old_size, new_size = _HEAD.unpack_from(data, offset)
            start = offset + _HEAD.size
            old_start = start + key_size
            new_start = old_start + max(0, old_size)
            offset = new_start + max(0, new_size)
            yield (
                data[start:old_start],
                None if old_size < 0 else data[old_start:new_start],
                None if new_size < 0 else data[new_start:offset],
            )

    @staticmethod
    def _need(data: bytes, offset: int) -> int:
        key_size, old_size, new_size = _HEAD.unpack_from(data, offset)
        return int(_HEAD.size + key_size + max(0, old_size) + max(0, new_size))

    def _read_at(self, at: int, size: int) -> bytes:
        file = cast("BufferedRandom", self._file)
        file.seek(at)
        data = file.read(size)
        if len(data) != size:
            raise OSError(f"the spill file ends at {at + len(data)} instead of {at + size}")
        return data
