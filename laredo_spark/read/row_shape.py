"""Columns of a read's rows, with the types that its options choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from laredo_archive.arrow.columns import InferredRows
from laredo_archive.codec import protobuf
from laredo_archive.codec.arrow import types
from laredo_archive.codec.arrow.rows import RowReader, StoredBatch
from laredo_archive.codec.struct_reader import StructRowReader
from laredo_model.column import Column, key_columns
from laredo_spark.options import ReadOptions

LINE = "line"
_LINES = "\0line"
"""Among fragments; PostgreSQL's names hold no NUL."""


@dataclass(frozen=True)
class RowShape:
    """The columns of a read's rows; plain values, so that tasks can be sent it."""

    #: The options of the read, which choose columns and types.
    asked: ReadOptions
    #: The table's columns.
    columns: tuple[Column, ...]
    #: Whether the archive names no columns, and they were inferred from the first rows.
    inferred: bool = False

    @property
    def key_names(self) -> list[str]:
        """The key's columns, in its order."""
        return [column.name for column in key_columns(self.columns)]

    def reader(self) -> RowReader:
        """A converter of the table's lines to Arrow batches."""
        if self.asked.lines:
            return (LineByName if self.inferred else LineReader)(self.columns, wanted=())
        made = InferredRows if self.inferred else RowReader
        return made(self.columns, self.asked.typing, self.asked.columns)

    def arrow_schema(self) -> pa.Schema:
        """The batches' schema; every column is nullable, for values that a type lacks."""
        return pa.schema([field.with_nullable(True) for field in self.reader().schema])

    def spark_schema(self) -> StructType:
        """The DataFrame's schema."""
        return spark_schema(self.arrow_schema())


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema.

    PySpark 4.1, unless told otherwise, takes a timestamp without a zone for one in the session's.
    """
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


class LineReader(RowReader):
    """Gives each row's line verbatim."""

    def __init__(
        self,
        columns: Sequence[Column],
        typing: types.TypeChoice | None = None,
        wanted: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, typing, wanted)
        self.schema = pa.schema([pa.field(LINE, pa.string())])
        self._all_names = [column.name for column in columns]
        self.projection = None

    @property
    def needed(self) -> Sequence[str]:
        """Names of all columns, for a line contains each of them."""
        return self._all_names

    def stored(self, batch: StoredBatch) -> pa.RecordBatch:
        """Lines restored from rows that are stored in typed columns (parquet)."""
        return pa.record_batch([batch.lines(self._all_names)], schema=self.schema)

    def split(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """Return the lines, and the JSON text of each key column."""
        return {**super().split(block), _LINES: pa.array(block.split(b"\n")[:-1], pa.string())}

    def split_structs(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray]:
        """Return the lines and key columns of SnapshotRow messages."""
        return self.split(protobuf.lines_of(messages, reader))

    def typed(self, fragments: Mapping[str, pa.StringArray], rows: int) -> pa.RecordBatch:
        """A batch with the lines as its one column."""
        return pa.record_batch([fragments[_LINES]], schema=self.schema)


class LineByName(LineReader, InferredRows):
    """Gives the lines of other writers verbatim."""
