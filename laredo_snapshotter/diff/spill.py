"""The temporary file of a transaction that is too big for memory: sorted runs, merged when read.

Each run holds net changes sorted by key, one per key; a later run's changes happened after an
earlier one's. A merge has a block of each run in memory, so runs are merged into longer ones before
there are many, in a file for each length.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import cast

from laredo_service.record_file import RecordFile

Net = tuple[bytes, bytes | None, bytes | None]
"""One key's net change: key, old line, new line."""

MOST_RUNS = 32
"""Number of runs of one length that are merged into one run of the next length."""


class _Level:
    """Runs of about one length, oldest first."""

    def __init__(self, directory: Path | None) -> None:
        self.file = RecordFile(directory)
        self._extents: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._extents)

    def add(self, changes: Iterable[Net]) -> None:
        self._extents.append(self.file.write(changes))

    def runs(self) -> Sequence[Iterator[Net]]:
        return [cast("Iterator[Net]", self.file.read(*each)) for each in self._extents]


class SpillFile:
    """Runs of net changes on disk. Not thread-safe; one user at a time."""

    def __init__(self, directory: Path | None) -> None:
        """``directory`` defaults to the system's temporary one.

        :raises OSError: if no file can be made there.
        """
        self._directory = directory
        self._levels = [_Level(directory)]
        """Those of the shortest runs first: they are the newest."""

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(level.file.size for level in self._levels)

    def write(self, changes: Iterable[Net]) -> None:
        """Add one run; ``changes`` are sorted by key.

        :raises OSError: if the disk is full.
        """
        self._add(changes, 0)

    def adopt(self, other: "SpillFile") -> None:
        """Take over the runs of ``other``, which come after all of this file's, and close it."""
        for run in other._runs():
            self.write(run)
        other.close()

    def merged(self, last: Iterable[Net]) -> Iterator[Net]:
        """Every key's net change over all runs and ``last`` (sorted by key), in key order.

        A key may come out with its old line equal to its new one; the caller drops it.
        """
        return _merged([*self._runs(), last])

    def close(self) -> None:
        """Give the disk space back."""
        for level in self._levels:
            level.file.close()
        self._levels = []

    def _runs(self) -> list[Iterable[Net]]:
        """All runs, oldest first."""
        return [run for level in reversed(self._levels) for run in level.runs()]

    def _add(self, changes: Iterable[Net], number: int) -> None:
        if number == len(self._levels):
            self._levels.append(_Level(self._directory))
        level = self._levels[number]
        level.add(changes)
        if len(level) == MOST_RUNS:
            self._add(_merged(level.runs()), number + 1)
            self._levels[number] = _Level(self._directory)
            level.file.close()


def _merged(runs: Sequence[Iterable[Net]]) -> Iterator[Net]:
    """Every key's net change over all runs, in key order."""
    # merge() is stable: of equal keys the earlier run's comes first.
    merged = heapq.merge(*runs, key=itemgetter(0))
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
