"""A copy of a table compared with the live incarnation, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.rows.barrier import Barrier
from laredo_fanout.store.rows.changes import TableChanges
from laredo_fanout.store.table import TableRecord


class CopyTransaction(Protocol):
    """Interface of a comparison to the store's transaction."""

    tables: dict[int, TableRecord]

    def barrier(self) -> Barrier: ...

    def apply_in_pieces(self, table_id: int, changes: TableChanges) -> Iterator[None]: ...

    def drop_table(self, table_id: int) -> None: ...

    def end_suspect_range(self, table_id: int, position: int, time_us: int) -> TableRecord: ...


class CopyComparison:
    """Finds the blocks that differ, and then writes what differs into the live incarnation.

    Comparing changes nothing: the store may commit between two blocks, as long as nobody changes
    the rows of either incarnation. What differs is one transaction, written in one of the store.

    :raises RowIncomplete: if rows of the copy still miss columns.
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
        self._differing: list[tuple[bytes, bytes | None]] = []
        transaction.barrier().publish(copied, position)

    def compare_block(self, transaction: CopyTransaction) -> bool:
        """Compare the next block, of a thousand rows; whether there are more."""
        live, copied = transaction.tables[self.live_id], transaction.tables[self._copy_id]
        last, differs = transaction.barrier().compare_block(live, copied, self._after)
        if differs:
            self._differing.append((self._after, last))
        self._after = last or b""
        return last is not None

    @property
    def differs(self) -> bool:
        """True if a block that was compared differs."""
        return bool(self._differing)

    def publish(self, transaction: CopyTransaction, time_us: int) -> Iterator[None]:
        """Write what differs into the live incarnation, and drop the copy; stops after each bounded
        piece: take it to its end before the store's transaction ends."""
        for number, (after, last) in enumerate(self._differing, 1):
            live, copied = transaction.tables[self.live_id], transaction.tables[self._copy_id]
            changes = transaction.barrier().differences(live, copied, after, last)
            changes.counts, changes.positions = [len(changes)], [self._position]
            changes.times_us, changes.open = [time_us], number < len(self._differing)
            yield from transaction.apply_in_pieces(self.live_id, changes)
            yield
        transaction.drop_table(self._copy_id)
        if transaction.tables[self.live_id].suspect_range is not None:
            transaction.end_suspect_range(self.live_id, self._position, time_us)
