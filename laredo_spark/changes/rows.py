"""Pieces of diffs, and of bases after a gap, as Arrow batches of changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import pyarrow as pa

from laredo_archive import codec
from laredo_archive.codec import ByteSource
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_archive.read import original
from laredo_model import position as positions
from laredo_model.line import TRUNCATION, Action, Change
from laredo_model.position import Position
from laredo_spark.changes.shape import ChangesShape, Columns, LineValues, action_name, also_columns
from laredo_spark.read.unfolded_reader import lines_from

_CHANGES_AT_ONCE = 10_000
_BYTES_AT_ONCE = 4 << 20

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
            values, columns = shape.lines(piece.columns), piece.columns
        with open_slice(piece.part) as source:
            found = _wanted(_changes(piece, source), shape.row.asked.key)
            for some in _at_once(found):
                yield _batch(some, piece, shape, values)


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


def _at_once(changes: Iterable[Change]) -> Iterator[list[Change]]:
    some: list[Change] = []
    size = 0
    for change in changes:
        some.append(change)
        size += len(change.old or b"") + len(change.new or b"")
        if len(some) == _CHANGES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _batch(
    some: Sequence[Change], piece: ChangesPiece, shape: ChangesShape, values: LineValues
) -> pa.RecordBatch:
    count = len(some)
    keys = [None if c.action is Action.TRUNCATE else c.key.decode() for c in some]
    known = {"epoch": piece.epoch, "lsn": piece.position, "time": piece.time}
    arrays = [
        pa.array([action_name(change, piece.is_snapshot) for change in some], pa.string()),
        pa.array([positions.text(piece.position)] * count, pa.string()),
        pa.array(keys, pa.string()),
        values.of([change.old for change in some]),
        values.of([change.new for change in some]),
        *also_columns(shape.row.asked.also, known, count),
    ]
    return pa.record_batch(arrays, schema=shape.arrow_schema())
