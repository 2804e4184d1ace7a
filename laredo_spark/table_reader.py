"""The table as Spark partitions: each one key range, folded by one task."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from laredo_archive import ranges
from laredo_archive.arrow.range_rows import batches
from laredo_archive.ranges import RangeRead
from laredo_spark.errors import ColumnsChanged
from laredo_spark.options import ReadOptions
from laredo_spark.table_read import TableRead

TASK_BYTES = 64 << 20
"""What one task reads, about, where the number of partitions isn't given."""


class TablePartition(InputPartition):
    """What one task reads, as one manifest had it."""

    def __init__(self, read: RangeRead, table: TableRead) -> None:
        super().__init__(None)
        self.read = read
        self.boundary = table.boundary


class TableReader(DataSourceReader):
    """Plans where the query is planned, reads where tasks run."""

    def __init__(self, asked: ReadOptions, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema
        self._keys: tuple[str, ...] | None = None if asked.key is None else (asked.key,)

    def partitions(self) -> Sequence[InputPartition]:
        """The table in key ranges.

        :raises ColumnsChanged: if it has other columns than when the DataFrame was made.
        """
        table = TableRead.of(self._asked)
        now = table.spark_schema()
        if now != self._schema:
            raise ColumnsChanged(table.archive.uri, self._schema.simpleString(), now.simpleString())
        return [TablePartition(read, table) for read in self._reads(table)]

    def _reads(self, table: TableRead) -> list[RangeRead]:
        if self._keys is not None:
            keys = [ranges.of_key(key.encode()) for key in self._keys]
            return [ranges.cut(table.boundary, table.choose, one) for one in keys]
        size = sum(table.choose(artifact)[1].size_bytes for artifact in table.boundary.artifacts)
        least = self._asked.partitions_at_least or 2
        parts = self._asked.partitions or max(least, -(-size // TASK_BYTES))
        return ranges.plan(table.boundary, table.choose, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One range's rows, in Arrow batches."""
        assert isinstance(partition, TablePartition)
        table = TableRead.again(self._asked, partition.boundary)
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        found = batches(partition.read, table.rows(), table.columns, table.open_slice)
        return (batch.cast(wanted) for batch in found)


class FilteredTableReader(TableReader):
    """Reads only the ranges of the keys that a query asks for.

    Spark refuses a reader that has pushFilters where the setting for it is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Take ``key = value`` and ``key IN (...)``; Spark checks every row of what is read."""
        table = TableRead.of(self._asked)
        for filter_ in filters:
            self._narrow(filter_, table)
            yield filter_

    def _narrow(self, filter_: Filter, table: TableRead) -> None:
        if self._keys is not None or len(table.key_names) != 1:
            return
        if not isinstance(filter_, EqualTo | In) or filter_.attribute != (table.key_names[0],):
            return
        values = [filter_.value] if isinstance(filter_, EqualTo) else list(filter_.value)
        if all(isinstance(value, int | str) and not isinstance(value, bool) for value in values):
            self._keys = tuple(dict.fromkeys(str(value) for value in values))
