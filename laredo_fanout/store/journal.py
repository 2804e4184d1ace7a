"""The journal: records appended, found by position, and pruned."""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from laredo_fanout.store import format as format_
from laredo_fanout.store.environment import Databases, WriteContext
from laredo_fanout.store.format import MAX_BYTES, MAX_CHANGES, Header
from laredo_fanout.store.table import TableRecord
from laredo_fanout.wire.protobuf import RepeatedBytes
from laredo_fanout.wire.replication_pb2 import ChangeBatch

_FIELDS = ChangeBatch.DESCRIPTOR.fields_by_name
_KEYS, _LINES, _OLD_LINES = (
    RepeatedBytes(_FIELDS[name].number) for name in ("keys", "lines", "old_lines")
)
_PRUNE_RECORDS = 64
_FREED_LIST_BYTES = 8192
"""For the list of the pages that a deleted record leaves free, eight bytes each."""


@dataclass(slots=True)
class Entries:
    """Resolved changes of one table, as the journal records them: what is true for the state."""

    #: One byte each, model.Action.
    actions: bytes
    #: One a change.
    keys: list[bytes]
    #: New rows, whole.
    lines: list[bytes]
    #: Old rows, whole.
    olds: list[bytes]
    #: One a PostgreSQL transaction, as the next two: how many of these changes it has.
    counts: list[int]
    #: The end of its commit record.
    positions: list[int]
    #: Its commit time, microseconds since 1970.
    times_us: list[int]
    #: Whether the last transaction goes on in the next entries.
    open: bool
    #: Whether the first transaction began in the entries before.
    continues: bool

    def without(self, dropped: list[int]) -> "Entries":
        """These entries without the ones at the indexes ``dropped`` (ascending)."""
        gone = set(dropped)
        kept = [index for index in range(len(self.actions)) if index not in gone]
        ends = list(accumulate(self.counts))
        counts = [0] * len(self.counts)
        for index in kept:
            counts[bisect_right(ends, index)] += 1
        left = [index for index, count in enumerate(counts) if count]
        return Entries(
            bytes(self.actions[index] for index in kept),
            [self.keys[index] for index in kept],
            [self.lines[index] for index in kept],
            [self.olds[index] for index in kept],
            [counts[index] for index in left],
            [self.positions[index] for index in left],
            [self.times_us[index] for index in left],
            self.open and bool(left) and left[-1] == len(counts) - 1,
            self.continues and bool(left) and left[0] == 0,
        )


class _Part(NamedTuple):
    """Which changes make a record, and the first and last of their transactions."""

    start: int
    stop: int
    first: int
    last: int


