"""The journal: its records are appended, found by position, cut and pruned.

A record's body is sent to clients unchanged. The old rows, the message's last
field, are stored separately: body + old body is the whole message.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from struct import Struct
from typing import Any, NamedTuple

from laredo_fanout.store import environment, seal
from laredo_fanout.store.environment import PREFIX_BYTES, Databases, WriteContext
from laredo_fanout.store.errors import JournalDamaged
from laredo_fanout.store.table import TableRecord
from laredo_fanout.wire.protobuf import RepeatedBytes
from laredo_fanout.wire.replication_pb2 import ChangeBatch

_U32_U64 = Struct(">IQ")
_U32_U64_U64 = Struct(">IQQ")


def record_key(table_id: int, first_sequence: int) -> bytes:
    """Key of the journal record that begins with this sequence."""
    return _U32_U64.pack(table_id, first_sequence)


def sequence_of(record: bytes) -> int:
    """The first sequence in a journal record's key."""
    return int.from_bytes(record[PREFIX_BYTES:], "big")


def position_key(table_id: int, position: int, sequence: int = 0) -> bytes:
    """Index key of the journal record that ends at this position."""
    return _U32_U64_U64.pack(table_id, position, sequence)


def positioned(key: bytes) -> tuple[int, int]:
    """Last position and first sequence of a record, from its position key."""
    _, position, sequence = _U32_U64_U64.unpack(key)
    return position, sequence


MAX_CHANGES = 1500
MAX_BYTES = 850_000

