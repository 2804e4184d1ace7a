"""Columns that an archive names, or that are inferred from its first rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from itertools import chain, islice

import orjson
import pyarrow as pa

from laredo_archive.codec.arrow import types
from laredo_archive.codec.arrow.rows import RowReader
from laredo_archive.codec.row_keys import compact
from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import line as lines_
from laredo_model.column import Column, key_columns
from laredo_model.errors import BadLine

DEFAULT_INFER_ROWS = 1000
"""Rows that types are taken from, in archives without columns."""


def columns_at(
    archive: Archive, boundary: Boundary, infer_rows: int = DEFAULT_INFER_ROWS
) -> tuple[tuple[Column, ...], bool]:
    """Columns of the rows at ``boundary``, the key's marked; True if they had to be inferred.

    :raises ArtifactDamaged: if they were inferred, and a row has no key.
    """
    key_names = archive.shape(boundary).key_fields
    if boundary.columns is None:
        return inferred(archive, boundary, key_names, infer_rows), True
    if key_columns(boundary.columns):
        return tuple(boundary.columns), False
    order = {name: ordinal for ordinal, name in enumerate(key_names, 1)}
    marked = (replace(c, key_ordinal=order.get(c.name)) for c in boundary.columns)
    return tuple(marked), False


class InferredRows(RowReader):
    """Reads rows of other programs: columns in any order, with blanks, nulls left out."""

    as_format_says = False

    def __init__(
        self,
        columns: Sequence[Column],
        typing: types.TypeChoice | None = None,
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


def inferred(
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
