"""Spaces of tables' rows within one write transaction; TRUNCATE gives a table another one."""

from dataclasses import replace

from laredo_fanout.store import meta
from laredo_fanout.store.rows.writing import Rows
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.write_context import WriteContext


class Spaces:
    """The rows of all tables, within one write transaction."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context
        self._rows: dict[int, Rows] = {}

    def rows_of(self, record: TableRecord) -> Rows:
        """The rows of this incarnation."""
        rows = self._rows.get(record.space)
        if rows is None:
            rows = Rows(self._context, record.qualified, record.space)
            self._rows[record.space] = rows
        return rows

    def truncate(self, record: TableRecord) -> TableRecord:
        """A new, empty space; the old one's rows are removed later."""
        self._context.discard(meta.GARBAGE_SPACE, record.space)
        space = self._context.take_space()
        return replace(record, rows=0, generation=record.generation + 1, space=space)
