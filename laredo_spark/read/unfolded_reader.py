"""Reads base and diffs unmerged, as rows with key, order and action, for Spark to join."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import ByteType, LongType, StringType, StructField, StructType

from laredo_archive import codec
from laredo_archive.codec import ByteSource
from laredo_archive.codec.arrow.rows import RowReader, keys_of
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.manifest.model import Artifact, FormatEntry
from laredo_archive.read import original
from laredo_model import key
from laredo_model import line as lines_
from laredo_model.line import Action, Change
from laredo_spark.errors import each_in_one_message, in_one_message
from laredo_spark.objects import Objects, gathered
from laredo_spark.options import ReadMode, ReadOptions
from laredo_spark.read.row_shape import RowShape
from laredo_spark.read.table_read import TableRead
from laredo_spark.session import arrow_schema

KEY, ORDER, ACTION = "__laredo_key", "__laredo_order", "__laredo_action"
PUT, DELETE, TRUNCATE = 1, 2, 3
TASK_BYTES = 64 << 20
_BLOCK_BYTES = 4 << 20
_CHANGES_AT_ONCE = 10_000
_MOST_CHANGES = 1 << 40
"""The most changes of a diff; the order of a change is its diff * _MOST_CHANGES + its number."""


def unfolded(table: StructType) -> StructType:
    """The table's columns, and key, order and action."""
    added = [
        StructField(KEY, StringType()),
        StructField(ORDER, LongType()),
        StructField(ACTION, ByteType()),
    ]
    return StructType([*table.fields, *added])


@dataclass(frozen=True)
class _ArtifactPart:
    """A slice of one artifact: whole records, or else the lines that begin in it are read."""

    diff: int
    part: ObjectSlice
    aligned: bool = True


class UnfoldedPartition(InputPartition):
    """The slices that one task reads."""

    def __init__(self, parts: Sequence[_ArtifactPart], objects: Objects, shape: RowShape) -> None:
        super().__init__(None)
        self.parts = parts
        self.objects = objects
        self.shape = shape


