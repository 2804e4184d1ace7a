"""Spark partitions of changes: each reads some diffs, or a piece of a large one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from laredo_archive import codec
from laredo_archive.arrow.changes import arrays, at_once
from laredo_archive.codec import ByteSource
from laredo_archive.manifest import key_ranges
from laredo_archive.manifest.chain import NextArtifact
from laredo_archive.manifest.key_ranges import KeyRange, ObjectSlice
from laredo_archive.manifest.model import Artifact
from laredo_archive.read import original
from laredo_archive.reader import Archive
from laredo_model.line import TRUNCATION, Action, Change
from laredo_model.position import Position
from laredo_spark.changes.plan import ChangesRead, Pinned
from laredo_spark.changes.shape import ChangesShape, Columns, LineValues, also_columns
from laredo_spark.errors import ColumnsChanged, KeyMissing, each_in_one_message, in_one_message
from laredo_spark.objects import Objects, gathered
from laredo_spark.options import ReadOptions
from laredo_spark.read.unfolded_reader import lines_from, slices_of
from laredo_spark.session import arrow_schema

# Pieces of diffs, and of bases after a gap, as Arrow batches of changes.

OpenSlice = Callable[[ObjectSlice], AbstractContextManager[ByteSource]]


@dataclass(frozen=True)
class ChangesPiece:
    """A part of one artifact, read by one task."""

    #: The bytes.
    part: ObjectSlice
    #: Whether they are whole lines or messages; else the lines that begin in them are read.
    aligned: bool
    #: Whether the artifact is a base, read after a gap.
    is_snapshot: bool
    #: Whether it is the first part of its artifact.
    begins: bool
    #: The columns of its epoch.
    columns: Columns
    #: The key's columns.
    key_names: tuple[str, ...]
    #: The epoch.
    epoch: int
    #: The artifact's to_position.
    position: Position
    #: The artifact's to_time.
    time: datetime


def batches(
    pieces: Sequence[ChangesPiece], shape: ChangesShape, open_slice: OpenSlice
) -> Iterator[pa.RecordBatch]:
    """The pieces' changes, in batches of some thousand changes, or some megabytes.

    :raises ArchiveError, SparkReadError: as Objects and LineValues do.
    """
    values: LineValues | None = None
    columns: object = None
    for piece in pieces:
        if values is None or columns != piece.columns:
            values, columns = LineValues(shape, piece.columns), piece.columns
        with open_slice(piece.part) as source:
            found = _wanted(_changes(piece, source), shape.row.asked.key)
            for some in at_once(found):
                known = {"epoch": piece.epoch, "lsn": piece.position, "time": piece.time}
                made = arrays(some, piece.position, values, is_snapshot=piece.is_snapshot)
                made += also_columns(shape.row.asked.also, known, len(some))
                yield pa.record_batch(made, schema=shape.arrow_schema())


def _changes(piece: ChangesPiece, source: ByteSource) -> Iterable[Change]:
    size = None if piece.part.stop is None else piece.part.size_bytes
    if not piece.aligned:
        source, size = _Joined(lines_from(source, piece.part)), None
    format_id, columns = piece.part.format_id, piece.columns
    by_original = piece.part.entry.by_original
    if not piece.is_snapshot:
        changes = codec.read_diff(format_id, columns, source, None, size)
        return original.resolved(changes, piece.key_names) if by_original else changes
    blocks = codec.read_snapshot(format_id, columns, source, None, size, key_fields=piece.key_names)
    rows = (
        Change(Action.INSERT, key, None, line)
        for keys, lines in (_keyed(blocks, piece.key_names) if by_original else blocks)
        for key, line in zip(keys, lines, strict=True)
    )
    # The base replaces all rows that the reader has.
    return chain([TRUNCATION], rows) if piece.begins else rows


def _keyed(
    blocks: Iterable[tuple[list[bytes], list[bytes]]], key_names: Sequence[str]
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    for _, lines in blocks:
        plain = list(map(original.plain, lines))
        yield original.keys_of(plain, key_names), plain


class _Joined:
    """Blocks as a source."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def read(self, size: int = -1, /) -> bytes:
        """The next block, whatever ``size`` is."""
        return next(self._blocks, b"")


def _wanted(changes: Iterable[Change], key: str | None) -> Iterable[Change]:
    if key is None:
        return changes
    wanted = key.encode()
    return (c for c in changes if c.key == wanted or c.action is Action.TRUNCATE)


TASK_BYTES = 64 << 20
LEAST_BYTES = 1 << 20
"""The fewest bytes for a task of its own."""


class ChangesPartition(InputPartition):
    """The pieces of artifacts that one task reads."""

    def __init__(
        self, pieces: Sequence[ChangesPiece], objects: Objects, shape: ChangesShape
    ) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.objects = objects
        self.shape = shape

    def batches(self, schema: StructType) -> Iterator[pa.RecordBatch]:
        """The task's changes, in Arrow batches."""
        wanted = arrow_schema(schema)
        opener = self.objects.opener()
        opener.expect(piece.part for piece in self.pieces if piece.aligned)
        for batch in batches(self.pieces, self.shape, opener):
            yield batch.cast(wanted)


