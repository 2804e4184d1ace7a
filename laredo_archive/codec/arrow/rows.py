"""A table's rows as Arrow record batches, in memory and in a parquet snapshot.

Some values have no exact place in their column's type: infinity, BC, NaN in a decimal, an array
with other dimensions than the column's. Such a value is null in its column, and a member, as it is
in the line, of a JSON object in the last column, ``_laredo_rest``, which is null in all other rows.
So no value is lost, and every line can be restored.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive.codec import protobuf
from laredo_archive.codec.arrow.fragments import BlockSplitter, nesting, rows_of, strings
from laredo_archive.codec.arrow.types import ArrowError, Special, TypeChoice, is_array, schema
from laredo_archive.codec.arrow.values import Convert, converter, restorer, texts
from laredo_archive.codec.struct_reader import Projection, StructRowReader
from laredo_archive.errors import BadBytes
from laredo_model import line as lines_
from laredo_model.column import Column, key_columns

REST = "_laredo_rest"
REST_NAME = b"laredo.rest"
"""Key in a file's metadata with the last column's name; files with it can restore lines."""
_JSON_ARRAYS = frozenset({"_json", "_jsonb"})


class RowStorer:
    """Makes record batches of lines, without losing anything of them."""

    def __init__(self, columns: Sequence[Column], first_block: bytes) -> None:
        """``first_block`` contains the first lines, which show the depth of each array column.

        :raises BadLine: if a line isn't a row with these columns.
        """
        names = [column.name for column in columns]
        self._splitter = BlockSplitter(names, nesting=nesting(columns))
        depths = _depths(columns, self._splitter.split(first_block))
        typing = TypeChoice(special=Special.NULL, array_dimensions=depths)
        typed = schema(columns, typing)
        self._columns = [
            _StoredColumn(column, field.type, converter(column, typing))
            for column, field in zip(columns, typed, strict=True)
        ]
        rest = rest_name(columns)
        fields = [pa.field(field.name, field.type) for field in typed]
        self.schema = pa.schema([*fields, pa.field(rest, pa.string())], {REST_NAME: rest.encode()})

    def batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of ``block``, whole lines that each end with a newline.

        :raises BadLine: if a line isn't a row with these columns.
        """
        fragments = self._splitter.split(block)
        rests: dict[int, list[tuple[str, str]]] = {}
        arrays = [column.store(fragments, rests) for column in self._columns]
        objects: list[str | None] = [None] * block.count(b"\n")
        for row, members in rests.items():
            names, values = zip(*members, strict=True)
            objects[row] = lines_.join(names, [value.encode() for value in values]).decode()
        return pa.record_batch([*arrays, pa.array(objects, pa.string())], schema=self.schema)


def rest_name(columns: Sequence[Column]) -> str:
    """``_laredo_rest``; with more underscores in a table that has such a column."""
    names = {column.name for column in columns}
    found = REST
    while found in names:
        found = f"_{found}"
    return found


def _depths(
    columns: Sequence[Column], fragments: Mapping[str, pa.StringArray]
) -> Mapping[str, int]:
    """Number of brackets that the first array of each column begins with."""
    found: dict[str, int] = {}
    for column in columns:
        if is_array(column) and column.type not in _JSON_ARRAYS:
            arrays = fragments[column.name]
            some = arrays.filter(pc.match_substring_regex(arrays, r"^\[+[^\[\]]"))[:1]
            for text in some.to_pylist():
                found[column.name] = len(text) - len(text.lstrip("["))
    return found


