"""The journal: records appended, found by position, and pruned."""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from laredo_fanout.store import format as format_
from laredo_fanout.store import seal
from laredo_fanout.store.environment import Databases, WriteContext
from laredo_fanout.store.errors import JournalDamaged
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
    #: Old rows, whole, each with its seal.
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
        old_body = _OLD_LINES.joined(entries.olds[start:stop], seal.SEAL_BYTES)
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
        key = format_.record_key(table_id, sequence)
        value = seal.joined(key, (header.to_bytes(), scalars, keys, lines))
        old_value = seal.joined(key, (old_body,))
        self._reserve_values(len(value), len(old_value))
        put = self._transaction.put
        put(key, value, db=self._databases.journal)
        put(key, old_value, db=self._databases.olds)
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
        batch = ChangeBatch.FromString(format_.body_of(stored))
        batch.open = False
        header = replace(format_.header_of(stored), open=False)
        value = seal.joined(key, (header.to_bytes(), batch.SerializeToString()))
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

        :raises JournalDamaged: if a record isn't what was written.
        """
        if not self.prunable(table, max_entries, older_than_us, pinned_sequence):
            return table
        pinned = table.sequence if pinned_sequence is None else pinned_sequence
        beyond = table.sequence - max_entries
        try:
            cut = self._find_cut(table, beyond, older_than_us, min(pinned, table.sequence - 1))
            if cut is None or cut[0] < table.oldest_sequence:
                return table
            sequence, position = cut
            self._check(table, sequence)
            self._delete(table.id, sequence)
            kept = replace(table, oldest_sequence=sequence + 1, floor=position)
            return replace(kept, oldest_time_us=self._time_of(kept))
        except DecodeError as wrong:
            raise JournalDamaged(table.id, table.qualified, table.oldest_sequence - 1) from wrong

    def _check(self, table: TableRecord, sequence: int) -> None:
        """Check the record of this entry: the journal's floor comes from it."""
        cursor = self._transaction.cursor(db=self._databases.journal)
        key = format_.record_key(table.id, sequence + 1)
        found = cursor.prev() if cursor.set_range(key) else cursor.last()
        if not found or not seal.fits(cursor.key(), cursor.value()):
            raise JournalDamaged(table.id, table.qualified, table.oldest_sequence - 1)

    def drop_damaged(self, table: TableRecord, after: int, position: int) -> TableRecord:
        """Drop the journal up to the first whole record that is after the damaged one, which comes
        after the entry ``after``; ``position`` is the table's. Readers before it need a snapshot.
        """
        cursor = self._transaction.cursor(db=self._databases.journal)
        prefix = format_.prefix(table.id)
        # The record behind the damaged one begins at a later key than any that it may have.
        found = cursor.set_range(format_.record_key(table.id, after + 2))
        kept = replace(table, oldest_sequence=table.sequence + 1, floor=position, oldest_time_us=0)
        while found and cursor.key().startswith(prefix):
            key, stored = cursor.key(), cursor.value()
            if seal.fits(key, stored) and not (header := format_.header_of(stored)).continues:
                first = format_.sequence_of(key)
                if after + 1 < first <= header.last_sequence <= table.sequence:
                    floor = header.first_position - 1
                    kept = replace(table, oldest_sequence=first, floor=floor)
                    break
            found = cursor.next()
        self._delete_before(table.id, kept.oldest_sequence)
        return replace(kept, oldest_time_us=self._time_of(kept))

    def _delete_before(self, table_id: int, sequence: int) -> None:
        """Delete records that begin before this sequence, whatever they say."""
        prefix = format_.prefix(table_id)
        databases = self._databases
        for database in (databases.journal, databases.olds, databases.positions):
            cursor = self._transaction.cursor(db=database)
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                first = int.from_bytes(cursor.key()[-8:], "big")
                if first >= sequence:
                    found = cursor.next()
                    continue
                self._reserve(1, _FREED_LIST_BYTES)
                found = cursor.delete() and bool(cursor.key())

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
        batch = ChangeBatch.FromString(format_.body_of(cursor.value()))
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
    batch = ChangeBatch.FromString(format_.body_of(stored))
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
    """The first entry at or beyond ``lowest``; the newest sequence + 1 if there is none.

    :raises JournalDamaged: if the journal or its index isn't what was written.
    """
    cursor = transaction.cursor(db=databases.positions)
    prefix = format_.prefix(known.id)
    if not (
        cursor.set_range(format_.position_key(known.id, lowest))
        and cursor.key()[: format_.PREFIX_BYTES] == prefix
    ):
        _check_before(transaction, databases, known, known.sequence + 1, lowest)
        return known.sequence + 1
    position, first = format_.positioned(bytes(cursor.key()))
    key = format_.record_key(known.id, first)
    stored = transaction.get(key, db=databases.journal)
    if stored is None or not seal.fits(key, stored):
        raise JournalDamaged(known.id, known.qualified, first - 1)
    header = format_.header_of(stored)
    if header.last_position != position:
        raise JournalDamaged(known.id, known.qualified, first - 1)
    _check_before(transaction, databases, known, first, lowest)
    if header.first_position < lowest:
        batch = ChangeBatch.FromString(bytes(format_.body_of(stored)))
        for count, at in zip(batch.counts, batch.positions, strict=True):
            if at >= lowest:
                break
            first += count
    return max(first, known.oldest_sequence)


def _check_before(
    transaction: Any, databases: Databases, known: TableRecord, first: int, lowest: int
) -> None:
    """Check that the record before the entry ``first`` ends before the position ``lowest``: else
    the index lacks it."""
    if first <= known.oldest_sequence:
        return
    cursor = transaction.cursor(db=databases.journal)
    key = format_.record_key(known.id, first)
    if not (cursor.prev() if cursor.set_range(key) else cursor.last()):
        raise JournalDamaged(known.id, known.qualified, known.oldest_sequence - 1)
    before, stored = bytes(cursor.key()), cursor.value()
    fits = before[: format_.PREFIX_BYTES] == format_.prefix(known.id) and seal.fits(before, stored)
    header = format_.header_of(stored) if fits else None
    if header is None or header.last_sequence != first - 1 or header.last_position >= lowest:
        raise JournalDamaged(known.id, known.qualified, first - 2)
