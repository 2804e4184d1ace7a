"""A read of a table: one manifest, one boundary, its columns, and Spark's partitions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from laredo_archive.arrow.columns import columns_at
from laredo_archive.codec.arrow.range_rows import batches, order
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import MistypedValue, UnrepresentableValue
from laredo_archive.manifest import key_ranges, merged
from laredo_archive.manifest.chain import history_of
from laredo_archive.manifest.key_ranges import KeyRange, RangeRead
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.errors import BadLine
from laredo_spark.errors import (
    BoundaryGone,
    ColumnsChanged,
    KeyMissing,
    OptionRefused,
    SchemaUnfit,
    TypesUnfit,
    each_in_one_message,
    in_one_message,
)
from laredo_spark.objects import Objects
from laredo_spark.options import ReadOptions
from laredo_spark.read.key_filters import ranges_of
from laredo_spark.read.row_shape import RowShape
from laredo_spark.session import arrow_schema


@dataclass(frozen=True)
class TableRead:
    """One read of a table at one boundary, planned by one version of the manifest."""

    #: The options of the read.
    asked: ReadOptions
    #: The archive that is read.
    archive: Archive
    #: The boundary that is read.
    boundary: Boundary
    #: The columns of the rows.
    shape: RowShape

    @classmethod
    def of(cls, asked: ReadOptions) -> "TableRead":
        """Plan the read of ``asked`` now.

        :raises ArchiveError: if there is no such archive, or no such boundary in it.
        :raises BoundaryGone: if the boundary was pinned, and has left the archive.
        :raises OptionRefused: if a column isn't there.
        """
        archive = Archive.at(asked.path, asked.key_fields, asked.access())
        boundary = _boundary(archive, asked)
        shape = _with_known_columns(archive, boundary, asked)
        return cls(asked, archive, boundary, shape)

    def asking(self, asked: ReadOptions) -> "TableRead":
        """Read the same boundary with other options."""
        return replace(self, asked=asked, shape=replace(self.shape, asked=asked))

    def pinned(self) -> dict[str, str]:
        """The options of exactly this boundary, also when there are later ones."""
        return {
            "as_of": positions.text(self.boundary.position),
            "exact": "true",
            "epoch": str(self.boundary.epoch),
            "history": history_of(self.boundary.history),
        }

    @property
    def row_count(self) -> int | None:
        """The number of rows at the boundary, if the manifest records it."""
        last = self.boundary.last
        return last.row_count if last.rows is None and last.is_snapshot else last.rows

    @property
    def key_names(self) -> list[str]:
        """The key's columns, in its order."""
        return self.shape.key_names

    def refuse_without_key(self) -> None:
        """Refuse a table without a key.

        :raises KeyMissing: if it has none.
        """
        if not self.key_names:
            raise KeyMissing(self.asked.path)

    @property
    def has_ranges(self) -> bool:
        """True if tasks can read key ranges; else the files have to be sorted or joined first."""
        keyed = self.key_names and not self.shape.inferred
        return bool(keyed) and key_ranges.is_sorted(self.boundary, self.choose)

    def spark_schema(self) -> StructType:
        """The DataFrame's schema."""
        return self.shape.spark_schema()

    def choose(self, artifact: Artifact) -> tuple[str, FormatEntry]:
        """The format to read an artifact in, and its entry.

        :raises FormatUnknown: if it is there in none that is known here.
        """
        format_id = self.asked.format_id
        return self.archive.files.choose(
            artifact, format_id if format_id in artifact.formats else None
        )

    def objects(self) -> Objects:
        """The location of its objects, for tasks."""
        return Objects.of(self.asked, self.archive.found, self.boundary, self.shape.inferred)


def chosen(table: TableRead, schema: StructType, *, given: bool) -> TableRead:
    """The read of the columns of ``schema`` only, which are the table's, in whatever order.

    ``given``: True if it was given with ``.schema(...)``; else the table had it before.

    :raises SchemaUnfit: if they aren't the table's, and the schema was given.
    :raises ColumnsChanged: if they aren't any more.
    """
    now = table.spark_schema()
    if now == schema:
        return table
    problem = _unfit(now, schema)
    if problem is None and not table.asked.lines:
        return table.asking(replace(table.asked, columns=tuple(schema.names)))
    if given:
        raise SchemaUnfit(table.archive.uri, problem or "lines = true", now.simpleString())
    raise ColumnsChanged(table.archive.uri, schema.simpleString(), now.simpleString())


