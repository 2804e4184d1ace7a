"""parquet: snapshots with typed columns, which any tool reads. Needs pyarrow (extra ``parquet``).

The types are those of :mod:`laredo_archive.codec.arrow.types`, numeric columns without precision
as text; what they lack is in the last column (:mod:`laredo_archive.codec.arrow.rows`), so lines
come out as they went in. Rows are in key order, in row groups of about 16 MB of lines; the
splits are where row groups begin.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from laredo_archive.codec.arrow.parquet_file import ParquetSnapshot
from laredo_archive.codec.arrow.rows import RowStorer
from laredo_archive.codec.output import (
    SNAPSHOT_BLOCK,
    ByteSink,
    ByteSource,
    EncodedFile,
    FileWriter,
)
from laredo_archive.codec.ranged_file import spooled
from laredo_archive.codec.row_keys import RowKeys
from laredo_archive.errors import BadBytes
from laredo_model.column import Column
from laredo_model.errors import BadLine

_BATCH_BYTES = 2 << 20
_WHOLE_GROUP = 1 << 31
_REPEATS = 2


class ParquetSnapshotEncoder:
    """Rows into a parquet snapshot. Takes memory for a few copies of a row group's lines."""

    def __init__(self, sink: ByteSink, columns: Sequence[Column]) -> None:
        self._output = FileWriter(sink, 0, columns)
        self._columns = columns
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._group: list[pa.RecordBatch] = []
        self._group_bytes = 0
        self._first_key = b""
        self._storer: RowStorer | None = None
        self._pages = _Pages()
        self._writer: pq.ParquetWriter | None = None

    def write(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> None:
        """The next rows.

        :raises BadLine: if a line isn't a row with the table's columns.
        """
        if not keys:
            return
        if not self._pending and not self._group:
            self._first_key = keys[0]
        self._output.count(keys)
        self._pending += lines
        self._pending_bytes += sum(map(len, lines))
        if self._pending_bytes >= min(_BATCH_BYTES, SNAPSHOT_BLOCK):
            self._store()
        if self._group_bytes >= SNAPSHOT_BLOCK:
            self._end_group()

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
        self._store()
        if self._group:
            self._end_group()
        self._opened().close()
        self._output.footer(self._pages.taken())
        return self._output.close()

    def _store(self) -> None:
        if self._pending:
            block = b"\n".join([*self._pending, b""])
            self._storer = self._storer or RowStorer(self._columns, block)
            self._group.append(self._storer.batch(block))
            self._group_bytes += self._pending_bytes
            self._pending, self._pending_bytes = [], 0

    def _end_group(self) -> None:
        self._opened().write_table(pa.Table.from_batches(self._group), row_group_size=_WHOLE_GROUP)
        self._output.block(self._first_key, self._pages.taken())
        self._group, self._group_bytes = [], 0

    def _opened(self) -> pq.ParquetWriter:
        """The writer, opened with the first rows, which show the depth of each array column."""
        if self._writer is None:
            storer = self._storer or RowStorer(self._columns, b"")
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._pages, mode="w"),
                storer.schema,
                compression="zstd",
                use_dictionary=_repeating(pa.Table.from_batches(self._group, storer.schema)),
                write_page_checksum=True,
            )
            self._output.header(self._pages.taken())
        return self._writer


def _repeating(rows: pa.Table) -> list[str]:
    """Paths of the columns whose values repeat twice or more on average.

    A dictionary of other values is as large as the values, and slower to write and to read.
    """
    found = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        path, values = field.name, column
        while pa.types.is_list(values.type):
            path, values = f"{path}.list.element", pc.list_flatten(values)
        if _REPEATS * pc.count_distinct(values).as_py() <= len(values):
            found.append(path)
    return found


class _Pages:
    """Buffer for pyarrow's output, so that a sink's errors needn't pass through C++."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._at = 0

    def write(self, data: bytes | memoryview, /) -> int:
        self._written.append(bytes(data))
        self._at += len(data)
        return len(data)

    def taken(self) -> bytes:
        found = b"".join(self._written)
        self._written.clear()
        return found

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def read_snapshot(
    stream: ByteSource,
    columns: Sequence[Column] | None,
    key_fields: Sequence[str],
    start: int | None = None,
    stop: int | None = None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """The rows as keys and lines, some thousand at a time.

    A stream that isn't seekable is spooled first.

    :raises BadBytes: if it isn't a parquet file with these columns.
    :raises TemporarySpaceLacking: if there is no room to spool it.
    """
    seekable = getattr(stream, "seekable", None)
    if seekable is not None and seekable():
        yield from _rows(cast(BinaryIO, stream), columns, key_fields, start, stop)
        return
    with spooled(stream) as file:
        yield from _rows(file, columns, key_fields, start, stop)


def _rows(
    file: BinaryIO,
    columns: Sequence[Column] | None,
    key_fields: Sequence[str],
    start: int | None,
    stop: int | None,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    snapshot = ParquetSnapshot(file, columns)
    names = [column.name for column in snapshot.columns]
    row_keys = RowKeys(key_fields, names)
    for batch in snapshot.batches(snapshot.groups(start or 0, stop)):
        lines = batch.lines(names).cast(pa.binary()).to_pylist()
        try:
            yield row_keys.of_lines(lines)
        except BadLine as wrong:
            raise BadBytes(str(wrong)) from wrong
