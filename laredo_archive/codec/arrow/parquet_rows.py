"""A parquet base's part in a key range: its row groups, opened so that only they are fetched."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa

from laredo_archive.codec import ByteSource
from laredo_archive.codec.arrow import parquet_blocks
from laredo_archive.codec.arrow.parquet_blocks import OpenSlice
from laredo_archive.codec.arrow.parquet_file import ParquetSnapshot
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.arrow.stored import StoredBatch
from laredo_archive.codec.ranged_file import ranged, spooled
from laredo_archive.manifest.key_ranges import ObjectSlice
from laredo_model.column import Column, key_columns

_TAIL_BYTES = 64 << 10
"""First read of pyarrow: the file's end, where the row groups are described."""


def batches(
    base: ObjectSlice, columns: Sequence[Column], rows: RowReader, open_slice: OpenSlice
) -> Iterator[StoredBatch]:
    """Stored batches of the slice, with the columns that ``rows`` and the key need.

    :raises BadBytes: if the file differs from its entry.
    """
    wanted = {*rows.needed, *(column.name for column in key_columns(columns))}
    names = [column.name for column in columns if column.name in wanted]
    with _opened(base, columns, open_slice) as snapshot:
        yield from snapshot.batches(snapshot.groups(base.start, base.stop), names)


def key_fragments(stored: StoredBatch, columns: Sequence[Column]) -> Mapping[str, pa.StringArray]:
    """The fragments of the key's columns."""
    return {column.name: stored.fragments(column.name) for column in key_columns(columns)}


@contextmanager
def _opened(
    base: ObjectSlice, columns: Sequence[Column], open_slice: OpenSlice
) -> Iterator[ParquetSnapshot]:
    if base.whole:
        # Its sha256 is compared before the first row.
        with open_slice(base) as source, spooled(source) as file:
            yield ParquetSnapshot(file, columns)
    elif base.blocks and base.last_block:
        with (
            parquet_blocks.fetched(base, base.last_block, open_slice) as footer,
            parquet_blocks.file_of(base, open_slice) as file,
        ):
            yield ParquetSnapshot(file, columns, footer)
    else:
        with _unchecked(base, open_slice) as file:
            yield ParquetSnapshot(file, columns)


@contextmanager
def _unchecked(base: ObjectSlice, open_slice: OpenSlice) -> Iterator[BinaryIO]:
    """A file whose manifest has no checksums of its blocks: only what is needed is fetched."""
    size = base.entry.size_bytes
    tail = max(1, size - _TAIL_BYTES)

    def at(offset: int) -> ObjectSlice:
        return replace(base, start=offset, stop=size)

    # The context that opened the file reports its errors, so it is open all the time.
    with open_slice(at(tail)) as source:
        waiting = [source]

        def open_at(offset: int) -> AbstractContextManager[ByteSource]:
            if offset == tail and waiting:
                return nullcontext(waiting.pop())
            return open_slice(at(offset))

        with ranged(open_at, size) as file:
            yield file