class Journal:
    """The journals of all tables, within one write transaction."""

    def __init__(self, context: WriteContext) -> None:
        self._transaction = context.transaction
        self._databases = context.databases
        self._reserve = context.disk.reserve
        self._reserve_values = context.disk.reserve_values

    def append(self, table: TableRecord, entries: Entries) -> Generator[None, None, TableRecord]:
        """Write these entries after the newest; stops after each record.

        Returns the table with its new figures.
        """
        count = len(entries.actions)
        if count == 0:
            return table
        ends = list(accumulate(entries.counts))
        start = transaction = 0
        sequence = table.sequence
        while start < count:
            stop = _stop(entries, start)
            first = transaction
            while ends[transaction] < stop:
                transaction += 1
            part = _Part(start, stop, first, transaction)
            self._put(table.id, sequence + 1, entries, part, ends)
            yield
            sequence += stop - start
            start = stop
            if ends[transaction] == stop:
                transaction += 1
        if table.entries == 0:
            return replace(table, sequence=sequence, oldest_time_us=entries.times_us[0])
        return replace(table, sequence=sequence)

    def _put(
        self,
        table_id: int,
        sequence: int,
        entries: Entries,
        part: "_Part",
        ends: list[int],
    ) -> None:
        start, stop, first, last = part
        counts = entries.counts[first : last + 1]
        before = ends[first] - entries.counts[first]
        counts[0] -= start - before
        counts[-1] -= ends[last] - stop
        still_open = ends[last] > stop or (entries.open and stop == len(entries.actions))
        scalars = ChangeBatch(
            first_sequence=sequence,
            actions=bytes(entries.actions[start:stop]),
            counts=counts,
            positions=entries.positions[first : last + 1],
            times_us=entries.times_us[first : last + 1],
            open=still_open,
        ).SerializeToString()
        old_body = _OLD_LINES.joined(entries.olds[start:stop])
        header = Header(
            last_sequence=sequence + stop - start - 1,
            first_position=entries.positions[first],
            last_position=entries.positions[last],
            last_time_us=entries.times_us[last],
            old_bytes=len(old_body),
            open=still_open,
            continues=start > before or (start == 0 and entries.continues),
        )
        # The message's last fields, by hand: three values of each change are most of its cost.
        keys = _KEYS.joined(entries.keys[start:stop])
        lines = _LINES.joined(entries.lines[start:stop])
        value = b"".join((header.to_bytes(), scalars, keys, lines))
        key = format_.record_key(table_id, sequence)
        self._reserve_values(len(value), len(old_body))
        put = self._transaction.put
        put(key, value, db=self._databases.journal)
        put(key, old_body, db=self._databases.olds)
        found_at = format_.position_key(table_id, header.last_position, sequence)
        put(found_at, b"", db=self._databases.positions)

    def end_transaction(self, table: TableRecord) -> None:
        """The newest record was written as open, and nothing follows: it is whole as it is."""
        cursor = self._transaction.cursor(db=self._databases.journal)
        if not (cursor.set_range(format_.prefix(table.id + 1)) and cursor.prev()):
            cursor.last()
        key = cursor.key()
        if not key.startswith(format_.prefix(table.id)):
            return
        stored = cursor.value()
        batch = ChangeBatch.FromString(stored[format_.HEADER.size :])
        batch.open = False
        header = replace(format_.header_of(stored), open=False)
        value = header.to_bytes() + batch.SerializeToString()
        self._reserve_values(len(value))
        self._transaction.put(key, value, db=self._databases.journal)

    def prune(
        self,
        table: TableRecord,
        max_entries: int,
        older_than_us: int,
        pinned_sequence: int | None,
    ) -> TableRecord:
        """Drop whole transactions beyond ``max_entries`` or committed before ``older_than_us``.

        Never the newest one, and none with entries after ``pinned_sequence``.
        Works in steps: call again until nothing changes.
        """
        if not self.prunable(table, max_entries, older_than_us, pinned_sequence):
            return table
        pinned = table.sequence if pinned_sequence is None else pinned_sequence
        beyond = table.sequence - max_entries
        cut = self._find_cut(table, beyond, older_than_us, min(pinned, table.sequence - 1))
        if cut is None or cut[0] < table.oldest_sequence:
            return table
        sequence, position = cut
        self._delete(table.id, sequence)
        kept = replace(table, oldest_sequence=sequence + 1, floor=position)
        return replace(kept, oldest_time_us=self._time_of(kept))

    @staticmethod
    def prunable(
        table: TableRecord, max_entries: int, older_than_us: int, pinned_sequence: int | None
    ) -> bool:
        """True if there may be something to prune, by the table's figures alone."""
        if table.entries <= 1:
            return False
        if pinned_sequence is not None and pinned_sequence < table.oldest_sequence:
            return False
        return table.entries > max_entries or table.oldest_time_us < older_than_us

    def _find_cut(
        self, table: TableRecord, beyond: int, older_than_us: int, limit: int
    ) -> tuple[int, int] | None:
        """The last entry to drop, and its position; always a transaction's end."""
        cut: tuple[int, int] | None = None
        cursor = self._transaction.cursor(db=self._databases.journal)
        prefix = format_.prefix(table.id)
        found = cursor.set_range(prefix)
        walked = 0
        going_on = False
        while found and cursor.key().startswith(prefix):
            stored = cursor.value()
            header = format_.header_of(stored)
            old = header.last_sequence <= beyond or header.last_time_us < older_than_us
            inside = header.continues and header.first_position == header.last_position
            if old and header.last_sequence <= limit and not header.open:
                cut = header.last_sequence, header.last_position
            elif not (going_on and header.open and inside):
                first = format_.sequence_of(cursor.key())
                for each in _transactions(stored, header, first):
                    goes = each.first <= beyond or each.time_us < older_than_us
                    if each.continues:
                        goes = going_on
                    if not goes or each.last > limit:
                        return cut
                    going_on = each.open
                    if not each.open:
                        cut = each.last, each.position
            walked += 1
            if cut is not None and walked >= _PRUNE_RECORDS:
                break
            found = cursor.next()
        return cut

    def _delete(self, table_id: int, last: int) -> None:
        cursor = self._transaction.cursor(db=self._databases.journal)
        prefix = format_.prefix(table_id)
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            header = format_.header_of(cursor.value())
            if header.last_sequence > last:
                break
            key = cursor.key()
            self._reserve(3, _FREED_LIST_BYTES)
            self._transaction.delete(key, db=self._databases.olds)
            found_at = format_.position_key(
                table_id, header.last_position, format_.sequence_of(key)
            )
            self._transaction.delete(found_at, db=self._databases.positions)
            found = cursor.delete() and bool(cursor.key())

    def _time_of(self, table: TableRecord) -> int:
        """The commit time of the oldest kept entry; 0 if there is none."""
        if not table.entries:
            return 0
        cursor = self._transaction.cursor(db=self._databases.journal)
        cursor.set_range(format_.prefix(table.id))
        batch = ChangeBatch.FromString(cursor.value()[format_.HEADER.size :])
        skipped = table.oldest_sequence - batch.first_sequence
        index, _ = format_.transaction_at(batch.counts, skipped)
        return int(batch.times_us[index])