class UnfoldedReader(DataSourceReader):
    """Spark's reader of the base alone, or of the diffs alone, in any order."""

    def __init__(self, asked: ReadOptions, schema: StructType) -> None:
        self._asked = asked
        self._schema = schema

    @in_one_message
    def partitions(self) -> Sequence[InputPartition]:
        """The partitions: slices of large jsonl files, several small diffs to a task."""
        table = TableRead.of(self._asked)
        diffs = list(enumerate(table.boundary.diffs, 1))
        truncating = [number for number, diff in diffs if diff.truncate]
        if self._asked.mode is ReadMode.BASE:
            parts = [] if truncating else [[one] for one in _pieces(table)]
        else:
            first = truncating[-1] if truncating else 1
            parts = _gathered([_whole(table, n, diff) for n, diff in diffs if n >= first])
        objects = table.objects()
        return [UnfoldedPartition(some, objects, table.shape) for some in parts]

    @each_in_one_message
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of the base, or changes, in Arrow batches."""
        if not isinstance(partition, UnfoldedPartition):
            return
        wanted = arrow_schema(self._schema)
        task = _UnfoldedTask(partition.shape, wanted)
        opener = partition.objects.opener()
        if self._asked.mode is ReadMode.DIFFS:
            opener.expect(one.part for one in partition.parts)
        for one in partition.parts:
            with opener(one.part) as source:
                yield from task.batches(one, source)


def _whole(table: TableRead, number: int, artifact: Artifact) -> _ArtifactPart:
    format_id, entry = table.choose(artifact)
    # Tasks don't need splits and blocks: a large base's are some megabytes.
    plain = replace(entry, splits=(), blocks=(), source={})
    return _ArtifactPart(number, ObjectSlice(format_id, plain))


def _pieces(table: TableRead) -> list[_ArtifactPart]:
    slices = slices_of(*table.choose(table.boundary.base), TASK_BYTES, is_diff=False)
    return [_ArtifactPart(0, part, is_aligned) for part, is_aligned in slices]


def slices_of(
    format_id: str, entry: FormatEntry, task_bytes: int, *, is_diff: bool
) -> list[tuple[ObjectSlice, bool]]:
    """An artifact in slices of about ``task_bytes``, and whether they are whole records."""
    plain = replace(entry, splits=(), blocks=(), source={})
    # A parquet file's footer says where its rows are, so it is read as a whole.
    # So is the original's diff, whose TRUNCATE may be anywhere.
    is_whole = format_id == codec.PARQUET or (entry.by_original and is_diff)
    if entry.size_bytes <= task_bytes or is_whole:
        return [(ObjectSlice(format_id, plain), True)]
    if entry.splits:
        ends = [*_spaced([offset for _, offset in entry.splits], task_bytes), None]
        return [
            (ObjectSlice(format_id, entry, start or 0, end).for_task(), True)
            for start, end in pairwise(ends)
        ]
    if format_id != codec.JSONL:
        return [(ObjectSlice(format_id, plain), True)]
    # Each but the first begins a byte early, to see whether a line ends there.
    size = entry.size_bytes
    return [
        (ObjectSlice(format_id, plain, max(0, start - 1), min(start + task_bytes, size)), False)
        for start in range(0, size, task_bytes)
    ]


def _spaced(offsets: Sequence[int], least: int) -> list[int]:
    """From 0 on (a TRUNCATE is before the first split), ``least`` apart at least."""
    found = [0]
    for offset in offsets:
        if offset - found[-1] >= least:
            found.append(offset)
    return found


def _gathered(parts: Sequence[_ArtifactPart]) -> list[list[_ArtifactPart]]:
    """Some files to a task, two tasks at least."""
    total = sum(one.part.size_bytes for one in parts)
    share = min(TASK_BYTES, max(1, total // 2))
    return gathered(parts, share)


class _UnfoldedTask:
    def __init__(self, shape: RowShape, schema: pa.Schema) -> None:
        self._schema = schema
        self._shape = shape
        self._reader: RowReader = shape.reader()
        self._columns = None if shape.inferred else shape.columns
        names = [column.name for column in shape.columns]
        self._nulls = lines_.join(names, [b"null"] * len(names))

    def batches(self, one: _ArtifactPart, source: ByteSource) -> Iterator[pa.RecordBatch]:
        found = self._changes(one, source) if one.diff else self._rows(one, source)
        for batch in found:
            yield batch.cast(self._schema)

    def _rows(self, one: _ArtifactPart, source: ByteSource) -> Iterator[pa.RecordBatch]:
        for block in self._blocks(one, source):
            count = block.count(b"\n")
            fragments = self._reader.split(block)
            if one.part.entry.by_original:
                lines = block.split(b"\n")[:-1]
                keys = _texts(original.keys_of(lines, self._shape.key_names))
            elif not self._shape.key_names:
                keys = _texts([key.digest(line) for line in block.split(b"\n")[:-1]])
            else:
                keys = keys_of(fragments, self._shape.columns)
            yield _with(self._reader.typed(fragments, count), keys, [0] * count, [PUT] * count)

    def _blocks(self, one: _ArtifactPart, source: ByteSource) -> Iterator[bytes]:
        part = one.part
        if part.format_id == codec.JSONL:
            for block in lines_from(source, part, aligned=one.aligned):
                whole = _without_blank_lines(block)
                yield original.plain(whole) if part.entry.by_original else whole
            return
        size = None if part.stop is None else part.size_bytes
        rows = codec.read_snapshot(
            part.format_id, self._columns, source, None, size, key_fields=self._shape.key_names
        )
        for _, lines in rows:
            yield b"\n".join([*lines, b""])

    def _changes(self, one: _ArtifactPart, source: ByteSource) -> Iterator[pa.RecordBatch]:
        changes = codec.read_diff(one.part.format_id, self._columns, source)
        if one.part.entry.by_original:
            changes = original.resolved(changes, self._shape.key_names)
        order = one.diff * _MOST_CHANGES
        while some := list(islice(changes, _CHANGES_AT_ONCE)):
            lines = [change.new or self._nulls for change in some]
            keys = [None if c.action is Action.TRUNCATE else c.key.decode() for c in some]
            places = list(range(order, order + len(some)))
            order += len(some)
            block = b"\n".join([*lines, b""])
            batch = self._reader.typed(self._reader.split(block), len(some))
            yield _with(batch, pa.array(keys, pa.string()), places, list(map(_action, some)))


def _texts(keys: list[bytes]) -> pa.StringArray:
    return pa.array([key.decode() for key in keys], pa.string())


def _with(
    batch: pa.RecordBatch, keys: pa.StringArray, order: list[int], actions: list[int]
) -> pa.RecordBatch:
    added = {
        KEY: keys,
        ORDER: pa.array(order, pa.int64()),
        ACTION: pa.array(actions, pa.int8()),
    }
    names = [*batch.schema.names, *added]
    return pa.RecordBatch.from_arrays([*batch.columns, *added.values()], names=names)


def _action(change: Change) -> int:
    if change.action is Action.TRUNCATE:
        return TRUNCATE
    return DELETE if change.new is None else PUT


def _without_blank_lines(block: bytes) -> bytes:
    if not block.startswith(b"\n") and b"\n\n" not in block:
        return block
    return b"\n".join([*filter(None, block.split(b"\n")), b""])


def lines_from(source: ByteSource, part: ObjectSlice, *, aligned: bool = False) -> Iterator[bytes]:
    """Blocks of the lines that begin in ``part``, each ending in a newline.

    If the slice isn't ``aligned`` its first line begins after the first newline at or after its
    start, or at the file's start; its last line is the one with the byte before ``stop``.
    """
    at, rest = part.start, b""
    last = (part.entry.size_bytes if part.stop is None else part.stop) - 1
    if part.start and not aligned:
        skipped, rest = _after_newline(source)
        at += skipped
    while at <= last:
        end = rest.find(b"\n", last - at) + 1 or rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            at, rest = at + end, rest[end:]
            continue
        piece = source.read(_BLOCK_BYTES)
        if not piece:
            if rest:
                yield rest + b"\n"
            return
        rest += piece


def _after_newline(source: ByteSource) -> tuple[int, bytes]:
    """The number of bytes before the first line's start, and the bytes already read from there."""
    skipped = 0
    while piece := source.read(_BLOCK_BYTES):
        end = piece.find(b"\n") + 1
        if end:
            return skipped + end, piece[end:]
        skipped += len(piece)
    return skipped, b""
