"""Columns of a read's rows: named by the archive, or inferred from the first rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain, islice

import orjson
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from laredo_archive.codec import protobuf
from laredo_archive.codec.arrow import types
from laredo_archive.codec.arrow.rows import RowReader, StoredBatch
from laredo_archive.codec.row_keys import compact
from laredo_archive.codec.struct_reader import StructRowReader
from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import line as lines_
from laredo_model.column import Column, key_columns
from laredo_model.errors import BadLine
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
        made = ByName if self.inferred else RowReader
        return made(self.columns, self.asked.typing, self.asked.columns)

    def arrow_schema(self) -> pa.Schema:
        """The batches' schema; every column is nullable, for values that a type lacks."""
        return pa.schema([field.with_nullable(True) for field in self.reader().schema])

    def spark_schema(self) -> StructType:
        """The DataFrame's schema."""
        return from_arrow_schema(self.arrow_schema())


class LineReader(RowReader):
    """Gives each row's line verbatim."""

    def __init__(
        self,
        columns: Sequence[Column],
        typing: types.Typing | None = None,
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


class ByName(RowReader):
    """Reads rows of other programs: columns in any order, with blanks, nulls left out."""

    as_format_says = False

    def __init__(
        self,
        columns: Sequence[Column],
        typing: types.Typing | None = None,
        wanted: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, typing, wanted)
        needed = {column.name for column in key_columns(columns)}
        self._key = needed
        self._all = {column.name for column in columns}
        self._needed = [c.name for c in columns if wanted is None or c.name in {*wanted, *needed}]

    def split(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """Return the JSON text of each column, by its name.

        :raises BadLine: if a line isn't a row, lacks its key, or has a column that isn't known.
        """
        try:
            return super().split(block)
        except BadLine:
            rows = [self._members(line) for line in block.split(b"\n")[:-1]]
        return {
            name: pa.array([row.get(name, b"null") for row in rows], pa.string())
            for name in self._needed
        }

    def _members(self, line: bytes) -> dict[str, bytes]:
        squeezed = compact(line)
        found = dict(zip(lines_.names(squeezed), lines_.fragments(squeezed), strict=True))
        if not self._key <= found.keys():
            raise BadLine(f"the row has no {', '.join(sorted(self._key - found.keys()))}: {line!r}")
        if not found.keys() <= self._all:
            unknown = ", ".join(sorted(found.keys() - self._all))
            raise BadLine(f"no row that types were inferred from has {unknown}")
        return found


class LineByName(LineReader, ByName):
    """Gives each row's line verbatim, as another program wrote it."""


# Infers a table's columns from its first rows, for archives that name no columns.

_INTEGER = re.compile(rb"-?\d{1,18}")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_EMPTY = frozenset[str]()
_TYPES = {
    _EMPTY: "text",
    frozenset({"int8"}): "int8",
    frozenset({"float8"}): "float8",
    frozenset({"int8", "float8"}): "float8",
    frozenset({"bool"}): "bool",
}


def inferred_columns(
    archive: Archive, boundary: Boundary, key_names: Sequence[str], rows: int
) -> tuple[Column, ...]:
    """Infer columns from up to ``rows`` rows of the base, and as many of the newest diffs.

    :raises ArtifactDamaged: if a row has no key.
    """
    kinds: dict[str, set[str]] = {}
    for line in _some_lines(archive, boundary, rows):
        for quoted, value in _items(line):
            kinds.setdefault(orjson.loads(quoted), set()).update(_kind(value.strip()))
    for name in key_names:
        if kinds and name not in kinds:
            raise ArtifactDamaged(
                archive.uri,
                f"no row has {name}, which is assumed to be the key as the manifest names none;"
                f" the rows' columns are {', '.join(kinds)}. Name the key (key_fields)",
            )
    found = kinds or {name: set() for name in key_names}
    order = {name: ordinal for ordinal, name in enumerate(key_names, 1)}
    return tuple(
        Column(name, _type(seen), ordinal=ordinal, key_ordinal=order.get(name))
        for ordinal, (name, seen) in enumerate(found.items(), 1)
    )


def _items(line: bytes) -> list[tuple[bytes, bytes]]:
    try:
        return lines_.items(line)
    except BadLine:
        return lines_.items(compact(line))


def _some_lines(archive: Archive, boundary: Boundary, rows: int) -> Iterator[bytes]:
    shape = archive.shape(boundary)
    files = archive.files
    base = chain.from_iterable(lines for _, lines in files.rows(boundary.base, shape))
    yield from islice(base, rows)
    newest = (
        change.new
        for diff in reversed(boundary.diffs)
        for change in files.changes(diff, shape)
        if change.new is not None
    )
    yield from islice(newest, rows)


def _kind(value: bytes) -> Iterable[str]:
    if value == b"null":
        return ()
    if value in (b"true", b"false"):
        return ("bool",)
    if value[:1] in (b"{", b"["):
        return ("jsonb",)
    if value[:1] == b'"':
        return ("text",)
    if _INTEGER.fullmatch(value):
        return ("int8",)
    return ("float8",) if _NUMBER.fullmatch(value) and not _is_long(value) else ("text",)


def _is_long(number: bytes) -> bool:
    """True if a double would lose digits."""
    try:
        return Decimal(number.decode()) != Decimal(repr(float(number)))
    except InvalidOperation:  # an exponent beyond Decimal's, in a json column
        return True


def _type(kinds: set[str]) -> str:
    return "jsonb" if "jsonb" in kinds else _TYPES.get(frozenset(kinds), "text")
