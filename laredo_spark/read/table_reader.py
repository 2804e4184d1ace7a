"""Spark partitions of a table: each reads some key ranges, with base and diffs merged.

An archive that isn't sorted has no ranges: here one task merges it, sorting in a temporary
file; read_table() has Spark join it on all its tasks instead (``unsorted``).
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from laredo_archive.codec.arrow.range_rows import batches, order
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import ValueLacking, ValueUnfit
from laredo_archive.manifest import key_ranges
from laredo_archive.manifest.key_ranges import KeyRange, RangeRead
from laredo_archive.reader import Archive
from laredo_model.errors import BadLine
from laredo_spark.arrow_schema import arrow_schema
from laredo_spark.errors import TypesUnfit
from laredo_spark.messages import each_in_one_message, in_one_message
from laredo_spark.objects import Objects
from laredo_spark.options import ReadOptions
from laredo_spark.read import table_read
from laredo_spark.read.key_filters import ranges_of
from laredo_spark.read.row_shape import RowShape
from laredo_spark.read.table_read import TableRead

TASK_BYTES = 128 << 20
"""About how many bytes one task reads, if the number of partitions isn't given. At each end of a
range it also reads its neighbours' blocks, so many small tasks read more than a few large ones."""
MOST_APART = 256
"""The most key ranges that are each read alone; more are combined block by block."""


class TablePartition(InputPartition):
    """The key ranges that one task reads, by one manifest."""

    def __init__(self, reads: Sequence[RangeRead], objects: Objects, shape: RowShape) -> None:
        super().__init__(None)
        self.reads = [_without_splits(read) for read in reads]
        self.objects = objects
        self.shape = shape


class WholePartition(InputPartition):
    """The whole table, for one task."""

    def __init__(self, table: TableRead, keys: Sequence[KeyRange] | None) -> None:
        super().__init__(None)
        self._asked = table.asked
        self._boundary = table.boundary
        self._shape = table.shape
        self._keys = keys

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, a block at a time; memory doesn't grow with the table."""
        archive = Archive.at(self._asked.path, self._asked.key_fields, self._asked.access())
        reader = self._shape.reader()
        for keys, lines in archive.rows(self._boundary):
            kept = [line for key, line in zip(keys, lines, strict=True) if self._wants(key)]
            if kept:
                yield self._batch(reader, b"\n".join([*kept, b""]), archive.uri)

    def _batch(self, reader: RowReader, block: bytes, uri: str) -> pa.RecordBatch:
        try:
            return reader.batch(block)
        except (BadLine, ValueUnfit) as wrong:
            if not self._shape.inferred:
                raise
            raise TypesUnfit(uri, str(wrong), self._asked.infer_rows) from None
        except ValueLacking as lacking:
            raise lacking.with_location(uri) from None

    def _wants(self, key: bytes) -> bool:
        return self._keys is None or any(key in keys for keys in self._keys)


def _without_splits(read: RangeRead) -> RangeRead:
    """``read`` without what tasks don't need, and without empty slices."""

    base = None if read.base is None or not read.base.size_bytes else read.base.for_task()
    diffs = tuple(part.for_task() for part in read.diffs if part.size_bytes)
    return RangeRead(read.keys, base, diffs)


class TableReader(DataSourceReader):
    """Spark's reader of a table: plans on the driver, reads in tasks."""

    def __init__(self, asked: ReadOptions, schema: StructType, *, given: bool = False) -> None:
        """``given``: whether the schema was chosen with ``.schema(...)``."""
        self._asked = asked
        self._given = given
        self._schema = schema
        self._table: TableRead | None = None
        self._keys: list[KeyRange] | None = None
        if asked.key is not None:
            self._keys = [key_ranges.of_key(asked.key.encode())]

    @in_one_message
    def partitions(self) -> Sequence[InputPartition]:
        """The partitions: key ranges of the table.

        :raises ColumnsChanged: if it has other columns than when the DataFrame was made.
        :raises SchemaUnfit: if it hasn't the columns of the schema that was given.
        """
        table = self._found()
        if not table.has_ranges:
            return [WholePartition(table, self._keys)]
        objects = table.objects()
        return [TablePartition(reads, objects, table.shape) for reads in self._reads(table)]

    def _found(self) -> TableRead:
        """The table; its manifest is read once for all planning."""
        if self._table is None:
            self._table = table_read.chosen(
                TableRead.of(self._asked), self._schema, given=self._given
            )
        return self._table

    def __getstate__(self) -> dict[str, object]:
        """Tasks have their partitions, and need no manifest."""
        return {**self.__dict__, "_table": None}

    def _reads(self, table: TableRead) -> list[list[RangeRead]]:
        size = sum(table.choose(artifact)[1].size_bytes for artifact in table.boundary.artifacts)
        parts = self._asked.partitions or self._parts_of(size)
        if self._keys is not None:
            narrow = _narrowed(table, self._keys, parts, size)
            if narrow is not None:
                return [narrow[start::parts] for start in range(min(parts, len(narrow)))]
        return [[read] for read in key_ranges.plan(table.boundary, table.choose, parts)]

    def _parts_of(self, size: int) -> int:
        """Rounds of equal tasks: all cores have some to do to the end."""
        a_round = self._asked.partitions_at_least or 2
        return a_round * max(1, round(size / TASK_BYTES / a_round))

    @each_in_one_message
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's rows, in Arrow batches."""
        if isinstance(partition, WholePartition):
            found = partition.batches()
        elif isinstance(partition, TablePartition):
            found = _folded(partition)
        else:
            found = iter(())
        wanted = arrow_schema(self._schema)
        for batch in found:
            yield batch.select(wanted.names).cast(wanted)


def _narrowed(
    table: TableRead, keys: Sequence[KeyRange], parts: int, size: int
) -> list[RangeRead] | None:
    """The reads for ``keys``; None if they were more than the table, of ``size`` bytes."""
    boundary, choose = table.boundary, table.choose
    if len(keys) <= MOST_APART:
        apart = [key_ranges.cut(boundary, choose, one) for one in keys]
        if _size(apart) < size and all(read.size_bytes <= TASK_BYTES for read in apart):
            return apart
    # Option key counts on it that one range alone is read exactly.
    found = key_ranges.joined(boundary, choose, keys, parts)
    return found if len(keys) == 1 or _size(found) < size else None


def _size(reads: Sequence[RangeRead]) -> int:
    return sum(read.size_bytes for read in reads)


def _folded(partition: TablePartition) -> Iterator[pa.RecordBatch]:
    shape, opener = partition.shape, partition.objects.opener()
    reader = shape.reader()
    for read in partition.reads:
        opener.expect(order(read))
        try:
            yield from batches(read, reader, shape.columns, opener)
        except ValueLacking as lacking:
            # A row that the diffs made has no file of its own.
            raise lacking.with_location(
                f"{shape.asked.path} at {partition.objects.boundary}"
            ) from None


class FilteredTableReader(TableReader):
    """A reader of a table that reads only the key ranges of a query's filters.

    Spark refuses a reader with pushFilters where its setting is off.
    """

    @in_one_message
    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Use the filters on the key; Spark checks every row of what is read."""
        if self._keys is None:
            self._keys = ranges_of(filters, self._found().shape)
        return iter(filters)