_OPEN = 1
_CONTINUES = 2
HEADER = Struct(">4QIB")


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a journal record, which is read without decoding the rest.

    ``open``: the record's last transaction continues in the next record. ``continues``: its first
    one began in the record before. ``old_bytes`` is the size of its old rows.
    """

    last_sequence: int
    first_position: int
    last_position: int
    last_time_us: int
    old_bytes: int
    open: bool
    continues: bool

    def to_bytes(self) -> bytes:
        """The stored form of the header, which is before the body."""
        return HEADER.pack(
            self.last_sequence,
            self.first_position,
            self.last_position,
            self.last_time_us,
            min(self.old_bytes, 0xFFFFFFFF),
            self.open * _OPEN + self.continues * _CONTINUES,
        )


def body_of(stored: bytes | memoryview) -> bytes:
    """The message of a stored record, without its header and seal."""
    return bytes(stored[HEADER.size : -seal.SEAL_BYTES])


def header_of(stored: bytes | memoryview) -> Header:
    """The header of a stored record."""
    last, first_position, last_position, time_us, old_bytes, flags = HEADER.unpack_from(stored)
    return Header(
        last,
        first_position,
        last_position,
        time_us,
        old_bytes,
        bool(flags & _OPEN),
        bool(flags & _CONTINUES),
    )


@dataclass(frozen=True, slots=True)
class Record:
    """Consecutive changes of one table, read from the journal.

    ``body`` is a ChangeBatch without old rows, ``body + old_body`` one with
    them (``old_body`` is b"" if they weren't read).
    """

    first_sequence: int
    last_sequence: int
    first_position: int
    last_position: int
    last_time_us: int
    open: bool
    continues: bool
    body: bytes
    old_body: bytes

    def __len__(self) -> int:
        return self.last_sequence + 1 - self.first_sequence

    def decode(self) -> ChangeBatch:
        """The message, old rows included if they were read."""
        return ChangeBatch.FromString(self.body + self.old_body)


def record_of(key: bytes, stored: bytes | memoryview, old_body: bytes) -> Record:
    """Parse a stored record."""
    header = header_of(stored)
    return Record(
        sequence_of(key),
        header.last_sequence,
        header.first_position,
        header.last_position,
        header.last_time_us,
        header.open,
        header.continues,
        body_of(stored),
        old_body,
    )


def cut(record: Record, after_sequence: int) -> Record:
    """``record`` without its entries up to ``after_sequence``."""
    drop = after_sequence + 1 - record.first_sequence
    return record if drop <= 0 else _part(record, drop, len(record))


def cut_after(record: Record, last_sequence: int) -> Record:
    """``record`` without its entries after ``last_sequence``, which ends a transaction."""
    kept = last_sequence + 1 - record.first_sequence
    return record if kept >= len(record) else _part(record, 0, kept)


def _part(record: Record, start: int, stop: int) -> Record:
    """``record`` with its entries from index ``start`` up to, not including, ``stop`` alone."""
    batch = record.decode()
    first, gone = transaction_at(batch.counts, start)
    last, before = transaction_at(batch.counts, stop - 1)
    counts = list(batch.counts[first : last + 1])
    counts[-1] = stop - before
    counts[0] -= start - gone
    is_open = record.open and stop == len(record)
    body = ChangeBatch(
        first_sequence=record.first_sequence + start,
        actions=batch.actions[start:stop],
        counts=counts,
        positions=batch.positions[first : last + 1],
        times_us=batch.times_us[first : last + 1],
        open=is_open,
        keys=batch.keys[start:stop],
        lines=batch.lines[start:stop],
    )
    olds = ChangeBatch(old_lines=batch.old_lines[start:stop])
    return Record(
        record.first_sequence + start,
        record.first_sequence + stop - 1,
        batch.positions[first],
        batch.positions[last],
        batch.times_us[last],
        is_open,
        start > gone or (first == 0 and record.continues),
        body.SerializeToString(),
        olds.SerializeToString() if record.old_body else b"",
    )


def transaction_at(counts: Iterable[int], change: int) -> tuple[int, int]:
    """Index of the transaction of the change with this index, and number of changes before it."""
    before = 0
    for index, end in enumerate(accumulate(counts)):
        if end > change:
            return index, before
        before = end
    raise IndexError(change)


# Writing and pruning.

_FIELDS = ChangeBatch.DESCRIPTOR.fields_by_name
_KEYS, _LINES, _OLD_LINES = (
    RepeatedBytes(_FIELDS[name].number) for name in ("keys", "lines", "old_lines")
)
PRUNE_RECORDS = 64
_FREED_LIST_BYTES = 8192
"""Size of the list of pages that a deleted record leaves free, eight bytes each."""


@dataclass(slots=True)
class Entries:
    """Changes of one table for the journal, as they changed the stored rows.

    The first four have one element for each change, the next three one for each PostgreSQL
    transaction.
    """

    #: One byte each, line.Action.
    actions: bytes
    #: Keys of the rows.
    keys: list[bytes]
    #: New rows, whole.
    lines: list[bytes]
    #: Old rows, whole, each with its seal.
    olds: list[bytes]
    #: Number of the transaction's changes.
    counts: list[int]
    #: The end of the transaction's commit record.
    positions: list[int]
    #: The transaction's commit time, microseconds since 1970.
    times_us: list[int]
    #: True if the last transaction goes on in the next entries.
    open: bool
    #: True if the first transaction began in earlier entries.
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
    """Indexes of the changes of a record, and of the first and last of their transactions."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(slots=True)
class Journal:
    """The journals of all tables, within one write transaction."""

    context: WriteContext

    def append(self, table: TableRecord, entries: Entries) -> Generator[None, None, TableRecord]:
        """Write these entries after the newest one; yields after each record.

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
        # The last fields are encoded by hand: three values of each change are most of the cost.
        keys = _KEYS.joined(entries.keys[start:stop])
        lines = _LINES.joined(entries.lines[start:stop])
        key = record_key(table_id, sequence)
        value = seal.joined(key, (header.to_bytes(), scalars, keys, lines))
        old_value = seal.joined(key, (old_body,))
        self.context.disk.reserve_values(len(value), len(old_value))
        put = self.context.transaction.put
        put(key, value, db=self.context.databases.journal)
        put(key, old_value, db=self.context.databases.olds)
        found_at = position_key(table_id, header.last_position, sequence)
        put(found_at, b"", db=self.context.databases.positions)

    def end_transaction(self, table: TableRecord) -> None:
        """Mark the newest record, which was written as open, as whole: nothing follows."""
        cursor = self.context.transaction.cursor(db=self.context.databases.journal)
        if not (cursor.set_range(environment.prefix(table.id + 1)) and cursor.prev()):
            cursor.last()
        key = cursor.key()
        if not key.startswith(environment.prefix(table.id)):
            return
        stored = cursor.value()
        batch = ChangeBatch.FromString(body_of(stored))
        batch.open = False
        header = replace(header_of(stored), open=False)
        value = seal.joined(key, (header.to_bytes(), batch.SerializeToString()))
        self.context.disk.reserve_values(len(value))
        self.context.transaction.put(key, value, db=self.context.databases.journal)

    def prune(
        self,
        table: TableRecord,
        max_entries: int,
        older_than_us: int,
        pinned_sequence: int | None,
        records: int = PRUNE_RECORDS,
    ) -> TableRecord:
        """Drop whole transactions beyond ``max_entries`` or committed before ``older_than_us``.

        The newest one stays, and so do those with entries after ``pinned_sequence``.
        One call is one step of about ``records`` records: call again until nothing changes.

        :raises JournalDamaged: if a record isn't what was written.
        """
        if not self.prunable(table, max_entries, older_than_us, pinned_sequence):
            return table
        pinned = table.sequence if pinned_sequence is None else pinned_sequence
        beyond = table.sequence - max_entries
        limit = min(pinned, table.sequence - 1)
        last = self._last_to_prune(table, beyond, older_than_us, limit, records)
        if last is None or last[0] < table.oldest_sequence:
            return table
        sequence, position = last
        self._check(table, sequence)
        self._delete(table, sequence)
        kept = replace(table, oldest_sequence=sequence + 1, floor=position)
        return replace(kept, oldest_time_us=self._time_of(kept))

    def _check(self, table: TableRecord, sequence: int) -> None:
        """Check the record of this entry, which gives the journal's floor."""
        cursor = self.context.transaction.cursor(db=self.context.databases.journal)
        key = record_key(table.id, sequence + 1)
        if not (cursor.prev() if cursor.set_range(key) else cursor.last()):
            raise JournalDamaged(table.id, table.qualified, table.oldest_sequence - 1)
        self._checked(table, cursor)

    def _checked(self, table: TableRecord, cursor: Any) -> bytes:
        """The record at the cursor.

        :raises JournalDamaged: if it isn't one of the table's, as it was written.
        """
        key, stored = cursor.key(), cursor.value()
        if not (key.startswith(environment.prefix(table.id)) and seal.fits(key, stored)):
            raise JournalDamaged(table.id, table.qualified, table.oldest_sequence - 1)
        return bytes(stored)

    def _header(self, table: TableRecord, cursor: Any) -> Header:
        """The header at the cursor; its seal would take the reading of the whole record.

        :raises JournalDamaged: if the record is shorter than a header.
        """
        stored = cursor.value()
        if len(stored) < HEADER.size:
            raise JournalDamaged(table.id, table.qualified, table.oldest_sequence - 1)
        return header_of(stored)

    def drop_damaged(self, table: TableRecord, after: int, position: int) -> TableRecord:
        """Drop the journal up to the first whole record after the damaged one.

        The damaged record is the one after the entry ``after``; ``position`` is the table's.
        Readers before the new floor need a snapshot. If the record was dropped already, only index
        entries that point to no record are deleted.
        """
        if after + 1 < table.oldest_sequence:
            self._delete_others(table, table.oldest_sequence, self.context.databases.positions)
            return table
        cursor = self.context.transaction.cursor(db=self.context.databases.journal)
        prefix = environment.prefix(table.id)
        # The next record's key is greater than any key that the damaged one may have.
        found = cursor.set_range(record_key(table.id, after + 2))
        kept = replace(table, oldest_sequence=table.sequence + 1, floor=position, oldest_time_us=0)
        while found and cursor.key().startswith(prefix):
            key, stored = cursor.key(), cursor.value()
            if seal.fits(key, stored) and not (header := header_of(stored)).continues:
                first = sequence_of(key)
                if after + 1 < first <= header.last_sequence <= table.sequence:
                    floor = header.first_position - 1
                    kept = replace(table, oldest_sequence=first, floor=floor)
                    break
            found = cursor.next()
        databases = self.context.databases
        for database in (databases.journal, databases.olds, databases.positions):
            self._delete_others(table, kept.oldest_sequence, database)
        return replace(kept, oldest_time_us=self._time_of(kept))

    def _delete_others(self, table: TableRecord, oldest: int, database: Any) -> None:
        """Delete every record whose key isn't that of an entry from ``oldest`` on."""
        prefix = environment.prefix(table.id)
        cursor = self.context.transaction.cursor(db=database)
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            first = int.from_bytes(cursor.key()[-8:], "big")
            if oldest <= first <= table.sequence:
                found = cursor.next()
                continue
            self.context.disk.reserve(1, _FREED_LIST_BYTES)
            found = cursor.delete() and bool(cursor.key())

    @staticmethod
    def prunable(
        table: TableRecord, max_entries: int, older_than_us: int, pinned_sequence: int | None
    ) -> bool:
        """True if there may be entries to prune, by the table's figures."""
        if table.entries <= 1:
            return False
        if pinned_sequence is not None and pinned_sequence < table.oldest_sequence:
            return False
        return table.entries > max_entries or table.oldest_time_us < older_than_us

    def _last_to_prune(
        self, table: TableRecord, beyond: int, older_than_us: int, limit: int, records: int
    ) -> tuple[int, int] | None:
        """The last entry to drop, always a transaction's end, and its position."""
        last: tuple[int, int] | None = None
        cursor = self.context.transaction.cursor(db=self.context.databases.journal)
        prefix = environment.prefix(table.id)
        found = cursor.set_range(prefix)
        walked = 0
        going_on = False
        while found and cursor.key().startswith(prefix):
            header = self._header(table, cursor)
            old = header.last_sequence <= beyond or header.last_time_us < older_than_us
            inside = header.continues and header.first_position == header.last_position
            if old and header.last_sequence <= limit and not header.open:
                last = header.last_sequence, header.last_position
            elif not (going_on and header.open and inside):
                first = sequence_of(cursor.key())
                for each in _transactions(self._checked(table, cursor), header, first):
                    goes = each.first <= beyond or each.time_us < older_than_us
                    if each.continues:
                        goes = going_on
                    if not goes or each.last > limit:
                        return last
                    going_on = each.open
                    if not each.open:
                        last = each.last, each.position
            walked += 1
            if last is not None and walked >= records:
                break
            found = cursor.next()
        return last

    def _delete(self, table: TableRecord, last: int) -> None:
        cursor = self.context.transaction.cursor(db=self.context.databases.journal)
        prefix = environment.prefix(table.id)
        found = cursor.set_range(prefix)
        while found and cursor.key().startswith(prefix):
            header = self._header(table, cursor)
            if header.last_sequence > last:
                break
            key = cursor.key()
            self.context.disk.reserve(3, _FREED_LIST_BYTES)
            self.context.transaction.delete(key, db=self.context.databases.olds)
            found_at = position_key(table.id, header.last_position, sequence_of(key))
            self.context.transaction.delete(found_at, db=self.context.databases.positions)
            found = cursor.delete() and bool(cursor.key())

    def _time_of(self, table: TableRecord) -> int:
        """The commit time of the oldest kept entry; 0 if there is none."""
        if not table.entries:
            return 0
        cursor = self.context.transaction.cursor(db=self.context.databases.journal)
        cursor.set_range(environment.prefix(table.id))
        batch = ChangeBatch.FromString(body_of(self._checked(table, cursor)))
        skipped = table.oldest_sequence - batch.first_sequence
        index, _ = transaction_at(batch.counts, skipped)
        return int(batch.times_us[index])


def _stop(entries: Entries, start: int) -> int:
    """End of the record that starts at this change."""
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
    batch = ChangeBatch.FromString(body_of(stored))
    newest = len(batch.counts) - 1
    columns = zip(batch.counts, batch.positions, batch.times_us, strict=True)
    for index, (count, position, time_us) in enumerate(columns):
        continues = header.continues and index == 0
        is_open = header.open and index == newest
        last = first + count - 1
        yield _Transaction(first, last, position, time_us, continues, is_open)
        first += count


def first_from(transaction: Any, databases: Databases, known: TableRecord, lowest: int) -> int:
    """The first entry at or after the position ``lowest``, or the newest sequence + 1.

    :raises JournalDamaged: if the journal or its index isn't what was written.
    """
    cursor = transaction.cursor(db=databases.positions)
    prefix = environment.prefix(known.id)
    if not (
        cursor.set_range(position_key(known.id, lowest)) and cursor.key()[:PREFIX_BYTES] == prefix
    ):
        _check_before(transaction, databases, known, known.sequence + 1, lowest)
        return known.sequence + 1
    position, first = positioned(bytes(cursor.key()))
    key = record_key(known.id, first)
    stored = transaction.get(key, db=databases.journal)
    if stored is None or not seal.fits(key, stored):
        raise JournalDamaged(known.id, known.qualified, first - 1)
    header = header_of(stored)
    if header.last_position != position:
        raise JournalDamaged(known.id, known.qualified, first - 1)
    _check_before(transaction, databases, known, first, lowest)
    if header.first_position < lowest:
        batch = ChangeBatch.FromString(body_of(stored))
        for count, at in zip(batch.counts, batch.positions, strict=True):
            if at >= lowest:
                break
            first += count
    return max(first, known.oldest_sequence)


def _check_before(
    transaction: Any, databases: Databases, known: TableRecord, first: int, lowest: int
) -> None:
    """Check that the record before the entry ``first`` ends before the position ``lowest``;
    otherwise the index lacks that record."""
    if first <= known.oldest_sequence:
        return
    cursor = transaction.cursor(db=databases.journal)
    key = record_key(known.id, first)
    if not (cursor.prev() if cursor.set_range(key) else cursor.last()):
        raise JournalDamaged(known.id, known.qualified, known.oldest_sequence - 1)
    before, stored = bytes(cursor.key()), cursor.value()
    fits = before[:PREFIX_BYTES] == environment.prefix(known.id) and seal.fits(before, stored)
    header = header_of(stored) if fits else None
    if header is None or header.last_sequence != first - 1 or header.last_position >= lowest:
        raise JournalDamaged(known.id, known.qualified, first - 2)
