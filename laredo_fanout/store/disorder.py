"""Live tables whose journal isn't in commit order: what each change does, and the end of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from laredo_fanout.store import layout
from laredo_fanout.store.early import EarlyRows, Survivor
from laredo_fanout.store.journal import Entries
from laredo_model import key as key_
from laredo_model.change import Action

if TYPE_CHECKING:
    from laredo_fanout.store.changes import TableChanges
    from laredo_fanout.store.disk import Reserve
    from laredo_fanout.store.environment import Databases
    from laredo_fanout.store.table import Disorder, TableRecord

Append = Callable[["TableRecord", Entries, bool], "TableRecord"]
"""Writes entries to the journal. The flag: their first transaction is the one that the entries
before may have left open."""

_STEP = 1000


class Tables:
    """The tables out of order, within one write transaction.

    ``empty`` gives a table new, empty rows; ``take_space`` a space never used before;
    ``discard`` has one removed later.
    """

    def __init__(
        self,
        transaction: Any,
        databases: Databases,
        reserve: Reserve,
        *,
        empty: Callable[[TableRecord], TableRecord],
        take_space: Callable[[], int],
        discard: Callable[[int], None],
    ) -> None:
        self._transaction = transaction
        self._databases = databases
        self._reserve = reserve
        self._empty = empty
        self._take_space = take_space
        self._discard = discard
        self._rows: dict[int, EarlyRows] = {}

    def begun(self, record: TableRecord, begun: Disorder) -> TableRecord:
        """From here on the last position wins."""
        return replace(
            record, disorders=(*record.disorders, begun._replace(marks=self._take_space()))
        )

    def ended(self, record: TableRecord, position: int, time_us: int) -> TableRecord:
        """The rows are those of ``position``."""
        disorder = record.disorder
        assert disorder is not None
        self._discard(disorder.marks)
        over = disorder._replace(marks=0, last=record.sequence, end=position, end_time_us=time_us)
        return replace(record, disorders=(*record.disorders[:-1], over))

    def rows_of(self, record: TableRecord) -> EarlyRows:
        """The rows of a table that is out of order, or about to be."""
        marks = 0 if record.disorder is None else record.disorder.marks
        rows = self._rows.get(record.space) if marks else None
        if rows is None:
            rows = EarlyRows(
                self._transaction,
                self._databases,
                self._reserve,
                record.qualified,
                space=record.space,
                marks=marks,
            )
            if marks:
                self._rows[record.space] = rows
        return rows

    def apply(
        self, record: TableRecord, changes: TableChanges, append: Append, *, early: bool
    ) -> tuple[TableRecord, int]:
        """Apply and journal these; the table, and how many bytes of rows were in memory."""
        effects = _Effects(changes)
        size = 0
        for index, (action, key, line) in enumerate(
            zip(changes.actions, changes.keys, changes.lines, strict=True)
        ):
            position = changes.positions[effects.transaction_of(index)]
            if action == Action.TRUNCATE:
                record = self._truncate(record, position, effects, index, append)
                continue
            effect = self.rows_of(record).take(action, key, line, position, early=early)
            if effect is None:
                continue
            effects.add(index, effect.action, key, effect.line, effect.old)
            size += len(effect.line) + len(effect.old)
            added = (effect.action == Action.INSERT) - (effect.action == Action.DELETE)
            if added:
                record = replace(record, rows=record.rows + added)
        return append(record, *effects.taken()), size

    def _truncate(
        self,
        record: TableRecord,
        position: int,
        effects: _Effects,
        index: int,
        append: Append,
    ) -> TableRecord:
        """Empty it, but for the rows that later transactions changed."""
        before, disorder = self.rows_of(record), record.disorder
        assert disorder is not None
        moved = disorder._replace(marks=self._take_space())
        record = replace(self._empty(record), disorders=(*record.disorders[:-1], moved))
        effects.add(index, Action.TRUNCATE, b"", b"", b"")
        for survivors in before.survivors(position, self.rows_of(record), _STEP):
            for survivor in survivors:
                effects.add(index, Action.INSERT, _key(survivor, record), survivor.line, b"")
            record = replace(record, rows=record.rows + len(survivors))
            if len(effects) >= _STEP:
                record = append(record, *effects.taken(until=index))
        self._discard(disorder.marks)
        return record


class _Effects:
    """Gathers what changes did, by the transactions that they are of."""

    def __init__(self, changes: TableChanges) -> None:
        self._changes = changes
        self._ends = list(accumulate(changes.counts))
        self._counts = [0] * len(changes.counts)
        self._first = 0
        """The transaction that the entries before may have left open."""
        self._actions = bytearray()
        self._keys: list[bytes] = []
        self._lines: list[bytes] = []
        self._olds: list[bytes] = []

    def __len__(self) -> int:
        return len(self._actions)

    def transaction_of(self, index: int) -> int:
        """Which transaction the change with this index is of."""
        return bisect_right(self._ends, index)

    def add(self, index: int, action: Action, key: bytes, line: bytes, old: bytes) -> None:
        """An effect of the change with this index."""
        self._counts[self.transaction_of(index)] += 1
        self._actions.append(action)
        self._keys.append(key)
        self._lines.append(line)
        self._olds.append(old)

    def taken(self, *, until: int | None = None) -> tuple[Entries, bool]:
        """What was gathered; ``until`` a change whose transaction has more, or to the end.

        Also whether the first transaction is the one that was left open before.
        """
        changes = self._changes
        left = [number for number, count in enumerate(self._counts) if count]
        last = len(self._counts) - 1 if until is None else self.transaction_of(until)
        is_open = changes.open if until is None else True
        entries = Entries(
            bytes(self._actions),
            self._keys,
            self._lines,
            self._olds,
            [self._counts[number] for number in left],
            [changes.positions[number] for number in left],
            [changes.times_us[number] for number in left],
            is_open and bool(left) and left[-1] == last,
            False,
            True,
        )
        goes_on = bool(left) and left[0] == self._first
        self._counts = [0] * len(self._counts)
        self._first = last
        self._actions, self._keys = bytearray(), []
        self._lines, self._olds = [], []
        return entries, goes_on


def _key(survivor: Survivor, record: TableRecord) -> bytes:
    if layout.is_cut(bytes(layout.PREFIX_BYTES) + survivor.stored):
        return key_.of_line(survivor.line, record.key_fields)
    return survivor.stored
