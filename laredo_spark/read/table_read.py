"""The plan of a read of a table: one manifest, one boundary, its columns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql.types import StructType

from laredo_archive.codec import ByteSource
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.manifest import key_ranges, merged
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.column import Column, key_columns
from laredo_spark.errors import (
    BoundaryGone,
    ColumnsChanged,
    KeyMissing,
    OptionRefused,
    SchemaUnfit,
)
from laredo_spark.objects import Objects
from laredo_spark.options import ReadOptions
from laredo_spark.read import inference
from laredo_spark.read.row_shape import RowShape

UNKNOWN_HISTORY = "unknown"
"""Option history, for archives without a history."""


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
            "history": _history(self.boundary),
        }

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's at the boundary."""
        return self.shape.columns

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
        """Refuse a table without a key, where rows are found by theirs.

        :raises KeyMissing: if it has none.
        """
        if not self.key_names:
            raise KeyMissing(self.asked.path)

    @property
    def has_ranges(self) -> bool:
        """True if tasks can read key ranges; else the files have to be sorted or joined first."""
        keyed = self.key_names and not self.shape.inferred
        return bool(keyed) and key_ranges.is_sorted(self.boundary, self.choose)

    def rows(self) -> RowReader:
        """A converter of its lines to Arrow batches."""
        return self.shape.reader()

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

    @contextmanager
    def open_slice(self, part: ObjectSlice) -> Iterator[ByteSource]:
        """An artifact's bytes from the slice's start on; raises as Objects does."""
        with self.objects().opener()(part) as source:
            yield source


def chosen(table: TableRead, schema: StructType, *, given: bool) -> TableRead:
    """The read of the columns of ``schema`` only, which are the table's, in whatever order.

    ``given``: whether it was with ``.schema(...)``; else it is what the table had before.

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


def _history(boundary: Boundary) -> str:
    return UNKNOWN_HISTORY if boundary.history is None else str(boundary.history)


def _boundary(archive: Archive, asked: ReadOptions) -> Boundary:
    if asked.history is None:
        return archive.boundary(asked.as_of, exact=asked.exact, epoch=asked.epoch)
    if asked.as_of is not None:
        archive.unfold(merged.at(asked.as_of))
    # A re-base may have given the diff that ends there to the next epoch.
    found = [
        boundary
        for boundary in archive.boundaries
        if boundary.position == asked.as_of and _history(boundary) == asked.history
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
    """The columns at a boundary, for what goes by keys.

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
    if boundary.columns is None:
        found = inference.columns(archive, boundary, key_names, asked.infer_rows)
        return RowShape(asked, found, inferred=True)
    return RowShape(asked, _keyed(boundary.columns, key_names))


def _keyed(columns: Sequence[Column], key_names: Sequence[str]) -> tuple[Column, ...]:
    """The columns with the key's, for a manifest whose columns don't mark them."""
    if key_columns(columns):
        return tuple(columns)
    order = {name: ordinal for ordinal, name in enumerate(key_names, 1)}
    return tuple(replace(column, key_ordinal=order.get(column.name)) for column in columns)


def _refuse_unknown_columns(shape: RowShape) -> None:
    known = [column.name for column in shape.columns]
    for name in shape.asked.columns or ():
        if name not in known:
            raise OptionRefused("columns", name, f"there are {', '.join(known)}")
    for name in shape.asked.key_fields or ():
        if name not in known:
            raise OptionRefused("key_fields", name, f"there are {', '.join(known)}")
