"""A client's rows of one moment as an Arrow table; needs the extra ``parquet`` (pyarrow)."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.types import TypeChoice
from laredo_fanout.client.table.rows import RowView
from laredo_model import position as positions

POSITION = b"laredo.position"
"""Key of the rows' position in the schema's metadata."""
_BLOCK_BYTES = 4 << 20


def table_of(
    view: RowView,
    numeric_as: str,
    special_values: str,
    array_dimensions: Mapping[str, int] | None,
) -> pa.Table:
    """The rows of the view, with the types of an archive.

    :raises ArrowError: if a value has no place in its column's type, or a type can't be had.
    """
    typing = TypeChoice.of(numeric_as, special_values, array_dimensions)
    reader = RowReader(view.columns, typing)
    nullable = [field.with_nullable(True) for field in reader.schema]
    position = positions.text(view.position or positions.ZERO).encode()
    schema = pa.schema(nullable, {POSITION: position})
    batches = [
        pa.record_batch(reader.batch(block).columns, schema=schema)
        for block in _blocks(view.lines())
    ]
    return pa.Table.from_batches(batches, schema)


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _BLOCK_BYTES:
            yield b"\n".join([*held, b""])
            held, size = [], 0
    if held:
        yield b"\n".join([*held, b""])