def _unfit(now: StructType, schema: StructType) -> str | None:
    types = {field.name: field.dataType for field in now}
    if not schema.names or len(set(schema.names)) < len(schema.names):
        return "name each column once, and one at least (count_rows() counts rows)"
    for field in schema:
        if field.name not in types:
            return f"there is no column {field.name}"
        if field.dataType != types[field.name]:
            there = types[field.name].simpleString()
            return f"column {field.name} is {there}, not {field.dataType.simpleString()}"
    return None


def _boundary(archive: Archive, asked: ReadOptions) -> Boundary:
    if asked.history is None:
        return archive.boundary(asked.as_of, exact=asked.exact, epoch=asked.epoch)
    if asked.as_of is not None:
        archive.unfold(merged.at(asked.as_of))
    # A re-base may have given the diff that ends there to the next epoch.
    found = [
        boundary
        for boundary in archive.boundaries
        if boundary.position == asked.as_of and asked.history in map(history_of, boundary.histories)
    ]
    same_epoch = [boundary for boundary in found if boundary.epoch == asked.epoch]
    if not found:
        at = f"the boundary {asked.as_of if asked.as_of is None else _text(asked)}"
        raise BoundaryGone(archive.uri, f"{at} (epoch {asked.epoch}, history {asked.history})")
    return (same_epoch or found)[-1]


def _text(asked: ReadOptions) -> str:
    as_of = asked.as_of
    return positions.text(as_of) if isinstance(as_of, int) else str(as_of)


def shape_at(archive: Archive, boundary: Boundary, asked: ReadOptions) -> RowShape:
    """The columns at a boundary, for a read by keys.

    :raises KeyMissing: if the table has none.
    :raises OptionRefused: if a column that was asked for isn't there.
    """
    shape = _with_known_columns(archive, boundary, asked)
    if not shape.key_names:
        raise KeyMissing(asked.path)
    return shape


def _with_known_columns(archive: Archive, boundary: Boundary, asked: ReadOptions) -> RowShape:
    shape = _shape(archive, boundary, asked)
    _refuse_unknown_columns(shape)
    return shape


def _shape(archive: Archive, boundary: Boundary, asked: ReadOptions) -> RowShape:
    key_names = archive.shape(boundary).key_fields
    if not key_names and (asked.key is not None or boundary.columns is None):
        raise KeyMissing(asked.path)
    return RowShape(asked, *columns_at(archive, boundary, asked.infer_rows))


def _refuse_unknown_columns(shape: RowShape) -> None:
    known = [column.name for column in shape.columns]
    for name in shape.asked.columns or ():
        if name not in known:
            raise OptionRefused("columns", name, f"the table's columns are {', '.join(known)}")
    for name in shape.asked.key_fields or ():
        if name not in known:
            raise OptionRefused("key_fields", name, f"the table's columns are {', '.join(known)}")


# Spark partitions of a table: each reads some key ranges, with base and diffs merged.
#
# An archive that isn't sorted has no ranges: here one task merges it, sorting in a temporary file.
# read_table() lets Spark join it on all its tasks instead (``unsorted``).

TASK_BYTES = 128 << 20
"""Approximate bytes that one task reads, if the number of partitions isn't given. At each end of a
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
        except (BadLine, MistypedValue) as wrong:
            if not self._shape.inferred:
                raise
            raise TypesUnfit(uri, str(wrong), self._asked.infer_rows) from None
        except UnrepresentableValue as lacking:
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
            self._table = chosen(TableRead.of(self._asked), self._schema, given=self._given)
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
        """A number of equal tasks that keeps all cores busy to the end."""
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
    # Option key relies on an exact read of one range.
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
        except UnrepresentableValue as lacking:
            # A row that the diffs made has no file of its own.
            raise lacking.with_location(
                f"{shape.asked.path} at {partition.objects.boundary}"
            ) from None
        except BadLine as wrong:
            where = f"{shape.asked.path} at {partition.objects.boundary}"
            if shape.inferred:
                raise TypesUnfit(where, str(wrong), shape.asked.infer_rows) from None
            raise BadLine(
                f"{where}: {wrong}. Check the archive with laredo-archive verify"
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
