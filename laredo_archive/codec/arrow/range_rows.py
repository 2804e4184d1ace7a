"""Merges base and diffs of one key range of a table into Arrow batches.

The newest change of each key wins. The rows that the range's diffs touch are held in
memory, so ranges are cut to fit (``key_ranges.plan``); the base is streamed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive import codec
from laredo_archive.codec import ByteSource, protobuf
from laredo_archive.codec.arrow import parquet_file
from laredo_archive.codec.arrow.fragments import rows_of
from laredo_archive.codec.arrow.parquet_file import OpenSlice
from laredo_archive.codec.arrow.rows import RowReader, keys_of
from laredo_archive.codec.struct_reader import StructRowReader
from laredo_archive.errors import BadBytes
from laredo_archive.manifest.key_ranges import KeyRange, ObjectSlice, RangeRead
from laredo_model.column import Column, key_columns
from laredo_model.errors import BadLine, ModelError

_ROWS_AT_ONCE, _BYTES_AT_ONCE = 10_000, 4 << 20
_LINE_BEGINS = 0x7B

Newest = Mapping[bytes, bytes | None]
"""New row of each key, as its diff has it: a line, or a SnapshotRow message; None: deleted.

They differ in their first byte: a line's is a brace, a message's the tag of its only part. If the
reader has a projection, rows have its columns only.
"""


def newest(
    reads: RangeRead, rows: RowReader, columns: Sequence[Column], open_slice: OpenSlice
) -> Newest:
    """Newest row of each key in the diffs of a range; the diffs are opened in :func:`order`."""
    found: dict[bytes, bytes | None] = {}
    for part in order(reads):
        with open_slice(part) as source:
            bounded = _Bounded(source, part)
            # A TRUNCATE is the first change that is read: there are no rows yet to remove.
            made = codec.read_new_rows(
                part.format_id,
                columns,
                bounded,
                reads.keys,
                found,
                projection=rows.projection,
            )
            b"\n".join(made).decode()  # raises: a key that isn't UTF-8 is this file's damage
            found.update(made)
    return found


def new_batches(
    changed: Newest, rows: RowReader, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """The rows that diffs made.

    :raises BadBytes, BadLine: if one isn't a row of the table.
    :raises ArrowError: if a value doesn't fit its column's Arrow type.
    """
    made = [row for row in changed.values() if row is not None]
    for lines in _some([row for row in made if row[0] == _LINE_BEGINS]):
        yield rows.projected_batch(b"\n".join([*lines, b""]))
    names = None if rows.projection is None else set(rows.projection.names)
    reader = StructRowReader([c for c in columns if names is None or c.name in names], ())
    for messages in _some([row for row in made if row[0] != _LINE_BEGINS]):
        yield rows.typed(rows.projected_structs(messages, reader), len(messages))


def _some(rows: list[bytes]) -> Iterator[list[bytes]]:
    at = size = 0
    for stop, row in enumerate(rows, 1):
        size += len(row)
        if size >= _BYTES_AT_ONCE or stop - at == _ROWS_AT_ONCE or stop == len(rows):
            yield rows[at:stop]
            at, size = stop, 0


def order(reads: RangeRead) -> Sequence[ObjectSlice]:
    """The range's diffs in the order of reading: newest first, so that no older row is parsed."""
    return reads.diffs[::-1]


