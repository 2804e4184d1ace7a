"""The end of a table's copy, and a re-copy's comparison with the live incarnation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from laredo_fanout.store import environment, seal
from laredo_fanout.store.environment import PREFIX_BYTES, WriteContext
from laredo_fanout.store.errors import RowDamaged, RowIncomplete, TableUnknown
from laredo_fanout.store.rows import Spaces, TableChanges
from laredo_fanout.store.table import Status, TableRecord
from laredo_model import key as key_
from laredo_model.line import Action

_BLOCK = 1000

_Pair = tuple[bytes, bytes | None, bytes | None]
"""Stored key of a row (without the space), its live value, and its copied value."""


class Barrier:
    """The end of a copy, within one write transaction."""

    def __init__(self, context: WriteContext, spaces: Spaces) -> None:
        self._transaction = context.transaction
        self._state = context.databases.state
        self._spaces = spaces

    def publish(self, record: TableRecord, position: int) -> TableRecord:
        """Drop tombstones and marks, and make the table live with its floor at the barrier.

        :raises RowIncomplete: if rows still lack columns.
        """
        rows = self._spaces.rows_of(record)
        for key in rows.partial_keys():
            raise RowIncomplete(record.qualified, key)
        rows.sweep()
        return replace(record, status=Status.LIVE, floor=position, copy={}, error="")

    def compare_block(
        self, live: TableRecord, copied: TableRecord, after: bytes
    ) -> tuple[bytes | None, bool]:
        """Compare the next block of rows after ``after``.

        Returns the block's last key (None if no rows follow it), and True if a row differs. Nearly
        all blocks are equal, so rows are compared one by one only in a block that differs. Keys are
        compared with their prefix, which may be damaged on disk too.
        """
        ours, theirs = self._block(live.space, after), self._block(copied.space, after)
        prefix = environment.prefix(live.space)
        if ours and ours == [(prefix + key[PREFIX_BYTES:], value) for key, value in theirs]:
            return ours[-1][0][PREFIX_BYTES:], False
        block = list(islice(self._merged(live.space, copied.space, after), _BLOCK))
        last = block[-1][0] if len(block) == _BLOCK else None
        return last, any(old != new for _, old, new in block)

    def differences(
        self, live: TableRecord, copied: TableRecord, after: bytes, last: bytes | None
    ) -> TableChanges:
        """Changes, without positions, that turn the live rows of this block into the copied ones.

        :raises RowDamaged: if a row isn't what was written.
        """
        changes = TableChanges()
        for stored, was, now in self._differing(live, copied, after, last):
            old, new = self._line(live, stored, was), self._line(copied, stored, now)
            line = old if new is None else new
            action = Action.DELETE if new is None else Action.UPDATE
            changes.actions.append(action if old else Action.INSERT)
            changes.keys.append(_row_key(stored, line, live))
            changes.lines.append(new or b"")
        return changes

    def count_differing(
        self, live: TableRecord, copied: TableRecord, after: bytes, last: bytes | None
    ) -> int:
        """Number of rows of this block that differ."""
        return sum(1 for _ in self._differing(live, copied, after, last))

    def sum_block(self, record: TableRecord, after: bytes) -> tuple[bytes | None, int, int]:
        """Compare the next block of rows after ``after`` with their seals.

        Returns the block's last key (None if no rows follow it), the number of its rows, and the
        sum of their seals.

        :raises RowDamaged: if a row isn't what was written.
        """
        prefix = environment.prefix(record.space)
        cursor = self._transaction.cursor(db=self._state)
        if not self._seek(cursor, prefix, after):
            return None, 0, 0
        pairs = [pair for pair in islice(cursor.iternext(), _BLOCK) if pair[0].startswith(prefix)]
        _, lines, total, damaged = seal.opened(pairs)
        if damaged >= 0:
            raise RowDamaged(record.qualified, pairs[damaged][0][PREFIX_BYTES:])
        last = pairs[-1][0][PREFIX_BYTES:] if len(pairs) == _BLOCK else None
        return last, len(lines), total

    def _differing(
        self, live: TableRecord, copied: TableRecord, after: bytes, last: bytes | None
    ) -> Iterator[_Pair]:
        for stored, old, new in self._merged(live.space, copied.space, after):
            if last is not None and stored > last:
                return
            if old != new:
                yield stored, old, new

    @staticmethod
    def _line(record: TableRecord, stored: bytes, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        _, damaged = seal.checked([environment.prefix(record.space) + stored], [value])
        if damaged >= 0:
            raise RowDamaged(record.qualified, stored)
        return value[: -seal.SEAL_BYTES]

    def _block(self, space: int, after: bytes) -> list[tuple[bytes, bytes]]:
        """The next block of rows after ``after``; empty if fewer rows than a block are left."""
        cursor = self._transaction.cursor(db=self._state)
        prefix = environment.prefix(space)
        if not self._seek(cursor, prefix, after):
            return []
        rows = list(islice(cursor.iternext(), _BLOCK))
        return rows if len(rows) == _BLOCK and rows[-1][0].startswith(prefix) else []

    def _merged(self, live: int, copied: int, after: bytes) -> Iterator[_Pair]:
        """Every key after ``after`` with both values, in order."""
        old_rows, new_rows = self._scan(live, after), self._scan(copied, after)
        old, new = next(old_rows, None), next(new_rows, None)
        while old is not None or new is not None:
            if new is None or (old is not None and old[0] < new[0]):
                assert old is not None
                yield old[0], old[1], None
                old = next(old_rows, None)
            elif old is None or new[0] < old[0]:
                yield new[0], None, new[1]
                new = next(new_rows, None)
            else:
                yield old[0], old[1], new[1]
                old, new = next(old_rows, None), next(new_rows, None)

    def _scan(self, space: int, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Stored keys (without the space) and values after ``after``."""
        prefix = environment.prefix(space)
        cursor = self._transaction.cursor(db=self._state)
        found = self._seek(cursor, prefix, after)
        while found and cursor.key().startswith(prefix):
            yield cursor.key()[PREFIX_BYTES:], cursor.value()
            found = cursor.next()

    @staticmethod
    def _seek(cursor: Any, prefix: bytes, after: bytes) -> bool:
        """Put the cursor on the first key after ``after``; False if there is none."""
        found = cursor.set_range(prefix + after)
        if found and after and cursor.key() == prefix + after:
            found = cursor.next()
        return bool(found)


