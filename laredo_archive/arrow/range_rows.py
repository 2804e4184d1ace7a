"""One key range of a table, folded: the base's rows in Arrow batches, with the diffs on top.

The newest change of each key wins. What the diffs of the range touch is held in
memory, so a range is to be cut so that it fits (``ranges.plan``); the base goes by.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive import codec
from laredo_archive.arrow import parquet_rows
from laredo_archive.arrow.rows import RowReader, keys_of
from laredo_archive.arrow.slices import OpenSlice
from laredo_archive.codec import Source
from laredo_archive.codec.errors import BadBytes
from laredo_archive.ranges import KeyRange, RangeRead, Slice
from laredo_model.change import Action
from laredo_model.column import Column

BLOCK_BYTES = 4 << 20
_ROWS_AT_ONCE = 10_000

Newest = Mapping[bytes, bytes | None]
"""By key its line; None: deleted."""


def newest(reads: RangeRead, columns: Sequence[Column], open_slice: OpenSlice) -> Newest:
    """What the diffs of a range come to."""
    found: dict[bytes, bytes | None] = {}
    for part in reads.diffs:
        with open_slice(part) as source:
            for action, key, _, new in codec.read_diff(
                part.format_id, columns, _Bounded(source, part), None, None
            ):
                # A TRUNCATE begins what is read, so there is nothing yet that it could empty.
                if action is not Action.TRUNCATE and key in reads.keys:
                    found[key] = new
    return found


def batches(
    reads: RangeRead, rows: RowReader, columns: Sequence[Column], open_slice: OpenSlice
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in no particular order; no empty batches.

    :raises BadBytes, BadLine: if an artifact isn't what its entry says.
    :raises ArrowError: if a value doesn't fit its column's Arrow type.
    """
    changed = newest(reads, columns, open_slice)
    if reads.base is not None:
        left = _Left(reads.keys, changed, columns)
        made = _of_parquet if reads.base.format_id == codec.PARQUET else _of_lines
        yield from made(reads.base, rows, columns, left, open_slice)
    lines = (line for line in changed.values() if line is not None)
    while some := list(islice(lines, _ROWS_AT_ONCE)):
        yield rows.batch(b"\n".join([*some, b""]))


def _of_lines(
    base: Slice, rows: RowReader, columns: Sequence[Column], left: "_Left", open_slice: OpenSlice
) -> Iterator[pa.RecordBatch]:
    with open_slice(base) as source:
        for block in _base_blocks(base, columns, source):
            fragments = rows.split(block)
            count = block.count(b"\n")
            kept = left.of(fragments)
            if kept is not None:
                count = kept.true_count
                fragments = {name: column.filter(kept) for name, column in fragments.items()}
            if count:
                yield rows.typed(fragments, count)


def _of_parquet(
    base: Slice, rows: RowReader, columns: Sequence[Column], left: "_Left", open_slice: OpenSlice
) -> Iterator[pa.RecordBatch]:
    for batch in parquet_rows.batches(base, columns, rows, open_slice):
        kept = None
        if not left.takes_all:
            kept = left.of(parquet_rows.key_fragments(batch, columns))
        found = batch if kept is None else batch.filter(kept)
        if found.rows:
            yield rows.stored(found)


class _Left:
    """Leaves out the base's rows that aren't in the range, or that a diff touches."""

    def __init__(self, keys: KeyRange, changed: Newest, columns: Sequence[Column]) -> None:
        self._keys = keys
        self._columns = columns
        self._touched = pa.array(list(changed), pa.string())

    @property
    def takes_all(self) -> bool:
        """Whether every row is in the range, and none touched."""
        return self._keys.whole and not len(self._touched)

    def of(self, fragments: Mapping[str, pa.StringArray]) -> pa.BooleanArray | None:
        """Which rows are left, by their keys' fragments; None: all."""
        if self.takes_all:
            return None
        keys = keys_of(fragments, self._columns)
        kept = pc.invert(pc.is_in(keys, self._touched))
        if self._keys.low is not None:
            kept = pc.and_(kept, pc.greater_equal(keys, self._keys.low.decode()))
        if self._keys.high is not None:
            kept = pc.and_(kept, pc.less(keys, self._keys.high.decode()))
        return None if kept.true_count == len(kept) else kept


def _base_blocks(base: Slice, columns: Sequence[Column], source: Source) -> Iterator[bytes]:
    """The base's lines, some megabytes at a time, each with its newline."""
    bounded = _Bounded(source, base)
    if base.format_id != codec.JSONL:
        for _, lines in codec.read_snapshot(base.format_id, columns, bounded):
            yield b"\n".join([*lines, b""])
        return
    rest = b""
    while piece := bounded.read(BLOCK_BYTES):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
    if rest:
        yield rest + b"\n"


class _Bounded:
    """A slice's bytes: ends at its stop, and refuses a file that ends before."""

    def __init__(self, source: Source, part: Slice) -> None:
        self._source = source
        self._left = part.size_bytes
        self._end = part.start + part.size_bytes

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        if not wanted:
            return b""
        data = self._source.read(wanted)
        if not data:
            raise BadBytes(f"it ends {self._left} bytes before byte {self._end}")
        self._left -= len(data)
        return data
