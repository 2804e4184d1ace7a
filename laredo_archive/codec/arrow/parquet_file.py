"""A parquet snapshot, opened: checked row groups in bounded memory, all or those of a key range.

A dictionary's value is in the file once and comes out once per row: some kilobytes can
become gigabytes. So the longest value of each dictionary is measured first; the dictionaries
themselves are as large as they are on the page.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from laredo_archive.codec import ByteSource
from laredo_archive.codec.arrow.rows import REST_NAME, RowReader, StoredBatch
from laredo_archive.codec.ranged_file import Seekable, ranged, spooled
from laredo_archive.errors import ArchiveError, BadBytes
from laredo_archive.manifest.key_ranges import Block, ObjectSlice
from laredo_model.column import Column, key_columns

# Row groups of a parquet base, and its footer, each compared with its checksum before it is read.
#
# Page headers and the footer have none in the file itself; the manifest's ``blocks`` have one for
# each row group and one for the footer, so these are fetched whole.

OpenSlice = Callable[[ObjectSlice], AbstractContextManager[ByteSource]]
"""Opens an artifact's bytes from the slice's start on; reading may go beyond its stop."""


@contextmanager
def fetched(base: ObjectSlice, block: Block, open_slice: OpenSlice) -> Iterator[bytes]:
    """One block's bytes, checked; an error that the block raises is the file's damage.

    :raises BadBytes: if the file ends before the block does.
    """
    part = ObjectSlice(base.format_id, base.entry, block.start, block.stop)
    with open_slice(part) as source:
        pieces, left = [], part.size_bytes
        while left:
            data = source.read(left)
            if not data:
                raise BadBytes(f"the file ends {left} bytes before byte {block.stop}")
            pieces.append(data)
            left -= len(data)
        yield b"".join(pieces)


def file_of(base: ObjectSlice, open_slice: OpenSlice) -> BinaryIO:
    """The blocks of the slice as a seekable file of the base's size.

    Reading elsewhere raises BadBytes.
    """
    return cast(BinaryIO, io.BufferedReader(_Blocks(base, base.blocks, open_slice)))


class _Blocks(Seekable):
    """Holds the block that was read last."""

    def __init__(self, base: ObjectSlice, blocks: Sequence[Block], open_slice: OpenSlice) -> None:
        super().__init__(base.entry.size_bytes)
        self._base = base
        self._blocks = blocks
        self._open_slice = open_slice
        self._held = b""
        self._held_at = 0

    def readinto(self, buffer: "memoryview", /) -> int:  # type: ignore[override]
        if self._at >= self._size:
            return 0
        if not self._held_at <= self._at < self._held_at + len(self._held):
            self._hold()
        start = self._at - self._held_at
        found = memoryview(self._held)[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _hold(self) -> None:
        for block in self._blocks:
            if block.start <= self._at < block.stop:
                self._held, self._held_at = b"", 0
                with fetched(self._base, block, self._open_slice) as data:
                    self._held = data
                self._held_at = block.start
                return
        raise BadBytes(
            f"the footer refers to byte {self._at}, outside the row groups that are read"
        )


MOST_ROWS = 4_096
"""Rows decoded at once, if their values are short."""
BYTES_AT_ONCE = 32 << 20
"""Bytes of values from dictionaries decoded at once; a single row may have more."""
LARGEST_ARRAYS = 1 << 30
"""Bytes. https://www.postgresql.org/docs/current/storage-toast.html: a value has at most 1 GB."""
MOST_VALUES = 1 << 26
"""Values in a column of one row group. Ours has those of about 16 MB of lines."""
_EXPANDING = frozenset({"DELTA_BYTE_ARRAY"})
"""Encodings whose values repeat earlier ones; our writers don't use them."""

OpenWith = Callable[[Sequence[str]], pq.ParquetFile]
"""Opens the file so that these columns come as dictionaries."""


