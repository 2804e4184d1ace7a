"""Limits the rows of a parquet row group that are decoded at once, so that memory is bounded.

A dictionary's value is in the file once and comes out once per row: some kilobytes can
become gigabytes. So the longest value of each dictionary is measured first; the dictionaries
themselves are as large as they are on the page.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from laredo_archive.codec.errors import BadBytes

MOST_ROWS = 1024
"""Decoded at once; more are hardly faster."""
BYTES_AT_ONCE = 32 << 20
"""Of values from dictionaries, decoded at once; a row of its own may have more."""
LARGEST_ARRAYS = 1 << 30
"""Bytes. https://www.postgresql.org/docs/current/storage-toast.html: a value has at most 1 GB."""
MOST_VALUES = 1 << 26
"""In a column of one row group. Ours has the values of about 16 MB of lines."""
_EXPANDING = frozenset({"DELTA_BYTE_ARRAY"})
"""Encodings whose values repeat earlier ones; our writers don't use them."""

OpenWith = Callable[[Sequence[str]], pq.ParquetFile]
"""Opens the file so that these columns come as dictionaries."""


def check(metadata: pq.RowGroupMetaData) -> None:
    """See that a row group is one that can be read in bounded memory.

    :raises BadBytes: if it isn't.
    """
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if not 0 <= column.num_values <= MOST_VALUES:
            raise BadBytes(
                f"its column {column.path_in_schema} has {column.num_values} values in one row"
                f" group; at most {MOST_VALUES} are read"
            )
        expanding = _EXPANDING.intersection(column.encodings)
        if expanding:
            raise BadBytes(
                f"its column {column.path_in_schema} is encoded as {', '.join(expanding)}, which"
                " isn't read: write it with dictionaries, or plain"
            )


@dataclass(frozen=True)
class ReadBounds:
    """Limits for reading a row group's columns.

    ``rows``: the most rows to read at once. ``counted``: columns whose arrays may be so long that
    their size is measured before they are decoded.
    """

    rows: int
    counted: tuple[str, ...]


def bounds(
    open_with: OpenWith, metadata: pq.RowGroupMetaData, group: int, names: Sequence[str]
) -> ReadBounds:
    """Limits for reading the columns ``names`` of this row group, dictionaries included."""
    everything = map(metadata.column, range(metadata.num_columns))
    columns = [column for column in everything if column.path_in_schema.split(".")[0] in names]
    size = sum(column.total_uncompressed_size for column in columns)
    most = min(MOST_ROWS, BYTES_AT_ONCE * max(1, metadata.num_rows) // max(1, size))
    texts = {
        column.path_in_schema: column.num_values
        for column in columns
        if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY"
    }
    if not texts:
        return ReadBounds(max(1, most), ())
    longest = _longest(open_with, group, list(texts))
    rows = max(1, min(most, BYTES_AT_ONCE // max(1, sum(longest.values()))))
    counted = [
        path
        for path, length in longest.items()
        if "." in path and texts[path] * length > BYTES_AT_ONCE
    ]
    return ReadBounds(min(rows, 16) if counted else rows, tuple(counted))


def _longest(open_with: OpenWith, group: int, paths: list[str]) -> dict[str, int]:
    """By path the bytes of the longest value in the column's dictionary."""
    found = dict.fromkeys(paths, 0)
    names = list(dict.fromkeys(path.split(".")[0] for path in paths))
    first = next(open_with(paths).iter_batches(1, row_groups=[group], columns=names), None)
    if first is None:
        return found
    for path in paths:
        dictionary = _dictionary(first.column(path.split(".")[0]))
        if dictionary is not None and len(dictionary):
            found[path] = pc.max(pc.binary_length(dictionary)).as_py() or 0
    return found


def _dictionary(array: pa.Array) -> pa.Array | None:
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        array = array.values
    return array.dictionary if pa.types.is_dictionary(array.type) else None


def decoded(batch: pa.RecordBatch, counted: Sequence[str]) -> pa.RecordBatch:
    """``batch`` with plain values in the columns that were ``counted``.

    :raises BadBytes: if one would have more than LARGEST_ARRAYS bytes.
    """
    for path in counted:
        name = path.split(".")[0]
        array = leaves = batch.column(name)
        while not pa.types.is_dictionary(leaves.type):
            leaves = leaves.flatten()
        lengths = pc.binary_length(leaves.dictionary)
        size = pc.sum(pc.take(lengths, leaves.indices).cast(pa.int64())).as_py() or 0
        if size > LARGEST_ARRAYS:
            raise BadBytes(
                f"its column {name} has {size} bytes in {batch.num_rows} rows, more than"
                " PostgreSQL's arrays can have"
            )
        number = batch.schema.get_field_index(name)
        plain = _plain(array.type)
        batch = batch.set_column(number, pa.field(name, plain), array.cast(plain))
    return batch


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return type_.value_type
    return pa.list_(_plain(type_.value_type))


def gathered(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Join batches into fewer ones, of at most about BYTES_AT_ONCE."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= most_rows or size >= BYTES_AT_ONCE:
            yield _one(held)
            held, rows, size = [], 0, 0
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
