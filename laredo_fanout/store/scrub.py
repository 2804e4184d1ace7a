"""The scrub: a slow comparison of stored rows and journal records with their seals.

Rows are read in parts, each in a read transaction of its own, so that no old page is kept. Changes
in parts that were read already are taken from the journal: at the end the sum of the seals must be
the table's running checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from laredo_fanout.store import environment, seal
from laredo_fanout.store.errors import JournalPruned, RowsDamaged, TableHidden, TableUnknown
from laredo_model.line import Action

if TYPE_CHECKING:
    from laredo_fanout.store.reader import StoreReader
    from laredo_fanout.store.shared_spool import Pair
    from laredo_fanout.store.table import TableRecord

_PART_BYTES = 1 << 20
_MOST_STARTS = 5


class _RowsMoved(Exception):
    """The journal no longer has the changes in the parts that were read."""


class TableScrub:
    """Scrub of one incarnation of a table, of which ``rows`` of ``of`` rows are compared so far."""

    def __init__(self, reader: StoreReader, table_id: int) -> None:
        self._reader = reader
        self._table_id = table_id
        self.rows = self.of = 0

    def run(self) -> Iterator[int]:
        """Read all rows and the journal; yields the number of bytes of each part.

        It ends early if the table is dropped, or no longer shown.

        :raises RowsDamaged: if its rows aren't those that were written.
        :raises JournalDamaged: if a record of its journal isn't what was written.
        """
        try:
            for start in range(_MOST_STARTS):
                try:
                    yield from self._rows(summed=start + 1 < _MOST_STARTS)
                    break
                except _RowsMoved:
                    continue
            yield from self._journal()
        except (TableUnknown, TableHidden):
            return

    def _rows(self, *, summed: bool) -> Iterator[int]:
        """Compare the rows with their seals, and if ``summed`` with the running checksum.

        :raises _RowsMoved: if the table was truncated meanwhile, or its journal pruned.
        """
        last = b""
        before: TableRecord | None = None
        count = total = 0
        while True:
            record, pairs = self._reader.row_part(self._table_id, last, _PART_BYTES)
            if before is not None and before.space != record.space:
                raise _RowsMoved
            if before is not None and summed:
                added, differing = self._changed(before, record, last)
                count, total = count + added, total + differing
            before = record
            rows, added = _opened(record, pairs)
            count, total = count + rows, total + added
            self.rows, self.of = count, record.rows
            if not pairs:
                break
            last = pairs[-1][0]
            yield sum(len(value) for _, value in pairs)
        if summed and (count, total % seal.MODULUS) != (record.rows, record.checksum):
            why = f"{count} of {record.rows} rows, or other ones, were read"
            raise RowsDamaged(record.id, record.qualified, why, record.space)

    def _changed(self, before: TableRecord, now: TableRecord, last: bytes) -> tuple[int, int]:
        """Changes of the number and the sum of the seals of the rows up to ``last``, meanwhile."""
        count = total = 0
        sequence = before.sequence
        space = environment.prefix(now.space)
        while sequence < now.sequence:
            try:
                records = self._reader.journal(self._table_id, sequence)
            except JournalPruned as gone:
                raise _RowsMoved from gone
            for record in records:
                batch = record.decode()
                columns = zip(batch.actions, batch.keys, batch.lines, batch.old_lines, strict=True)
                for number, (action, key, line, old) in enumerate(columns, record.first_sequence):
                    stored = environment.stored_key(space, key)
                    if number > now.sequence or stored > last:
                        continue
                    if action == Action.TRUNCATE:
                        raise _RowsMoved
                    if line:
                        count, total = count + 1, total + seal.sealed([stored], [line])[1]
                    if old:
                        count, total = count - 1, total - seal.sealed([stored], [old])[1]
                sequence = record.last_sequence
        return count, total

    def _journal(self) -> Iterator[int]:
        record = self._reader.table_by_id(self._table_id).record
        sequence, newest = record.oldest_sequence - 1, record.sequence
        while sequence < newest:
            try:
                records = self._reader.journal(self._table_id, sequence)
            except JournalPruned:
                sequence = self._reader.table_by_id(self._table_id).oldest_sequence - 1
                continue
            sequence = records[-1].last_sequence
            yield sum(len(each.body) + len(each.old_body) for each in records)


def _opened(record: TableRecord, pairs: list[Pair]) -> tuple[int, int]:
    """Number of these rows, and the sum of their seals.

    :raises RowsDamaged: if a row isn't what was written.
    """
    _, lines, total, damaged = seal.opened(pairs)
    if damaged >= 0:
        key = pairs[damaged][0][environment.PREFIX_BYTES :]
        why = f"first at key {key[:80]!r}"
        raise RowsDamaged(record.id, record.qualified, why, record.space)
    return len(lines), total