def _stop(entries: Entries, start: int) -> int:
    """End of the record that starts here."""
    stop = min(start + MAX_CHANGES, len(entries.actions))
    while stop - start > 1:
        lines = sum(map(len, entries.lines[start:stop])) + sum(map(len, entries.keys[start:stop]))
        size = max(lines, sum(map(len, entries.olds[start:stop])))
        if size <= MAX_BYTES:
            break
        stop = start + max(1, (stop - start) * MAX_BYTES // size)
    return stop


class _Transaction(NamedTuple):
    """Part of one PostgreSQL transaction in one record."""

    first: int
    last: int
    position: int
    time_us: int
    continues: bool
    open: bool


def _transactions(stored: bytes, header: Header, first: int) -> Iterator[_Transaction]:
    batch = ChangeBatch.FromString(stored[format_.HEADER.size :])
    newest = len(batch.counts) - 1
    columns = zip(batch.counts, batch.positions, batch.times_us, strict=True)
    for index, (count, position, time_us) in enumerate(columns):
        continues = header.continues and index == 0
        is_open = header.open and index == newest
        last = first + count - 1
        yield _Transaction(first, last, position, time_us, continues, is_open)
        first += count


# Finds the first journal entry at or beyond a WAL position.


def first_from(transaction: Any, databases: Databases, known: TableRecord, lowest: int) -> int:
    """The first entry at or beyond ``lowest``; the newest sequence + 1 if there is none."""
    cursor = transaction.cursor(db=databases.positions)
    prefix = format_.prefix(known.id)
    if not (
        cursor.set_range(format_.position_key(known.id, lowest))
        and cursor.key()[: format_.PREFIX_BYTES] == prefix
    ):
        return known.sequence + 1
    _, first = format_.positioned(bytes(cursor.key()))
    stored = transaction.get(format_.record_key(known.id, first), db=databases.journal)
    header = format_.header_of(stored)
    if header.first_position < lowest:
        batch = ChangeBatch.FromString(bytes(stored[format_.HEADER.size :]))
        for count, at in zip(batch.counts, batch.positions, strict=True):
            if at >= lowest:
                break
            first += count
    return max(first, known.oldest_sequence)
