"""Sorts more than fits into memory: sorted runs in temporary files, merged at the end."""

import heapq
import tempfile
from collections.abc import Iterator
from typing import Any

from laredo_archive.errors import TemporaryFileUnreadable, TemporarySpaceLacking
from laredo_service.record_file import Record, RecordFile

MEMORY_BYTES = 24 * 1024 * 1024
"""Bytes of records that are held before they go to a file."""

MERGED_AT_ONCE = 32
_RECORD_OVERHEAD = 250
"""Bytes that a record takes in addition to its values: a tuple and small integers."""


class Sorter:
    """Records, which are tuples of bytes, int and None, in the order of their first two members.

    No two records may have the same first two members. The files have no names, so
    they vanish with the process.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._limit = memory_bytes
        self._held: list[Record] = []
        self._size = 0
        self._runs: list[tuple[int, RecordFile]] = []

    def add(self, record: Record, size: int) -> None:
        """A record; ``size``: the bytes of its values.

        :raises TemporarySpaceLacking: if there is no room for them.
        """
        self._held.append(record)
        self._size += size + _RECORD_OVERHEAD
        if self._size >= self._limit:
            self._spill()

    def clear(self) -> None:
        """Forget all records."""
        self._held.clear()
        self._size = 0
        for _, file in self._runs:
            file.close()
        self._runs.clear()

    def sorted(self) -> Iterator[Record]:
        """The records in order, once.

        :raises TemporaryFileUnreadable: if a temporary file isn't as it was written.
        """
        self._held.sort(key=_order)
        runs = [_read(file) for _, file in self._runs]
        try:
            yield from heapq.merge(*runs, iter(self._held), key=_order)
        finally:
            self.clear()

    def _spill(self) -> None:
        self._held.sort(key=_order)
        self._runs.append((0, _write(iter(self._held))))
        self._held.clear()
        self._size = 0
        while len(self._runs) >= MERGED_AT_ONCE:
            level = self._runs[-1][0]
            same = [file for run_level, file in self._runs if run_level == level]
            if len(same) < MERGED_AT_ONCE:
                return
            merged = _write(heapq.merge(*map(_read, same), key=_order))
            self._runs = [run for run in self._runs if run[0] != level]
            self._runs.append((level + 1, merged))
            for file in same:
                file.close()


def _order(record: Record) -> tuple[Any, Any]:
    return record[0], record[1]


def _write(records: Iterator[Record]) -> RecordFile:
    try:
        file = RecordFile()
        try:
            file.write(records)
        except BaseException:
            file.close()
            raise
    except OSError as failure:
        raise TemporarySpaceLacking(tempfile.gettempdir(), failure) from failure
    return file


def _read(file: RecordFile) -> Iterator[Record]:
    try:
        yield from file.read()
    except OSError as failure:
        raise TemporaryFileUnreadable(tempfile.gettempdir(), failure) from failure