def batches(
    reads: RangeRead, rows: RowReader, columns: Sequence[Column], open_slice: OpenSlice
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in no particular order; no empty batches.

    :raises BadBytes, BadLine: if an artifact differs from its entry.
    :raises ArrowError: if a value doesn't fit its column's Arrow type.
    """
    changed = newest(reads, rows, columns, open_slice)
    if reads.base is not None:
        untouched = _UntouchedRows(reads.keys, changed)
        made = _of_parquet if reads.base.format_id == codec.PARQUET else _of_lines
        yield from made(reads.base, rows, columns, untouched, open_slice)
    yield from _new_batches(changed, rows, columns, reads.keys)


def _new_batches(
    changed: Newest, rows: RowReader, columns: Sequence[Column], keys: KeyRange
) -> Iterator[pa.RecordBatch]:
    try:
        yield from new_batches(changed, rows, columns)
    except ModelError:
        raise
    except ValueError as wrong:
        raise BadLine(
            f"a diff's row with a key from {keys.low or b'the first'!r} to"
            f" {keys.high or b'the last'!r} doesn't fit the table's columns: {wrong}"
        ) from wrong


def _of_lines(
    base: ObjectSlice,
    rows: RowReader,
    columns: Sequence[Column],
    untouched: "_UntouchedRows",
    open_slice: OpenSlice,
) -> Iterator[pa.RecordBatch]:
    with open_slice(base) as source:
        for found, of in _split(base, rows, columns, untouched.keys, _Bounded(source, base)):
            fragments, count = found, of
            if not untouched.takes_all:
                kept = untouched.mask(keys_of(found, columns))
                count = kept.true_count
                fragments = {name: column.filter(kept) for name, column in found.items()}
            if count:
                yield rows.typed(fragments, count)


def _split(
    base: ObjectSlice,
    rows: RowReader,
    columns: Sequence[Column],
    keys: KeyRange,
    source: ByteSource,
) -> Iterator[tuple[Mapping[str, pa.StringArray], int]]:
    """Some thousand rows of ``keys`` at a time as fragments, and their number."""
    if codec.plain_format(base.format_id) == codec.PROTOBUF:
        plain = codec.plain_bytes(base.format_id, source)
        names = [column.name for column in key_columns(columns)]
        for messages, reader in protobuf.read_messages(plain, columns, names, keys):
            if messages:
                yield rows.split_structs(messages, reader), len(messages)
        return
    for block in codec.read_lines(base.format_id, columns, source, keys):
        if block:
            fragments = rows.split(block)
            yield fragments, rows_of(fragments, block)


def _of_parquet(
    base: ObjectSlice,
    rows: RowReader,
    columns: Sequence[Column],
    untouched: "_UntouchedRows",
    open_slice: OpenSlice,
) -> Iterator[pa.RecordBatch]:
    for batch in parquet_file.batches(base, columns, rows, open_slice):
        found = batch
        if not (untouched.takes_all and untouched.keys.whole):
            own = keys_of(parquet_file.key_fragments(batch, columns), columns)
            kept = _inside(own, untouched.keys)
            if not untouched.takes_all:
                kept = pc.and_(kept, untouched.mask(own))
            if kept.true_count < batch.rows:
                found = batch.filter(kept)
        if found.rows:
            yield rows.stored(found)


def _inside(own: pa.StringArray, keys: KeyRange) -> pa.BooleanArray:
    found = own.is_valid()
    if keys.low is not None:
        found = pc.and_(found, pc.greater_equal(own, keys.low.decode()))
    if keys.high is not None:
        found = pc.and_(found, pc.less(own, keys.high.decode()))
    return found


class _UntouchedRows:
    """Selects the base's rows that no diff touches."""

    def __init__(self, keys: KeyRange, changed: Newest) -> None:
        self.keys = keys
        self._touched = sorted(changed)

    @property
    def takes_all(self) -> bool:
        """True if no row is touched."""
        return not self._touched

    def mask(self, keys: pa.StringArray) -> pa.BooleanArray:
        """True for each row that no diff touches; ``keys``: one or more, in order."""
        first, last = keys[0].as_py().encode(), keys[-1].as_py().encode()
        start, stop = bisect_left(self._touched, first), bisect_right(self._touched, last)
        return pc.invert(pc.is_in(keys, pa.array(self._touched[start:stop], pa.string())))


class _Bounded:
    """A slice's bytes: ends at the slice's stop, and refuses a file that ends earlier."""

    def __init__(self, source: ByteSource, part: ObjectSlice) -> None:
        self._source = source
        self._left = part.size_bytes
        self._end = part.start + part.size_bytes

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        if not wanted:
            return b""
        data = self._source.read(wanted)
        if not data:
            raise BadBytes(f"the file ends {self._left} bytes before byte {self._end}")
        self._left -= len(data)
        return data
