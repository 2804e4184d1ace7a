"""Types of rows of changes: the columns of :mod:`laredo_archive.arrow.changes`, and more.

With ``lines``, old and new are strings. Where option ``also`` names them, epoch (int), lsn (bigint;
position as a number) and time (timestamp; PostgreSQL's commit time of the last transaction up to
position) follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from laredo_archive.arrow.changes import RowValues, fields
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import MistypedValue
from laredo_model.column import Column
from laredo_spark.errors import ColumnUnfit
from laredo_spark.read.row_shape import RowShape, spark_schema

Columns = tuple[Column, ...] | None
"""The columns of an epoch; None in archives of other writers."""

_ALSO: Mapping[str, pa.DataType] = {
    "epoch": pa.int32(),
    "lsn": pa.int64(),
    "time": pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True)
class ChangesShape:
    """The types of rows of changes."""

    #: The table's columns, in the newest epoch that the reader knows.
    row: RowShape
    #: That epoch.
    epoch: int

    def values_type(self) -> pa.DataType:
        """The Arrow type of columns old and new."""
        schema = self.row.arrow_schema()
        return schema.field(0).type if self.row.asked.lines else pa.struct(list(schema))

    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        found = fields(self.values_type())
        found += [pa.field(name, _ALSO[name]) for name in self.row.asked.also]
        return pa.schema(found)

    def spark_schema(self) -> StructType:
        """The DataFrame's schema."""
        return spark_schema(self.arrow_schema())

    def fits(self, columns: Columns) -> bool:
        """True if rows with these columns lose nothing in this shape."""
        if self.row.asked.lines:
            return True
        if columns is None or self.row.inferred:
            return columns is None and self.row.inferred
        mine, theirs = ({_typed(c) for c in some} for some in (self.row.columns, columns))
        return mine == theirs


def _typed(column: Column) -> tuple[str, str, int]:
    return column.name, column.type, column.type_modifier


class LineValues(RowValues):
    """Converts lines of one epoch to values with the shape's columns; missing ones are null."""

    def __init__(self, shape: ChangesShape, columns: Columns) -> None:
        self._changed: dict[str, str] = {}
        self._lines = shape.row.asked.lines
        super().__init__(shape.values_type(), self._made(shape.row, columns))

    def _made(self, row: RowShape, columns: Columns) -> RowReader:
        if columns is None or self._lines:
            return row.reader()
        now = {column.name: column for column in row.columns}
        self._changed = {
            c.name: f"{c.type} ({c.type_modifier})"
            for c in columns
            if c.name in now and _typed(now[c.name]) != _typed(c)
        }
        # Their order, and the types that the DataFrame has.
        typed = tuple(_with_type_of(now.get(c.name, c), c) for c in columns)
        names = {column.name for column in columns}
        typing = row.asked.typing
        deep = {name: n for name, n in typing.array_dimensions.items() if name in names}
        chosen = [name for name in row.asked.columns or now if name in names]
        return RowReader(typed, replace(typing, array_dimensions=deep), chosen)

    def of(self, lines: Sequence[bytes | None]) -> pa.Array:
        """One value for each line; null where there is none.

        :raises BadLine, ArrowError: if a line isn't a row of its epoch.
        :raises ColumnUnfit: if a value doesn't fit the type that its column has now.
        """
        return pa.array(lines, pa.string()) if self._lines else super().of(lines)

    def batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of a block of lines; raises as :meth:`of`."""
        try:
            return super().batch(block)
        except MistypedValue as wrong:
            if wrong.column not in self._changed:
                raise
            raise ColumnUnfit(str(wrong), wrong.column, self._changed[wrong.column]) from None


def _with_type_of(now: Column, before: Column) -> Column:
    return replace(before, type=now.type, type_modifier=now.type_modifier)


def also_columns(names: Sequence[str], known: Mapping[str, object], rows: int) -> list[pa.Array]:
    """The columns that option ``also`` asks for."""
    return [pa.array([known[name]] * rows, _ALSO[name]) for name in names]
