"""Rows of a table: the stream's changes, and copied rows where no row is yet.

The rows of a live table are lines. A table that is copied also has tombstones (the
stream deleted the row, so a copied one must not come back) and partial lines (the
stream didn't send some columns; a copied row fills them). Marks list both, so that
the barrier needn't scan the table. A mark may be stale; the value decides. Further
marks name the rows that the stream wrote whole. A copied row may be newer than the
stream's position, so it can't serve as the old row of a delete, nor as the source of
columns for the key to which the row moved.

Lines and partial lines are sealed (seal.py): a row whose seal doesn't fit its key and line was
damaged on disk, and is never used.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, repeat
from typing import Any, NamedTuple

from laredo_fanout.store import environment, seal
from laredo_fanout.store.disk import Reserve
from laredo_fanout.store.environment import Databases, WriteContext
from laredo_fanout.store.errors import RowDamaged, RowIncomplete, TableClosed
from laredo_fanout.store.journal import Entries, Journal
from laredo_fanout.store.table import Status, TableRecord
from laredo_model import key as key_
from laredo_model import line as line_
from laredo_model.line import Action

_RUNS = re.compile(rb"[\x01\x02]+|\x03+|\x04", re.DOTALL)
_SORT_FROM = 32
_SLICE = 100
"""Number of rows to write at a time, for half a millisecond: a unix socket is full in little more.
"""
_SWEEP_STEP = 1000


class Run(NamedTuple):
    """Adjacent changes of one kind: upserts, deletes, or a TRUNCATE."""

    start: int
    stop: int
    kind: Action


def runs(actions: bytes | bytearray) -> Iterator[Run]:
    """Split the changes into runs."""
    for match in _RUNS.finditer(actions):
        first = actions[match.start()]
        kind = Action.UPDATE if first <= Action.UPDATE else Action(first)
        yield Run(match.start(), match.end(), kind)


class Rows:
    """The rows of one space, within one write transaction."""

    def __init__(self, context: WriteContext, table: str, space: int) -> None:
        self._table = table
        self._reserve = context.disk.reserve
        self._prefix = environment.prefix(space)
        self._state = context.transaction.cursor(db=context.databases.state)
        self._marks = context.transaction.cursor(db=context.databases.marks)
        self._last_deleted: bytes | None = None
        self._added = 0

    def take_added(self) -> int:
        """Growth of the sum of the rows' seals since the last call, modulo 2^64."""
        added, self._added = self._added, 0
        return added

    def upsert(
        self, actions: Sequence[int], keys: list[bytes], lines: list[bytes], *, live: bool
    ) -> Generator[None, None, tuple[list[bytes], list[bytes | None]]]:
        """Write new lines; yields after each slice.

        Returns the lines, completed as far as the missing columns are known, and the values
        that they replaced: None for no row, b"" for a tombstone.

        :raises RowIncomplete: if a line of a live table stays partial.
        :raises RowDamaged: if a row that is replaced isn't what was written.
        """
        stored = self._stored(keys, sum(map(len, lines)))
        if min(lines).startswith(line_.PARTIAL):
            lines, olds = self._fill_and_replace(actions, keys, stored, lines, live=live)
        else:
            olds = yield from self._replace(stored, lines)
            if not live:
                self._mark_streamed(stored)
        self._last_deleted = None
        return lines, olds

    def delete(self, keys: list[bytes]) -> list[bytes | None]:
        """Delete rows of a live table; returns their values.

        :raises RowDamaged: if a row isn't what was written.
        """
        stored = self._stored(keys, 0)
        olds: list[bytes | None] = list(map(self._state.pop, stored))
        self._check_replaced(stored, olds)
        self._last_deleted = _line(olds[-1])
        return olds

    def bury(self, keys: list[bytes]) -> list[bytes | None]:
        """Replace rows of a table that is copied by tombstones; returns their values.

        :raises RowDamaged: if a row isn't what was written.
        """
        stored = self._stored(keys, 0)
        self._stored(keys, 0)  # room for their marks
        is_streamed = self._is_streamed(stored[-1])
        olds: list[bytes | None] = list(
            map(self._state.replace, stored, repeat(environment.TOMBSTONE, len(stored)))
        )
        self._check_replaced(stored, olds)
        for key in stored:
            self._marks.put(environment.mark_key(environment.TOMBSTONE_MARK, key), b"")
            self._marks.pop(environment.mark_key(environment.STREAMED_MARK, key))
        self._last_deleted = _line(olds[-1]) if is_streamed else None
        return olds

    def widest(self, keys: list[bytes]) -> int:
        """Size of the longest of these rows' lines; 0 if there is none."""
        stored = environment.stored_keys(self._prefix, keys)
        return max((len(self._value(key) or b"") for key in stored), default=0)

    def fill(self, keys: list[bytes], lines: list[bytes]) -> int:
        """Write copied rows where no row is yet, and missing columns; returns the rows added."""
        if not keys:
            return 0
        stored = self._stored(keys, sum(map(len, lines)))
        rows = sorted(zip(stored, lines, strict=True))
        there: list[tuple[bytes, bytes]] = []
        for start in range(0, len(rows), _SLICE):
            there += self._add(rows[start : start + _SLICE])
        if there and self.has_marks(environment.PARTIAL_MARK):
            for key, line in there:
                if self._marks.set_key(environment.mark_key(environment.PARTIAL_MARK, key)):
                    self._complete(key, line)
                    # Otherwise each barrier would visit it.
                    self._reserve(1, 0)
                    self._marks.delete()
        return len(rows) - len(there)

    def _add(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Write rows, in order of their keys, where no row is yet; returns the others."""
        stored = [key for key, _ in rows]
        values, total = seal.sealed(stored, [line for _, line in rows])
        self._added += total
        if not self._state.set_range(stored[0]) or self._state.key() > stored[-1]:
            # No row is between them, as usual when keys come in order.
            pairs = list(zip(stored, values, strict=True))
            _, added = self._state.putmulti(pairs, overwrite=False)
            if added == len(rows):
                return []
            there = [row for before, row in pairwise(rows) if before[0] == row[0]]
        else:
            put = map(self._state.put, stored, values, repeat(True), repeat(False))
            there = [row for row, is_new in zip(rows, put, strict=True) if not is_new]
        if there:
            _, refused = seal.sealed([key for key, _ in there], [line for _, line in there])
            self._added -= refused
        return there

    def numbered(self, digests: Sequence[bytes]) -> list[bytes]:
        """Keys for rows that are added to a table without a key, as ``key.numbered`` makes them.

        b"" is a TRUNCATE, after which numbers begin again. Numbers continue those of the stored
        rows, so write the rows before the next call.
        """
        numbers: dict[bytes, int] = {}
        is_empty = False
        keys: list[bytes] = []
        for digest in digests:
            if not digest:
                is_empty = True
                numbers.clear()
                keys.append(b"")
                continue
            number = numbers.get(digest)
            if number is None:
                number = 0 if is_empty else self._highest_number(digest)
            numbers[digest] = number + 1
            keys.append(key_.numbered(digest, number + 1))
        return keys

    def _highest_number(self, digest: bytes) -> int:
        """Highest number of a row with this digest in a table without a key; 0 if there is none."""
        first = self._prefix + digest + b"-"
        beyond = self._prefix + digest + b"."
        found = self._state.prev() if self._state.set_range(beyond) else self._state.last()
        stored = self._state.key() if found else b""
        return key_.number_of(stored) if stored.startswith(first) else 0

    def has_marks(self, kind: bytes) -> bool:
        """True if any mark of this kind exists, stale ones included."""
        start = self._prefix + kind
        return bool(self._marks.set_range(start)) and self._marks.key().startswith(start)

    def partial_keys(self) -> Iterator[bytes]:
        """The keys of the rows that still lack columns."""
        start = self._prefix + environment.PARTIAL_MARK
        found = self._marks.set_range(start)
        while found and self._marks.key().startswith(start):
            value = self._value(environment.marked_key(self._marks.key()))
            if value and line_.is_partial(value):
                yield self._marks.value()
            found = self._marks.next()

    def sweep(self) -> None:
        """Drop tombstones and marks, at the barrier."""
        marks = 0
        found = self._marks.set_range(self._prefix)
        while found and self._marks.key().startswith(self._prefix):
            if marks % _SWEEP_STEP == 0:
                self._reserve(2 * _SWEEP_STEP, 0)
            marks += 1
            stored = environment.marked_key(self._marks.key())
            if self._value(stored) == environment.TOMBSTONE:
                self._state.delete()
            found = self._marks.delete() and bool(self._marks.key())

    def _stored(self, keys: list[bytes], size: int) -> list[bytes]:
        """Stored keys of these rows, after space for one change of each was reserved.

        The lines of all changes have ``size`` bytes.
        """
        self._reserve(len(keys), size + sum(map(len, keys)) + len(keys) * seal.SEAL_BYTES)
        return environment.stored_keys(self._prefix, keys)

    def _mark_streamed(self, stored: Sequence[bytes]) -> None:
        self._reserve(len(stored), sum(map(len, stored)))
        self._marks.putmulti(
            [(environment.mark_key(environment.STREAMED_MARK, key), b"") for key in stored]
        )

    def _is_streamed(self, stored: bytes) -> bool:
        return bool(self._marks.set_key(environment.mark_key(environment.STREAMED_MARK, stored)))

    def _value(self, stored: bytes) -> bytes | None:
        """The stored value; the state cursor is put on it."""
        return self._state.value() if self._state.set_key(stored) else None

    def _check_replaced(self, stored: list[bytes], values: list[bytes | None]) -> None:
        """Compare the replaced values with their seals."""
        total, damaged = seal.checked(stored, values)
        if damaged >= 0:
            raise RowDamaged(self._table, stored[damaged][environment.PREFIX_BYTES :])
        self._added -= total

    def _put(self, stored: bytes, line: bytes) -> None:
        values, added = seal.sealed([stored], [line])
        self._added += added
        self._state.put(stored, values[0])

    def _replace(
        self, stored: list[bytes], lines: list[bytes]
    ) -> Generator[None, None, list[bytes | None]]:
        count = len(stored)
        if count < _SORT_FROM:
            return self._replace_slice(stored, lines)
        # In key order neighbours share pages; sorting is stable, so that several
        # changes of one key stay in their order.
        order = sorted(range(count), key=stored.__getitem__)
        olds: list[bytes | None] = [None] * count
        for start in range(0, count, _SLICE):
            part = order[start : start + _SLICE]
            found = self._replace_slice([stored[i] for i in part], [lines[i] for i in part])
            for index, old in zip(part, found, strict=True):
                olds[index] = old
            yield
        return olds

    def _replace_slice(self, stored: list[bytes], lines: list[bytes]) -> list[bytes | None]:
        """Replace few rows at a time, whose sealed values are still in the processor's cache."""
        values, added = seal.sealed(stored, lines)
        olds: list[bytes | None] = list(map(self._state.replace, stored, values))
        self._added += added
        self._check_replaced(stored, olds)
        return olds

    def _fill_and_replace(
        self,
        actions: Sequence[int],
        keys: list[bytes],
        stored: list[bytes],
        lines: list[bytes],
        *,
        live: bool,
    ) -> tuple[list[bytes], list[bytes | None]]:
        whole: list[bytes] = []
        olds: list[bytes | None] = []
        for index, line in enumerate(lines):
            value = self._value(stored[index])
            self._check_replaced([stored[index]], [value])
            old = _line(value)
            exact = not live
            if line_.is_partial(line):
                moved = self._last_deleted if index == 0 else None
                if moved and actions[0] == Action.INSERT:
                    line = line_.fill(line, moved)  # noqa: PLW2901
                if old and line_.is_partial(line):
                    line = line_.fill(line, old)  # noqa: PLW2901
                    exact = exact and self._is_streamed(stored[index])
                if line_.is_partial(line):
                    if live:
                        raise RowIncomplete(self._table, keys[index])
                    mark = environment.mark_key(environment.PARTIAL_MARK, stored[index])
                    self._reserve(1, 2 * len(keys[index]))
                    self._marks.put(mark, keys[index])
                    exact = False
                self._reserve(1, len(line) + seal.SEAL_BYTES)
            self._put(stored[index], line)
            if exact:
                self._mark_streamed([stored[index]])
            whole.append(line)
            olds.append(value)
        return whole, olds

    def _complete(self, stored: bytes, line: bytes) -> None:
        value = self._value(stored)
        if value and line_.is_partial(value):
            self._check_replaced([stored], [value])
            whole = line_.fill(value[: -seal.SEAL_BYTES], line)
            self._reserve(1, len(whole) + seal.SEAL_BYTES)
            self._put(stored, whole)


def _line(value: bytes | None) -> bytes | None:
    """The line of a stored value; None and tombstones as they are."""
    return value[: -seal.SEAL_BYTES] if value else value


@dataclass(slots=True)
class TableChanges:
    """Changes of one table, in commit order, for ``Transaction.apply``.

    The first three have one element for each change, the next three one for each PostgreSQL
    transaction. A change of the key is a DELETE followed by an INSERT. Lines may be partial
    (unchanged TOAST): an INSERT right after a DELETE takes missing columns from the deleted row,
    any other change from the stored row.
    """

    #: One byte each, line.Action.
    actions: bytearray = field(default_factory=bytearray)
    #: Keys of the rows; b"" for a TRUNCATE.
    keys: list[bytes] = field(default_factory=list)
    #: Rows as JSON; b"" for DELETE and TRUNCATE.
    lines: list[bytes] = field(default_factory=list)
    #: Number of the transaction's changes.
    counts: list[int] = field(default_factory=list)
    #: The end of the transaction's commit record.
    positions: list[int] = field(default_factory=list)
    #: The transaction's commit time, microseconds since 1970.
    times_us: list[int] = field(default_factory=list)
    #: True if the last transaction goes on in the next piece.
    open: bool = False

    def __len__(self) -> int:
        return len(self.actions)

    def after(self, position: int) -> "TableChanges":
        """The transactions after ``position``."""
        done = bisect_right(self.positions, position)
        if not done:
            return self
        skipped = sum(self.counts[:done])
        changes = self.actions[skipped:], self.keys[skipped:], self.lines[skipped:]
        commits = self.counts[done:], self.positions[done:], self.times_us[done:]
        return TableChanges(*changes, *commits, self.open and done < len(self.positions))

    def parts(self, step: Callable[[], int]) -> Iterator["TableChanges"]:
        """Split the changes into parts; before each one ``step`` returns its limit."""
        if len(self) <= step():
            yield self
            return
        start = transaction = used = 0
        while start < len(self):
            stop = min(len(self), start + step())
            first, rest = transaction, stop - start
            counts = []
            while rest:
                taken = min(rest, self.counts[transaction] - used)
                counts.append(taken)
                rest, used = rest - taken, used + taken
                if used == self.counts[transaction]:
                    transaction, used = transaction + 1, 0
            last = first + len(counts)
            yield TableChanges(
                self.actions[start:stop],
                self.keys[start:stop],
                self.lines[start:stop],
                counts,
                self.positions[first:last],
                self.times_us[first:last],
                self.open if stop == len(self) else used > 0,
            )
            start = stop


@dataclass(slots=True)
class Spaces:
    """The spaces of all tables' rows, within one write transaction."""

    context: WriteContext
    _rows: dict[int, Rows] = field(default_factory=dict)

    def rows_of(self, record: TableRecord) -> Rows:
        """The rows of this incarnation."""
        rows = self._rows.get(record.space)
        if rows is None:
            rows = Rows(self.context, record.qualified, record.space)
            self._rows[record.space] = rows
        return rows

    def truncate(self, record: TableRecord) -> TableRecord:
        """Give the table a new, empty space; the old one's rows are removed later."""
        self.context.discard(environment.GARBAGE_SPACE, record.space)
        space = self.context.take_space()
        generation = record.generation + 1
        return replace(record, rows=0, checksum=0, generation=generation, space=space)

    def count(self, record: TableRecord, difference: int) -> TableRecord:
        """The record with ``difference`` more rows, and the new checksum."""
        added = self.rows_of(record).take_added()
        checksum = (record.checksum + added) % seal.MODULUS
        return replace(record, rows=record.rows + difference, checksum=checksum)


# Applying the stream's changes to a table's rows and journal, live or while it is copied.

_PART_BYTES = 8 << 20
_STEPS_GROWTH, _MOST_CHANGES = 8, 20_000
_SAMPLED = 8


@dataclass(slots=True)
class Applier:
    """Application of changes within one write transaction, whose table records it updates.

    The rows that one step has in memory are bounded by bytes.
    """

    context: WriteContext
    spaces: Spaces
    journal: Journal
    unfinished: set[int] = field(default_factory=set)
    """Ids of the tables whose last PostgreSQL transaction goes on."""
    lacking: set[int] = field(default_factory=set)
    """Ids of live tables that lacked the row of a change."""
    _steps: dict[int, int] = field(default_factory=dict)
    """Number of changes to apply at once, by table id: the rows that they replace may be wide."""
    _open_record: set[int] = field(default_factory=set)
    """Ids of the tables whose newest journal record will be continued."""

    def forget(self, table_id: int) -> None:
        """Forget a table that is dropped."""
        self.unfinished.discard(table_id)
        self._open_record.discard(table_id)

    def take(self, record: TableRecord, changes: TableChanges, expected: int) -> Iterator[None]:
        """Apply changes to the rows, and to the journal if the table is live.

        It yields after each bounded piece. ``expected`` is that of ``Transaction.apply_in_pieces``.

        :raises TableClosed: if the table is neither COPYING nor LIVE.
        :raises RowIncomplete: if a live table's row would lack columns.
        :raises RowDamaged: if a row that a change replaces isn't what was written.
        """
        table_id = record.id
        if record.status not in (Status.COPYING, Status.LIVE):
            raise TableClosed(record.qualified, record.status, "changes")
        if not changes.actions:
            if not changes.open:
                self.unfinished.discard(table_id)
                self._end_open_record(record)
            return
        if table_id not in self._steps:
            self._steps[table_id] = self._first_step(record, changes.keys)
        self.context.disk.expect(expected)
        for part in changes.parts(lambda: self._steps[table_id]):
            record = self.context.tables[table_id]
            is_live = record.status is Status.LIVE
            apply = self._apply_live if is_live else self._apply_copying
            size = max(1, (yield from apply(record, part)))
            step = len(part) * _PART_BYTES // size
            self._steps[table_id] = max(1, min(step, _STEPS_GROWTH * len(part), _MOST_CHANGES))
        if changes.open:
            self.unfinished.add(table_id)
        else:
            self.unfinished.discard(table_id)

    def _first_step(self, record: TableRecord, keys: list[bytes]) -> int:
        """Number of changes for the first step, by the rows that a sample of them replaces."""
        sample = list(filter(None, keys[:: len(keys) // _SAMPLED + 1]))
        width = self.spaces.rows_of(record).widest(sample)
        return max(1, min(_PART_BYTES // max(1, 2 * width), _MOST_CHANGES))

    def _apply_copying(
        self, record: TableRecord, changes: TableChanges
    ) -> Generator[None, None, int]:
        """Apply changes to a table that is copied; returns the bytes of rows in memory."""
        size = 0
        for start, stop, kind in runs(changes.actions):
            if kind is Action.TRUNCATE:
                record = self.spaces.truncate(record)
                continue
            rows = self.spaces.rows_of(record)
            keys, lines = changes.keys[start:stop], changes.lines[start:stop]
            if kind is Action.DELETE:
                olds = rows.bury(keys)
                difference = -sum(map(bool, olds))
            else:
                actions = changes.actions[start:stop]
                _, olds = yield from rows.upsert(actions, keys, lines, live=False)
                difference = len(olds) - sum(map(bool, olds))
            size += sum(map(len, lines)) + sum(map(len, filter(None, olds)))
            record = self.spaces.count(record, difference)
        self.context.tables[record.id] = record
        return size

    def _apply_live(self, record: TableRecord, changes: TableChanges) -> Generator[None, None, int]:
        """Apply changes to a live table; returns the bytes of rows in memory."""
        actions = bytearray()
        lines: list[bytes] = []
        olds: list[bytes] = []
        absent: list[int] = []
        for start, stop, kind in runs(changes.actions):
            if kind is Action.TRUNCATE:
                record = self.spaces.truncate(record)
                actions.append(Action.TRUNCATE)
                lines.append(b"")
                olds.append(b"")
                continue
            rows = self.spaces.rows_of(record)
            keys = changes.keys[start:stop]
            if kind is Action.DELETE:
                found = rows.delete(keys)
                absent += [start + index for index, old in enumerate(found) if old is None]
                if absent:
                    self.lacking.add(record.id)
                actions += bytes([Action.DELETE]) * len(found)
                lines += [b""] * len(found)
                difference = found.count(None) - len(found)
            else:
                written, found = yield from rows.upsert(
                    changes.actions[start:stop], keys, changes.lines[start:stop], live=True
                )
                actions += bytes([Action.UPDATE if old else Action.INSERT for old in found])
                lines += written
                difference = found.count(None)
                if difference and _lacks(changes.actions[start:stop], found):
                    self.lacking.add(record.id)
            olds += [old or b"" for old in found]
            record = self.spaces.count(record, difference)
        entries = Entries(
            bytes(actions),
            changes.keys,
            lines,
            olds,
            changes.counts,
            changes.positions,
            changes.times_us,
            changes.open,
            record.id in self._open_record,
        )
        if absent:
            entries = entries.without(absent)
        yield from self._append(record, entries, changes)
        return sum(map(len, lines)) + sum(map(len, olds))

    def _append(
        self, record: TableRecord, entries: Entries, changes: TableChanges
    ) -> Iterator[None]:
        """Append to the journal ``entries``, the ``changes`` that had an effect."""
        goes_on = changes.open and len(changes.counts) == 1
        if not entries.continues and not goes_on:
            # The rest of the open transaction had no effect.
            self._end_open_record(record)
        self.context.tables[record.id] = yield from self.journal.append(record, entries)
        if entries.open:
            self._open_record.add(record.id)
        elif not goes_on:
            self._open_record.discard(record.id)

    def _end_open_record(self, record: TableRecord) -> None:
        if record.id in self._open_record:
            self._open_record.discard(record.id)
            self.journal.end_transaction(record)


def _lacks(actions: bytearray, olds: list[bytes | None]) -> bool:
    """True if the row of an UPDATE didn't exist."""
    pairs = zip(actions, olds, strict=True)
    return any(old is None and action == Action.UPDATE for action, old in pairs)


# Removal of the rows and journals of truncated and dropped tables, in steps of bounded size.

_RECORD_WEIGHT = 100
_FREED_LIST_BYTES = 64


def any_left(transaction: Any, databases: Databases) -> bool:
    """True if there are rows or journal records to remove."""
    cursor = transaction.cursor(db=databases.meta)
    return bool(cursor.set_range(environment.GARBAGE)) and cursor.key().startswith(
        environment.GARBAGE
    )


def remove_some(transaction: Any, databases: Databases, reserve: Reserve, limit: int) -> int:
    """Remove rows and journal records, together worth about ``limit`` rows; returns their worth.

    :raises DiskFull: if there is no room for the removal itself.
    """
    reserve(limit, limit * _FREED_LIST_BYTES)
    removed = 0
    cursor = transaction.cursor(db=databases.meta)
    found = cursor.set_range(environment.GARBAGE)
    while found and cursor.key().startswith(environment.GARBAGE) and removed < limit:
        key = cursor.key()
        if key.startswith(environment.GARBAGE_SPACE):
            databases_of: tuple[Any, ...]
            databases_of, weight = (databases.state, databases.marks), 1
        else:
            databases_of = (databases.positions, databases.olds, databases.journal)
            weight = _RECORD_WEIGHT
        prefix = key[-environment.PREFIX_BYTES :]
        for database in databases_of:
            most = max(1, (limit - removed) // weight)
            removed += weight * _delete_range(transaction, database, prefix, most)
        if removed >= limit:
            break
        found = cursor.delete() and bool(cursor.key())
    return removed


def _delete_range(transaction: Any, database: Any, prefix: bytes, most: int) -> int:
    cursor = transaction.cursor(db=database)
    found = cursor.set_range(prefix)
    deleted = 0
    while found and deleted < most and cursor.key().startswith(prefix):
        found = cursor.delete() and bool(cursor.key())
        deleted += 1
    return deleted
