"""The copy of one table: which ranges are read, what is left, and what a restart needs to know."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.catalog import key_ranges as ranges
from laredo_fanout.catalog import shape
from laredo_fanout.copy.range_reader import append_only_statement, statement
from laredo_fanout.tables.status import CopyProgress

if TYPE_CHECKING:
    from laredo_fanout.catalog.append_only import TransactionFilter
    from laredo_fanout.catalog.key_ranges import Split
    from laredo_fanout.catalog.table_definitions import SourceTable
    from laredo_fanout.source_options import TableOptions

_KEYS_A_READING = 500


class Phase(StrEnum):
    """Where a table's copy stands."""

    WAITING = "waiting for transactions that were writing to the table"
    READING = "copying"
    SETTLING = "reading rows with unchanged TOAST values again"
    BARRIER = "waiting for the barrier"


class Reading(NamedTuple):
    """Something to read: a range by its number, or the rows with these keys."""

    number: int | None
    keys: tuple[bytes, ...] = ()


class TableCopy:
    """One COPYING incarnation. Its progress is stored in the transactions that store its rows."""

    def __init__(
        self,
        table_id: int,
        options: TableOptions,
        table: SourceTable,
        stored: Mapping[str, Any],
        intake: TransactionFilter | None = None,
    ) -> None:
        self.table_id = table_id
        self.options = options
        self.table = table
        self.shape = shape.of_table(table)
        self.intake = intake
        """Of an append-only table, which is read in one piece, with one snapshot."""
        self.phase = Phase.WAITING
        self.waiting_for: tuple[int, ...] = ()
        self.cancelled = False
        self.failures = 0
        self.not_before = 0.0
        self.rows = int(stored.get("rows", 0))
        self.barrier: str | None = None
        self._version = table.version
        if (kept := shape.from_json(stored)) is not None:
            self._version = kept[1]
        self.splits: list[Split] | None = None
        if "splits" in stored:
            self.splits = [tuple(split) for split in stored["splits"]]
        self._done: set[int] = set()
        for start, stop in stored.get("done", []):
            self._done.update(range(start, stop))
        self._todo: deque[Reading] = deque()
        self.active = 0
        self.beside: int | None = stored.get("beside")
        """Of a re-copy: the live incarnation that it is made beside."""
        self._reads_since = 0.0
        self._rows_before = self.rows

    @property
    def partitions(self) -> frozenset[int]:
        """Oids of the partitions that the table had when the copy began."""
        return frozenset(each.oid for each in self.version.partitions)

    @property
    def shown_id(self) -> int:
        """The incarnation whose readers are affected: the live one, of a re-copy."""
        return self.table_id if self.beside is None else self.beside

    @property
    def version(self) -> Any:
        """The table's version when the copy began."""
        return self._version

    @property
    def ranges(self) -> int:
        """How many ranges there are; 0 until they are known."""
        return 0 if self.splits is None else len(self.splits) + 1

    @property
    def ranges_done(self) -> int:
        """How many of them are finished."""
        return len(self._done)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to read for now."""
        return self.splits is not None and not self._todo and not self.active

    def begin(self, splits: Sequence[Split]) -> None:
        """The first chunk may be read; what an earlier run finished isn't read again."""
        self.phase = Phase.READING
        self.waiting_for = ()
        self.splits = list(splits)
        self._reads_since = time.monotonic()
        self._todo.extend(
            Reading(number) for number in range(self.ranges) if number not in self._done
        )

    def read_again(self, keys: Iterable[bytes]) -> None:
        """Have the rows with these keys read once more."""
        wanted = list(keys)
        self.phase = Phase.SETTLING
        for start in range(0, len(wanted), _KEYS_A_READING):
            self._todo.append(Reading(None, tuple(wanted[start : start + _KEYS_A_READING])))

    def progress(self, now: float) -> CopyProgress:
        """How far it is; from any thread."""
        estimated = int(self.table.rows_estimated)
        seconds = now - self._reads_since if self._reads_since else 0.0
        rate = (self.rows - self._rows_before) / seconds if seconds > 0 else 0.0
        left = max(0, estimated - self.rows) / rate if rate > 0 and estimated > 0 else None
        return CopyProgress(
            str(self.phase),
            self.rows,
            estimated if estimated >= 0 else None,
            self.ranges,
            self.ranges_done,
            self.waiting_for,
            rate,
            left if self.phase is Phase.READING else None,
        )

    def has_work(self, now: float) -> bool:
        """Whether a reader can begin something."""
        return bool(self._todo) and now >= self.not_before

    def take(self) -> Reading:
        """What to read next."""
        self.active += 1
        return self._todo.popleft()

    def finish(self, reading: Reading) -> None:
        """Its rows are in the store's transaction."""
        self.active -= 1
        self.failures = 0
        if reading.number is not None:
            self._done.add(reading.number)

    def give_back(self, reading: Reading) -> None:
        """It must be read again from its start."""
        self.active -= 1
        self._todo.appendleft(reading)

    def statement(self, reading: Reading) -> bytes:
        """The SQL that reads it."""
        if self.intake is not None:
            return append_only_statement(self.table)
        if reading.number is None:
            return statement(self.table, ranges.keys_condition(self.table, reading.keys))
        return statement(
            self.table, ranges.condition(self.table, self.splits or [], reading.number)
        )

    def to_json(self) -> dict[str, Any]:
        """What the table's record keeps."""
        stored = {**shape.to_json(self.shape, self._version), "rows": self.rows}
        if self.splits is not None:
            stored["splits"] = [list(split) for split in self.splits]
            stored["done"] = _runs(sorted(self._done))
        if self.beside is not None:
            stored["beside"] = self.beside
        if self.barrier is not None:
            stored["barrier"] = self.barrier
        return stored


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending numbers as [first, after the last] of each unbroken run."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found
