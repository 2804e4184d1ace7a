"""A parquet snapshot, opened: row groups by the splits' byte offsets, their batches checked.

Every page has a checksum (CRC-32); page headers and the footer have none. The
caller has compared the file with its sha256, or its blocks with theirs (``parquet_blocks``).
https://parquet.apache.org/docs/file-format/data-pages/checksumming/
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from laredo_archive.codec.arrow.parquet_bounds import bounds, check, decoded, gathered
from laredo_archive.codec.arrow.stored import REST_NAME, StoredBatch
from laredo_archive.codec.errors import BadBytes
from laredo_archive.errors import ArchiveError
from laredo_model.column import Column

_ROWS_AT_ONCE = 16_384
_MAGIC_BYTES = 4
"""At a file's start, before its first row group."""


class ParquetSnapshot:
    """The rows in a seekable file."""

    def __init__(
        self, file: BinaryIO, columns: Sequence[Column] | None, footer: bytes | None = None
    ) -> None:
        """``columns``: the table's; as the file has them if None.

        ``footer``: the file's last bytes, if they were read already.

        :raises BadBytes: if it isn't a parquet file, or lacks one of them.
        """
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
                raise BadBytes(f"it has no column {column.name}; it has {', '.join(schema.names)}")

    @property
    def restorable(self) -> bool:
        """True if the file was written so that every line can be restored."""
        return self._rest is not None

    def groups(self, start: int = 0, stop: int | None = None) -> list[int]:
        """The row groups that begin in these bytes, which splits gave.

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

        :raises BadBytes: where a page isn't what it was.
        """
        wanted = [column.name for column in self.columns] if names is None else list(names)
        read = [*wanted, *([] if self._rest is None else [self._rest])]
        for group in groups:
            with _as_damage():
                for batch in gathered(self._bounded(group, read), _ROWS_AT_ONCE):
                    if set(batch.schema.names) != set(read):
                        raise BadBytes(f"its rows have {', '.join(batch.schema.names)}")
                    if batch.num_rows:
                        yield StoredBatch(batch, self.columns, self._rest)

    def _bounded(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows in batches of bounded bytes, however small the file is that they come from."""
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
        """``dictionaries``: the columns that come as they are in the file, not decoded."""
        return pq.ParquetFile(
            self._source,
            metadata=self._known,
            read_dictionary=list(dictionaries),
            pre_buffer=False,
            page_checksum_verification=True,
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
