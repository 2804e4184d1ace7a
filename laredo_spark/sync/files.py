"""The tasks of a Parquet target: write files of key ranges, and merge changes into them.

A task has a few adjacent files. It reads the new diffs in their range, and rewrites the files
that a change touches; unchanged rows come from the old file, not from the archive. Memory holds
the changed rows of the range, and a few row groups.
"""

import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from laredo_archive.codec.arrow.range_rows import new_batches, newest
from laredo_archive.codec.arrow.types import Special, Typing, arrow_type, has_specials, is_array
from laredo_archive.codec.arrow.values import converter
from laredo_archive.manifest.key_ranges import KeyRange, RangeRead
from laredo_model import line as lines_
from laredo_model.column import Column, key_columns
from laredo_spark.arrow_schema import arrow_schema
from laredo_spark.messages import in_one_message
from laredo_spark.objects import Objects
from laredo_spark.read.row_shape import RowShape
from laredo_spark.read.table_reader import TablePartition, TableReader
from laredo_spark.sync.folder import Folder
from laredo_spark.sync.state import SyncedFile

_GROUP_BYTES = 64 << 20
_BARE = frozenset({"bool", "int2", "int4", "int8", "oid", "float4", "float8"})
_QUOTED = frozenset({b"NaN", b"Infinity", b"-Infinity"})


class RangeFile:
    """Writes one Parquet file of a key range, under a random name; ``with`` makes it durable."""

    _file: IO[bytes]
    _size: int

    def __init__(self, folder: Folder, schema: StructType, keys: KeyRange) -> None:
        self._keys = keys
        self._name = f"part-{secrets.token_hex(12)}.parquet"
        self._creating = folder.create(self._name)
        self._schema = arrow_schema(schema)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows = 0

    def __enter__(self) -> "RangeFile":
        self._file = self._creating.__enter__()
        self._writer = pq.ParquetWriter(self._file, self._schema)
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they are written once they are enough for a row group."""
        self._held.append(batch.cast(self._schema))
        self._held_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held, self._held_bytes = [], 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush()
            self._writer.close()
            self._size = self._file.tell()
        else:
            self._writer.is_open = False  # or it writes a footer when it is collected
        self._creating.__exit__(kind, failure, trace)

    @property
    def written(self) -> SyncedFile:
        """The closed file's entry."""
        low, high = self._keys.low, self._keys.high
        return SyncedFile(
            self._name,
            None if low is None else low.decode(),
            None if high is None else high.decode(),
            self._rows,
            self._size,
        )


@dataclass(frozen=True)
class BuildFiles:
    """Writes each partition of a table's reader into a file of its own."""

    reader: TableReader
    schema: StructType
    staging: Folder

    @in_one_message
    def __call__(self, partition: InputPartition) -> list[SyncedFile]:
        """The file of one partition, which is one key range."""
        keys = partition.reads[0].keys if isinstance(partition, TablePartition) else KeyRange()
        with RangeFile(self.staging, self.schema, keys) as file:
            for batch in self.reader.read(partition):
                file.write(batch)
        return [file.written]


@dataclass(frozen=True)
class AdjacentFiles:
    """Adjacent files, in key order, and the new diffs in their range."""

    #: The files.
    files: tuple[SyncedFile, ...]
    #: The slices of diffs to merge.
    reads: RangeRead


@dataclass(frozen=True)
class MergeFiles:
    """Merges diffs into files."""

    #: The columns of the rows.
    shape: RowShape
    #: The location of the diffs.
    objects: Objects
    #: The files' schema.
    schema: StructType
    #: The folder of the old files.
    version: Folder
    #: The folder for new files.
    staging: Folder
    #: Whether a diff truncates the table, so that no earlier row stays.
    truncates: bool

    @in_one_message
    def __call__(self, adjacent: AdjacentFiles) -> list[SyncedFile]:
        """The files after the merge: unchanged ones, or new ones in the staging folder."""
        changed = newest(
            adjacent.reads, self.shape.reader(), self.shape.columns, self.objects.opener()
        )
        by_file = _by_file(adjacent.files, changed)
        return [
            self._rewritten(file, part) if part or self.truncates else file
            for file, part in zip(adjacent.files, by_file, strict=True)
        ]

    def _rewritten(self, file: SyncedFile, changed: Mapping[bytes, bytes | None]) -> SyncedFile:
        with RangeFile(self.staging, self.schema, file.keys) as made:
            if not self.truncates:
                for batch in self._untouched(file, list(changed)):
                    made.write(batch)
            for batch in new_batches(changed, self.shape.reader(), self.shape.columns):
                made.write(batch)
        return made.written

    def _untouched(self, file: SyncedFile, keys: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
        without = _leaving_out(keys, key_columns(self.shape.columns), self.shape.asked.typing)
        with self.version.open(file.name) as source, pq.ParquetFile(source) as before:
            for batch in before.iter_batches(batch_size=1 << 16, use_threads=False):
                yield without(batch)


def _by_file(
    files: Sequence[SyncedFile], changed: Mapping[bytes, bytes | None]
) -> list[dict[bytes, bytes | None]]:
    found: list[dict[bytes, bytes | None]] = [{} for _ in files]
    lows = [(file.low or "").encode() for file in files]
    for key, line in changed.items():
        found[bisect_right(lows, key) - 1][key] = line
    return found


def comparable(columns: Sequence[Column], shape: RowShape) -> bool:
    """Whether a row's key follows from its typed columns."""
    typing, wanted = shape.asked.typing, shape.asked.columns
    key = key_columns(columns)
    return bool(key) and all(_is_comparable(column, typing, wanted) for column in key)


def _is_comparable(column: Column, typing: Typing, wanted: Sequence[str] | None) -> bool:
    found = arrow_type(column, typing)
    if wanted is not None and column.name not in wanted:
        return False
    if typing.special is Special.NULL and has_specials(found):
        return False
    return not is_array(column) and not pa.types.is_floating(found)


def _leaving_out(
    keys: Sequence[bytes], columns: Sequence[Column], typing: Typing
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A filter that drops the rows with these keys."""
    values = _typed(keys, columns, typing)
    if len(columns) == 1:
        touched = values.column(0)

        def by_value(batch: pa.RecordBatch) -> pa.RecordBatch:
            own = batch.column(columns[0].name).cast(touched.type)
            return batch.filter(pc.invert(pc.is_in(own, touched)))

        return by_value
    names = [column.name for column in columns]

    def by_values(batch: pa.RecordBatch) -> pa.RecordBatch:
        own = pa.table([batch.column(name) for name in names], names).cast(values.schema)
        numbered = own.append_column("\0row", pa.array(range(batch.num_rows), pa.int64()))
        left = numbered.join(values, names, join_type="left anti", use_threads=False)
        return batch.take(left.column("\0row").combine_chunks().sort())

    return by_values


def _typed(keys: Sequence[bytes], columns: Sequence[Column], typing: Typing) -> pa.Table:
    """The keys as typed columns, like those of a target's files."""
    fragments = [_fragments(key, columns) for key in keys]
    return pa.table(
        {
            column.name: converter(column, typing)(
                pa.array([parts[number].decode() for parts in fragments], pa.string())
            )
            for number, column in enumerate(columns)
        }
    )


def _fragments(key: bytes, columns: Sequence[Column]) -> Sequence[bytes]:
    """Split a key into its columns' JSON values: the inverse of laredo_model.key."""
    if len(columns) > 1:
        return lines_.elements(key)
    bare = columns[0].type in _BARE and key not in _QUOTED
    return [key if bare else orjson.dumps(key.decode())]