def _row_key(stored: bytes, line: bytes | None, table: TableRecord) -> bytes:
    if environment.is_cut(bytes(PREFIX_BYTES) + stored):
        assert line is not None
        return key_.of_line(line, table.key_fields)
    return stored


# Comparison of a re-copy with the live incarnation, block by block.


class CopyTransaction(Protocol):
    """Interface of the store's transaction for a comparison."""

    tables: dict[int, TableRecord]

    def barrier(self) -> Barrier: ...

    def apply_in_pieces(self, table_id: int, changes: TableChanges) -> Iterator[None]: ...

    def drop_table(self, table_id: int) -> None: ...

    def put_table(self, record: TableRecord) -> None: ...

    def take_rows(self, live_id: int, copy_id: int) -> None: ...

    def end_suspect_range(self, table_id: int, position: int, time_us: int) -> TableRecord: ...


class CopyComparison:
    """Comparison that finds the blocks that differ, then writes the differences to the live rows.

    A comparison changes nothing: the store may commit between two blocks, as long as nobody changes
    the rows of either incarnation. All differences are one PostgreSQL transaction, written in one
    transaction of the store.

    The live incarnation's running checksum is that of the readers' rows: it contains every change
    that they were sent, and no damage on disk. So if both running checksums are equal, the readers
    have the copied rows already: the differing rows were damaged on disk, and the live incarnation
    takes the copied rows without a change in its journal. If the checksums differ, the live rows
    must be those that were written; otherwise nobody knows which rows the readers have.

    :raises RowIncomplete: if rows of the copy still lack columns.
    :raises TableUnknown: if there is no live incarnation.
    """

    def __init__(self, transaction: CopyTransaction, copy_id: int, position: int) -> None:
        copied = transaction.tables[copy_id]
        live = [
            each.id
            for each in transaction.tables.values()
            if each.qualified == copied.qualified and each.id != copy_id and each.live
        ]
        if not live:
            raise TableUnknown(f"{copied.qualified} that is live")
        self.live_id = live[0]
        self._copy_id = copy_id
        self._position = position
        self._after = b""
        self._blocks: list[tuple[bytes, bytes | None]] = []
        self.takes_rows = False
        """True if the readers have the copied rows already, after the last ``prove_block``."""
        self.is_proven = False
        """True if it is known which rows the readers have, after the last ``prove_block``."""
        self._summed_to = b""
        self._rows = self._sum = 0
        self.differing = 0
        """Number of rows that differed, after ``publish``."""
        transaction.barrier().publish(copied, position)

    def compare_block(self, transaction: CopyTransaction) -> bool:
        """Compare the next block, of a thousand rows; False if it was the last."""
        live, copied = transaction.tables[self.live_id], transaction.tables[self._copy_id]
        last, differs = transaction.barrier().compare_block(live, copied, self._after)
        if differs:
            self._blocks.append((self._after, last))
        self._after = last or b""
        return last is not None

    @property
    def differs(self) -> bool:
        """True if a block that was compared differs."""
        return bool(self._blocks)

    def prove_block(self, transaction: CopyTransaction) -> bool:
        """Sum up the next block of the live rows, if necessary; False if nothing is left to do.

        Call it after all blocks were compared. It shows whether the readers' rows are known.
        """
        live, copied = transaction.tables[self.live_id], transaction.tables[self._copy_id]
        equal = (live.rows, live.checksum) == (copied.rows, copied.checksum)
        if equal or not self.differs:
            # The former rows may have damage that was found elsewhere and isn't seen here.
            self.takes_rows, self.is_proven = self.differs or bool(live.damage), equal
            return False
        try:
            last, rows, total = transaction.barrier().sum_block(live, self._summed_to)
        except RowDamaged:
            return False
        self._rows, self._sum = self._rows + rows, self._sum + total
        self._summed_to = last or b""
        if last is None:
            self.is_proven = (self._rows, self._sum % seal.MODULUS) == (live.rows, live.checksum)
        return last is not None

    def publish(self, transaction: CopyTransaction, time_us: int) -> Iterator[None]:
        """Write the differences to the live incarnation, and drop the copy.

        Call it after ``prove_block``. It yields after each bounded piece: iterate to the end within
        the store's transaction.
        """
        for number, (after, last) in enumerate(self._blocks, 1):
            live, copied = transaction.tables[self.live_id], transaction.tables[self._copy_id]
            if self.takes_rows:
                self.differing += transaction.barrier().count_differing(live, copied, after, last)
                yield
                continue
            changes = transaction.barrier().differences(live, copied, after, last)
            self.differing += len(changes)
            changes.counts, changes.positions = [len(changes)], [self._position]
            changes.times_us, changes.open = [time_us], number < len(self._blocks)
            yield from transaction.apply_in_pieces(self.live_id, changes)
            yield
        if self.takes_rows:
            transaction.take_rows(self.live_id, self._copy_id)
        else:
            transaction.drop_table(self._copy_id)
        live = transaction.tables[self.live_id]
        if live.damage:
            transaction.put_table(replace(live, damage=""))
        if transaction.tables[self.live_id].suspect_range is not None:
            transaction.end_suspect_range(self.live_id, self._position, time_us)