class ChangesReader(DataSourceReader):
    """Spark's reader of changes: plans on the driver, reads in tasks."""

    def __init__(self, asked: ReadOptions, schema: StructType, pinned: Pinned | None) -> None:
        self._asked = asked
        self._schema = schema
        self._pinned = pinned
        self._keys = keys_of(asked)

    @in_one_message
    def partitions(self) -> Sequence[InputPartition]:
        """The partitions, of a few megabytes or more each.

        :raises ColumnsChanged: if the schema isn't the one that the changes have.
        """
        read = ChangesRead.of(self._asked, self._pinned)
        now = read.shape.spark_schema()
        if now != self._schema:
            raise ColumnsChanged(read.archive.uri, self._schema.simpleString(), now.simpleString())
        return partitions(self._asked, read.archive, read.steps, read.shape, self._keys)

    @each_in_one_message
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One partition's changes, in Arrow batches."""
        if isinstance(partition, ChangesPartition):
            yield from partition.batches(self._schema)


class FilteredChangesReader(ChangesReader):
    """A reader of changes that skips bytes by a query's filter on the key.

    Spark refuses a reader with pushFilters where its setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        """Take ``key = '42'``; Spark checks every row of what is read."""
        for one in filters:
            if isinstance(one, EqualTo) and one.attribute == ("key",):
                self._keys = key_ranges.of_key(str(one.value).encode())
        return iter(filters)


def keys_of(asked: ReadOptions) -> KeyRange | None:
    """The range of option ``key``; None without it."""
    return None if asked.key is None else key_ranges.of_key(asked.key.encode())


def partitions(
    asked: ReadOptions,
    archive: Archive,
    steps: Iterable[NextArtifact],
    shape: ChangesShape,
    keys: KeyRange | None,
) -> list[InputPartition]:
    """Cut the steps' rows into tasks: those of ``keys``, and neighbours in the same blocks.

    :raises FormatUnknown: if an artifact is there in no format that is known here.
    """
    steps = [step for step in steps if step.has_rows]
    if not steps:
        return []
    upto = f"the changes up to {steps[-1].mark}"
    objects = Objects.of(asked, archive.found, upto, shape.row.inferred)
    pieces = [piece for step in steps for piece in _pieces(asked, archive, step, keys)]
    return [ChangesPartition(some, objects, shape) for some in _gathered(asked, pieces)]


def _pieces(
    asked: ReadOptions, archive: Archive, step: NextArtifact, keys: KeyRange | None
) -> Iterator[ChangesPiece]:
    artifact, base = step.artifact, step.epoch.base
    wanted = asked.format_id if asked.format_id in artifact.formats else None
    key_names = archive.shape(step.boundary).key_fields
    if not key_names:
        raise KeyMissing(asked.path)
    chosen = archive.files.choose(artifact, wanted)
    for number, (part, is_aligned) in enumerate(
        slices_of(*chosen, TASK_BYTES, is_diff=True)
        if keys is None
        else _narrowed(artifact, ObjectSlice(*chosen), keys)
    ):
        yield ChangesPiece(
            part,
            is_aligned,
            artifact.is_snapshot,
            number == 0,
            base.columns,
            key_names,
            step.epoch.number,
            artifact.to_position,
            step.boundary.time,
        )


def _narrowed(
    artifact: Artifact, whole: ObjectSlice, keys: KeyRange
) -> list[tuple[ObjectSlice, bool]]:
    """The slices that may hold the keys; a diff that may truncate is read from its start."""
    is_diff, format_id, entry = not artifact.is_snapshot, whole.format_id, whole.entry
    may_truncate = is_diff and (artifact.truncate or not artifact.records_truncation)
    if may_truncate or not entry.sorted or not entry.splits or format_id == codec.PARQUET:
        return slices_of(format_id, entry, TASK_BYTES, is_diff=True)
    part = key_ranges.narrowed(whole, keys)
    if part.size_bytes:
        return [(part.for_task(), True)]
    # A base is read even without a row of the key: its reader emits the TRUNCATE.
    return [] if is_diff else slices_of(format_id, entry, TASK_BYTES, is_diff=True)


def _gathered(asked: ReadOptions, pieces: Sequence[ChangesPiece]) -> list[list[ChangesPiece]]:
    """Some small files to a task."""
    total = sum(piece.part.size_bytes for piece in pieces)
    if asked.partitions:
        share = -(-total // asked.partitions)
    else:
        share = min(TASK_BYTES, max(LEAST_BYTES, total // (asked.partitions_at_least or 2)))
    return gathered(pieces, share)