class _StoredColumn:
    def __init__(self, column: Column, type_: pa.DataType, convert: Convert) -> None:
        self._name = column.name
        self._type = type_
        self._convert = convert
        self._restore = restorer(type_, column.type)

    def store(
        self, fragments: Mapping[str, pa.StringArray], rests: dict[int, list[tuple[str, str]]]
    ) -> pa.Array:
        """The column's array; values that it can't have are added to their rows' ``rests``."""
        given = fragments[self._name]
        found = self._fitting(given)
        lost = pc.not_equal(self._restore(found), given)
        rows = pc.indices_nonzero(lost).to_pylist()
        if not rows:
            return found
        for row, value in zip(rows, given.filter(lost).to_pylist(), strict=True):
            rests.setdefault(row, []).append((self._name, value))
        kept = pc.if_else(lost, None, pa.array(range(len(found)), pa.int64()))
        return found.take(kept)

    def _fitting(self, given: pa.StringArray) -> pa.Array:
        """The typed array; null where a value doesn't fit."""
        try:
            return self._convert(given)
        except ArrowError:
            if len(given) == 1:
                return pa.nulls(1, self._type)
        half = len(given) // 2
        return pa.concat_arrays([self._fitting(given[:half]), self._fitting(given[half:])])


class StoredBatch:
    """Some rows of a parquet snapshot, column by column, typed or as the line has them."""

    def __init__(self, batch: pa.RecordBatch, columns: Sequence[Column], rest: str | None) -> None:
        self._batch = batch
        self._types = {column.name: column.type for column in columns}
        self._rests: dict[int, dict[str, str]] = {}
        if rest is not None and batch.num_rows > batch.column(rest).null_count:
            self._rests = dict(_members(batch.column(rest)))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._batch.num_rows)

    def filter(self, kept: pa.BooleanArray) -> "StoredBatch":
        """Those rows for which ``kept`` is true."""
        found = StoredBatch(self._batch.filter(kept), (), None)
        found._types = self._types
        if self._rests:
            numbers = pc.indices_nonzero(kept).to_pylist()
            found._rests = {
                at: self._rests[row] for at, row in enumerate(numbers) if row in self._rests
            }
        return found

    def typed(self, name: str, wanted: pa.DataType) -> pa.Array | None:
        """The column as it is stored; None if it has another type, or lacks some values."""
        array = self._batch.column(name)
        if array.type != wanted or any(name in rest for rest in self._rests.values()):
            return None
        return array

    def fragments(self, name: str) -> pa.StringArray:
        """The column's values as JSON, as they are in the lines."""
        array = self._batch.column(name)
        found = restorer(array.type, self._types[name])(array)
        others = {row: rest[name] for row, rest in self._rests.items() if name in rest}
        if not others:
            return found
        mask = [row in others for row in range(self.rows)]
        values = [others[row] for row in sorted(others)]
        return pc.replace_with_mask(found, pa.array(mask), pa.array(values, pa.string()))

    def lines(self, names: Sequence[str]) -> pa.StringArray:
        """The rows' lines, with these columns in this order."""
        heads = [orjson.dumps(name).decode() + ":" for name in names]
        parts: list[object] = ["{" + heads[0], self.fragments(names[0])]
        for name, head in zip(names[1:], heads[1:], strict=True):
            parts += ["," + head, self.fragments(name)]
        return pc.binary_join_element_wise(*parts, "}", "")


def _members(rests: pa.StringArray) -> Iterator[tuple[int, dict[str, str]]]:
    numbers = pc.indices_nonzero(rests.is_valid()).to_pylist()
    for row, text in zip(numbers, rests.drop_null().to_pylist(), strict=True):
        try:
            items = lines_.items(text.encode())
        except ValueError as wrong:
            raise BadBytes(f"{REST} isn't an object: {text[:80]!r}") from wrong
        yield row, {orjson.loads(name): value.decode() for name, value in items}


