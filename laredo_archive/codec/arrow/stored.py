"""Rows as a parquet snapshot stores them: typed columns, and beside them what these lack.

The last column, ``_laredo_rest``, is null but for rows with a value that its column's type
can't hold so that the line comes out again: infinity, BC, NaN in a decimal, an array with other
dimensions than the column's. Such a value is null in its column, and a member of the JSON object
in ``_laredo_rest``, as it is in the line. So no value is lost, and every line can be restored.
"""

from collections.abc import Iterator, Mapping, Sequence

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from laredo_archive.codec.arrow.errors import ArrowError
from laredo_archive.codec.arrow.fragments import BlockSplitter, nesting
from laredo_archive.codec.arrow.restored import restorer
from laredo_archive.codec.arrow.types import Special, Typing, is_array, schema
from laredo_archive.codec.arrow.values import Convert, converter
from laredo_archive.codec.errors import BadBytes
from laredo_model import line as lines_
from laredo_model.column import Column

REST = "_laredo_rest"
REST_NAME = b"laredo.rest"
"""In a file's metadata: the name of the last column, which says that lines can be restored."""
_JSON_ARRAYS = frozenset({"_json", "_jsonb"})


class RowStorer:
    """Makes record batches of lines, without losing anything of them."""

    def __init__(self, columns: Sequence[Column], first_block: bytes) -> None:
        """``first_block`` are the first lines: how deep an array column is, they say.

        :raises BadLine: if a line isn't a row with these columns.
        """
        names = [column.name for column in columns]
        self._splitter = BlockSplitter(names, nesting=nesting(columns))
        depths = _depths(columns, self._splitter.split(first_block))
        typing = Typing(special=Special.NULL, array_dimensions=depths)
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
        """The column's array; what it lacks is added to its rows' ``rests``."""
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
        """As typed as it gets; null where a value doesn't fit."""
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
        """The column as it is stored; None if it isn't stored so, or not all of it."""
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
