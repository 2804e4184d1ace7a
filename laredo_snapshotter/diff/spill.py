"""The temporary file of a transaction that is too big for memory: sorted runs, merged when read.

Each run holds net changes sorted by key, one per key; a later run's changes
happened after an earlier one's.
"""

import heapq
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import cast

from laredo_service.record_file import RecordFile

Net = tuple[bytes, bytes | None, bytes | None]
"""One key's net change: key, old line, new line."""


class SpillFile:
    """Runs of net changes on disk. Not thread-safe; one user at a time."""

    def __init__(self, directory: Path | None) -> None:
        """``directory`` defaults to the system's temporary one.

        :raises OSError: if no file can be made there.
        """
        self._file = RecordFile(directory)
        self._runs: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._file.size

    def write(self, changes: Iterable[Net]) -> None:
        """Add one run; ``changes`` are sorted by key.

        :raises OSError: if the disk is full.
        """
        self._runs.append(self._file.write(changes))

    def adopt(self, other: "SpillFile") -> None:
        """Take over the runs of ``other``, which come after all of this file's, and close it."""
        for run in other._runs:
            self.write(other._read(run))
        other.close()

    def merged(self, last: Iterable[Net]) -> Iterator[Net]:
        """Every key's net change over all runs and ``last`` (sorted by key), in key order.

        A key may come out with its old line equal to its new one; the caller drops it.
        """
        runs = [self._read(run) for run in self._runs]
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

    def _read(self, run: tuple[int, int]) -> Iterator[Net]:
        return cast("Iterator[Net]", self._file.read(*run))
