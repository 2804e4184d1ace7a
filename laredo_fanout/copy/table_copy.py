"""The copy of one table: its state (copy_state.py), its SQL, and what its record keeps of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from laredo_fanout.catalog import key_ranges, shape
from laredo_fanout.copy.copy_state import CopyMachine, CopyState
from laredo_fanout.copy.range_reader import append_only_statement, statement
from laredo_fanout.tables.status import CopyProgress

if TYPE_CHECKING:
    from laredo_fanout.catalog.append_only import TransactionFilter
    from laredo_fanout.catalog.key_ranges import Split
    from laredo_fanout.catalog.table_definitions import SourceTable
    from laredo_fanout.copy.copy_state import CopyChunk
    from laredo_fanout.source_options import SourceTableOptions


class TableCopy:
    """One table's copy: what is read, how far it is, and what a restart needs to know.

    Its progress is stored in the transactions that store its rows.
    """

    def __init__(
        self,
        table_id: int,
        options: SourceTableOptions,
        table: SourceTable,
        stored: Mapping[str, Any],
        transaction_filter: TransactionFilter | None = None,
    ) -> None:
        self.table_id = table_id
        """The incarnation that is copied."""
        self.options = options
        self.table = table
        self.shape = shape.of_table(table)
        self.transaction_filter = transaction_filter
        """Of an append-only table, which is read in one piece, with one snapshot."""
        self.beside: int | None = stored.get("beside")
        """Of a re-copy: the live incarnation, if this is a re-copy of it."""
        self.splits: list[Split] | None = None
        """Split points between the key ranges; None: not chosen yet."""
        if "splits" in stored:
            self.splits = [tuple(split) for split in stored["splits"]]
        done = {number for run in stored.get("done", []) for number in range(*run)}
        self.machine = CopyMachine(table.qualified, done, repeatable=transaction_filter is None)
        """Its state, and the chunks that are left to read."""
        self.rows = int(stored.get("rows", 0))
        """Rows read, those read again included."""
        self.not_before = 0.0
        """No chunk is begun before this monotonic time."""
        kept = shape.from_json(stored)
        self.version = table.version if kept is None else kept[1]
        """The table's version when the copy began."""
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
    def phase(self) -> str:
        """Phase in /status; callable from any thread."""
        return self.machine.state.phase

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Pids whose transactions must end before the first chunk is read; from any thread."""
        return self.machine.waiting_for

    @property
    def ranges(self) -> int:
        """Number of ranges; 0 until they are known."""
        return 0 if self.splits is None else len(self.splits) + 1

    @property
    def ranges_done(self) -> int:
        """Number of finished ranges."""
        return len(self.machine.done)

    def plan(self, splits: Sequence[Split]) -> None:
        """The first chunk may be read; what an earlier session finished isn't read again."""
        self.splits = list(splits)
        self._reads_since = time.monotonic()
        self.machine.plan(self.ranges)

    def progress(self, now: float) -> CopyProgress:
        """Progress of the copy; callable from any thread."""
        estimated = int(self.table.rows_estimated)
        seconds = now - self._reads_since if self._reads_since else 0.0
        rate = (self.rows - self._rows_before) / seconds if seconds > 0 else 0.0
        left = max(0, estimated - self.rows) / rate if rate > 0 and estimated > 0 else None
        return CopyProgress(
            self.phase,
            self.rows,
            estimated if estimated >= 0 else None,
            self.ranges,
            self.ranges_done,
            self.waiting_for,
            rate,
            left if self.machine.state in (CopyState.READING, CopyState.READ) else None,
        )

    def has_work(self, now: float) -> bool:
        """True if a reader can begin a chunk."""
        return self.machine.has_work and now >= self.not_before

    def statement(self, reading: CopyChunk) -> bytes:
        """The SQL that reads it."""
        if self.transaction_filter is not None:
            return append_only_statement(self.table)
        if reading.number is None:
            return statement(self.table, key_ranges.keys_condition(self.table, reading.keys))
        return statement(
            self.table, key_ranges.condition(self.table, self.splits or [], reading.number)
        )

    def to_json(self) -> dict[str, Any]:
        """State of the copy for the table's record."""
        stored = {**shape.to_json(self.shape, self.version), "rows": self.rows}
        if self.splits is not None:
            stored["splits"] = [list(split) for split in self.splits]
            stored["done"] = _runs(sorted(self.machine.done))
        if self.beside is not None:
            stored["beside"] = self.beside
        if self.machine.barrier is not None:
            stored["barrier"] = self.machine.barrier
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
