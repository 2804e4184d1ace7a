"""Rows of changes as Arrow columns: action, position, key, and the row before and after.

| column | type | |
|---|---|---|
| action | string | INSERT, UPDATE, DELETE, TRUNCATE; SNAPSHOT: a base's row after a gap |
| position | string | end of the diff (of the base), such as 0/19F000 |
| key | string | docs/archive-format.md, Rows; null on TRUNCATE |
| old, new | struct of the table's columns | null where there is none |
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from laredo_archive.codec.arrow.rows import RowReader
from laredo_model import position as positions
from laredo_model.line import Action, Change
from laredo_model.position import Position

SNAPSHOT = "SNAPSHOT"
_CHANGES_AT_ONCE = 10_000
_BYTES_AT_ONCE = 4 << 20


def fields(values: pa.DataType) -> list[pa.Field]:
    """The columns; ``values`` is the type of ``old`` and ``new``."""
    texts = [pa.field(name, pa.string()) for name in ("action", "position", "key")]
    return [*texts, pa.field("old", values), pa.field("new", values)]


class RowValues:
    """Makes structs of lines; columns that the lines lack are null."""

    def __init__(self, type_: pa.StructType, reader: RowReader) -> None:
        """``reader`` takes the lines apart; its columns have the types that ``type_`` has."""
        self._type = type_
        self._reader = reader

    def of(self, lines: Sequence[bytes | None]) -> pa.Array:
        """One value for each line; null where there is none.

        :raises BadLine, ArrowError: if a line isn't a row of the table.
        """
        present = [line for line in lines if line is not None]
        if not present:
            return pa.nulls(len(lines), self._type)
        values = self._struct(self.batch(b"\n".join([*present, b""])))
        return values if len(present) == len(lines) else values.take(_indexes(lines))

    def batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of a block of lines; raises as :meth:`of`."""
        return self._reader.batch(block)

    def _struct(self, batch: pa.RecordBatch) -> pa.StructArray:
        have = {name: batch.column(n) for n, name in enumerate(batch.schema.names)}
        own = list(self._type)
        arrays = [
            have[field.name] if field.name in have else pa.nulls(batch.num_rows, field.type)
            for field in own
        ]
        return pa.StructArray.from_arrays(arrays, fields=own)


def _indexes(lines: Sequence[bytes | None]) -> pa.Array:
    found: list[int | None] = []
    index = 0
    for line in lines:
        found.append(None if line is None else index)
        index += line is not None
    return pa.array(found, pa.int64())


def at_once(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Changes for one batch each: some thousand, or some megabytes."""
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


def arrays(
    some: Sequence[Change], at: Position, values: RowValues, *, is_snapshot: bool = False
) -> list[pa.Array]:
    """The columns of :func:`fields`; raises as RowValues.of."""
    keys = [None if c.action is Action.TRUNCATE else c.key.decode() for c in some]
    return [
        pa.array([_action_name(change, is_snapshot) for change in some], pa.string()),
        pa.array([positions.text(at)] * len(some), pa.string()),
        pa.array(keys, pa.string()),
        values.of([change.old for change in some]),
        values.of([change.new for change in some]),
    ]


def _action_name(change: Change, is_snapshot: bool) -> str:
    return SNAPSHOT if is_snapshot and change.action is Action.INSERT else change.action.name