def check(metadata: pq.RowGroupMetaData) -> None:
    """Check that a row group can be read in bounded memory.

    :raises BadBytes: if it can't.
    """
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        if not 0 <= column.num_values <= MOST_VALUES:
            raise BadBytes(
                f"the column {column.path_in_schema} has {column.num_values} values in one row"
                f" group; at most {MOST_VALUES} are read"
            )
        expanding = _EXPANDING.intersection(column.encodings)
        if expanding:
            raise BadBytes(
                f"the column {column.path_in_schema} is encoded as {', '.join(expanding)}, which"
                " isn't read; write it with dictionary encoding, or plain"
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
    """Bytes of the longest value in each column's dictionary, by path."""
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
                f"the column {name} has {size} bytes in {batch.num_rows} rows, more than"
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


# A parquet snapshot, opened: row groups by the splits' byte offsets, their batches checked.
#
# Every page has a checksum (CRC-32); page headers and the footer have none. The caller has compared
# the file with its sha256, or its blocks with their checksums.
# https://parquet.apache.org/docs/file-format/data-pages/checksumming/

_ROWS_AT_ONCE = 4_096
_MAGIC_BYTES = 4
"""At a file's start, before its first row group."""


class ParquetSnapshot:
    """The rows in a seekable file."""

    def __init__(
        self,
        file: BinaryIO,
        columns: Sequence[Column] | None,
        footer: bytes | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """``columns``: those of the table; None: those of the file.

        ``footer``: the file's last bytes, if they were read already. ``checked``: every byte is
        compared with a checksum of the manifest before it is decoded; else each page with its own.

        :raises BadBytes: if it isn't a parquet file, or lacks one of the columns.
        """
        self._checked = checked
        with _as_damage():
            self._known = None if footer is None else pq.read_metadata(io.BytesIO(footer))
            self._source = file
            self._file = self._open(())
            self._known = self._file.metadata
            schema = self._file.schema_arrow
            rest = (schema.metadata or {}).get(REST_NAME)
            self._rest = None if rest is None else rest.decode()
        named = [field for field in schema if field.name != self._rest]
        self.columns = list(columns or (_column(field, n) for n, field in enumerate(named, 1)))
        for column in self.columns:
            if schema.names.count(column.name) != 1:
                raise BadBytes(
                    f"the file must have one column {column.name}; its columns are"
                    f" {', '.join(schema.names)}"
                )

    @property
    def restorable(self) -> bool:
        """True if the file was written so that every line can be restored."""
        return self._rest is not None

    def groups(self, start: int = 0, stop: int | None = None) -> list[int]:
        """The row groups that begin in these bytes, which come from splits.

        :raises BadBytes: if none begins at ``start``, or inside of the file at ``stop``.
        """
        with _as_damage():
            offsets = [self._offset(number) for number in range(self._file.num_row_groups)]
        first = 0 if start <= _MAGIC_BYTES else start
        known = {0, *offsets}
        if stop is not None and stop > max(known):
            stop = None
        for given in {first, stop} - {None} - known:
            raise BadBytes(f"no row group begins at byte {given}")
        return [n for n, at in enumerate(offsets) if first <= at and (stop is None or at < stop)]

    def batches(
        self, groups: Sequence[int], names: Sequence[str] | None = None
    ) -> Iterator[StoredBatch]:
        """The rows of these groups, some thousand at a time, with the columns ``names`` only.

        :raises BadBytes: where a page differs from its checksum.
        """
        wanted = [column.name for column in self.columns] if names is None else list(names)
        read = [*wanted, *([] if self._rest is None else [self._rest])]
        for group in groups:
            with _as_damage():
                for batch in gathered(self._bounded(group, read), _ROWS_AT_ONCE):
                    if set(batch.schema.names) != set(read):
                        raise BadBytes(
                            f"the rows have the columns {', '.join(batch.schema.names)},"
                            f" not {', '.join(read)}"
                        )
                    if batch.num_rows:
                        yield StoredBatch(batch, self.columns, self._rest)

    def _bounded(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows in batches of bounded size, even if a small file expands to many bytes."""
        metadata = self._file.metadata.row_group(group)
        check(metadata)
        found = bounds(self._open, metadata, group, names)
        file = self._open(found.counted) if found.counted else self._file
        batches = file.iter_batches(
            found.rows, row_groups=[group], columns=list(names), use_threads=False
        )
        for batch in batches:
            yield decoded(batch, found.counted)

    def _open(self, dictionaries: Sequence[str]) -> pq.ParquetFile:
        """Open the file; the columns ``dictionaries`` aren't decoded."""
        return pq.ParquetFile(
            self._source,
            metadata=self._known,
            read_dictionary=list(dictionaries),
            pre_buffer=False,
            page_checksum_verification=not self._checked,
        )

    def _offset(self, group: int) -> int:
        first = self._file.metadata.row_group(group).column(0)
        offsets = (first.dictionary_page_offset, first.data_page_offset)
        return min(int(offset) for offset in offsets if offset is not None)


@contextmanager
def _as_damage() -> Iterator[None]:
    try:
        yield
    except (ArchiveError, BadBytes):
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as wrong:
        raise BadBytes(f"not a readable parquet file: {wrong}") from wrong


def _column(field: pa.Field, ordinal: int) -> Column:
    """A column of a file whose manifest names none."""
    is_text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    return Column(field.name, "text" if is_text else str(field.type), ordinal=ordinal)


# A parquet base's part of a key range: only its row groups are fetched.

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
            yield ParquetSnapshot(file, columns, checked=base.entry.sha256 is not None)
    elif base.blocks and base.last_block:
        with (
            fetched(base, base.last_block, open_slice) as footer,
            file_of(base, open_slice) as file,
        ):
            yield ParquetSnapshot(file, columns, footer, checked=True)
    else:
        with _unchecked(base, open_slice) as file:
            yield ParquetSnapshot(file, columns)


@contextmanager
def _unchecked(base: ObjectSlice, open_slice: OpenSlice) -> Iterator[BinaryIO]:
    """A file whose entry has no checksums of its blocks; only the needed bytes are fetched."""
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