class RowReader:
    """Makes record batches of a table's lines.

    ``wanted``: the columns to make, in the table's order; all if None.
    """

    as_format_says = True
    """True if lines are as in docs/archive-format.md, where our own writer made them."""

    def __init__(
        self,
        columns: Sequence[Column],
        typing: TypeChoice | None = None,
        wanted: Sequence[str] | None = None,
    ) -> None:
        """:raises TypeChoiceRefused: if ``typing`` doesn't fit the columns."""
        chosen = typing or TypeChoice()
        whole = schema(columns, chosen)
        self._columns = [c for c in columns if wanted is None or c.name in set(wanted)]
        needed = {c.name for c in (*self._columns, *key_columns(columns))}
        self._split_names = needed
        #: The columns to which new rows are reduced before they are split; None: all.
        self.projection: Projection | None = None
        if self.as_format_says and len(needed) < len(columns):
            self.projection = Projection([c.name for c in columns], needed)
            self._projected_splitter = BlockSplitter(
                self.projection.names, nesting=nesting(columns), whole=False
            )
        self._splitter = BlockSplitter(
            [c.name for c in columns],
            list(needed),
            nesting(columns) if self.as_format_says else None,
            # The checksum of its block shows whether a line is as it was written.
            whole=not self.as_format_says,
        )
        self._converters = {c.name: converter(c, chosen) for c in self._columns}
        self.schema = pa.schema([whole.field(column.name) for column in self._columns])

    def batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of ``block``, whole lines that each end with a newline.

        :raises BadLine: if a line isn't a row with these columns.
        :raises ArrowError: if a value doesn't fit its column's Arrow type.
        """
        found = self.split(block)
        return self.typed(found, rows_of(found, block))

    def projected_batch(self, block: bytes) -> pa.RecordBatch:
        """The rows of a block of lines that the ``projection`` made; raises as ``batch``."""
        found = self._split_projected(block)
        return self.typed(found, rows_of(found, block))

    def split(self, block: bytes) -> Mapping[str, pa.StringArray]:
        """The JSON fragments of the wanted columns, and of the key's.

        :raises BadLine: if a line isn't a row with these columns.
        """
        return self._splitter.split(block)

    def split_structs(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray]:
        """Split SnapshotRow messages into columns.

        :raises BadBytes: if one isn't a row.
        """
        found = self._scanned(messages, reader)
        return self.split(protobuf.lines_of(messages, reader)) if found is None else found

    def projected_structs(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray]:
        """Split messages of the ``projection`` into columns; ``reader`` is for its columns."""
        if self.projection is None:
            return self.split_structs(messages, reader)
        found = self._scanned(messages, reader)
        return (
            self._split_projected(protobuf.lines_of(messages, reader)) if found is None else found
        )

    def _split_projected(self, block: bytes) -> Mapping[str, pa.StringArray]:
        if self.projection is None:
            return self.split(block)
        return self._projected_splitter.split(block)

    def _scanned(
        self, messages: list[bytes], reader: StructRowReader
    ) -> Mapping[str, pa.StringArray] | None:
        """The columns by compiled code; None if the messages have to be read row by row."""
        columns = reader.columns(messages, self._split_names)
        if columns is not None:
            with suppress(pa.ArrowInvalid):  # text that isn't UTF-8: row by row reports where
                return {name: strings((offsets, text)) for name, offsets, text in columns}
        return None

    @property
    def needed(self) -> Sequence[str]:
        """The columns that stored() needs."""
        return [column.name for column in self._columns]

    def stored(self, batch: StoredBatch) -> pa.RecordBatch:
        """The record batch of stored rows; columns that are stored in their type are reused."""
        arrays = []
        for name, convert in self._converters.items():
            found = batch.typed(name, self.schema.field(name).type)
            arrays.append(convert(batch.fragments(name)) if found is None else found)
        return self._of_arrays(arrays, batch.rows)

    def typed(self, fragments: Mapping[str, pa.StringArray], rows: int) -> pa.RecordBatch:
        """The record batch of split columns; ``rows`` is their length."""
        arrays = [convert(fragments[name]) for name, convert in self._converters.items()]
        return self._of_arrays(arrays, rows)

    def _of_arrays(self, arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
        if not arrays:
            # A batch without columns has only a number of rows.
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        return pa.record_batch(arrays, schema=self.schema)


def keys_of(fragments: Mapping[str, pa.StringArray], columns: Sequence[Column]) -> pa.StringArray:
    """The rows' keys (docs/archive-format.md, Rows), from the fragments of the key's columns."""
    names = [column.name for column in key_columns(columns)]
    if len(names) == 1:
        return texts(fragments[names[0]])
    inside = pc.binary_join_element_wise(*(fragments[name] for name in names), ",")
    return pc.binary_join_element_wise("[", inside, "]", "")
