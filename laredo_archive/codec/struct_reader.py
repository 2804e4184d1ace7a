"""Conversion of google.protobuf.Struct to lines, in C where it was compiled.

Without columns (archives of other writers) values are read as they are, numbers
by their value, and columns are in the order of their names.

Compiled code (``_struct_scan.c``) reads what our own writer makes, rows whose members are in the
columns' order. It returns None for most else, which Python then reads, or refuses; a property test
holds that both give the same. Without a C compiler Python reads everything. By hand: the generated
class takes 1.15 times as long for forty short columns, 1.05 times for ten of 28 bytes each
(``benchmarks.struct_rows``).
"""

import re
from collections.abc import Callable, Collection, Container, Sequence
from functools import cached_property
from struct import Struct
from struct import error as struct_error
from types import ModuleType

import orjson

from laredo_archive.codec import struct_rows
from laredo_archive.codec.row_keys import heads, splitter
from laredo_archive.codec.struct_rows import (
    FLOAT_DIGITS,
    INTEGERS,
    JSONS,
    NUMBER,
    UNKNOWN,
    VERBATIM_MEMBER,
    element_type,
    entry_key,
    number_text,
)
from laredo_archive.errors import BadBytes
from laredo_model import key as keys_
from laredo_model import line as lines_
from laredo_model.column import Column

module: ModuleType | None
try:
    from laredo_archive.codec import _struct_scan as module
except ImportError:  # there was no C compiler when this was installed
    module = None

NewRows = tuple[
    bytes | None,
    bytes | None,
    Container[bytes],
    dict[bytes, bytes | None],
    tuple[bytes, ...],
    bytes,
]
"""Input and output of reading a diff: the first key and the one after the last, the known keys,
the new rows by key, and for each column the text before its value and a byte that is 1 if it is
wanted (no columns: rows verbatim)."""

_FLOATS = {"float8": b"d", "float4": b"f"}


class StructScan:
    """Reads Structs with one table's columns, in their order."""

    def __init__(self, scan: ModuleType, columns: Sequence[Column], key_at: Sequence[int]) -> None:
        """``key_at``: the positions of the key's columns among ``columns``, in the key's order."""
        self._scan = scan
        self._all = [column.name for column in columns]
        self._names = tuple(map(entry_key, self._all))
        self._prefixes = tuple(lines_.names_prefix(self._all))
        self._types = b"".join(map(_types, columns))
        self._key_at = tuple(key_at)

    def row(self, data: bytes, at: int, stop: int) -> tuple[bytes, tuple[bytes, ...]] | None:
        """The line of the Struct from ``at`` to before ``stop``, and its key's fragments."""
        found: tuple[bytes, tuple[bytes, ...]] | None = self._scan.row(
            data, at, stop, self._names, self._prefixes, self._types, self._key_at
        )
        return found

    def columns(
        self, messages: list[bytes], wanted: Collection[str]
    ) -> list[tuple[str, bytes, bytes]] | None:
        """The wanted columns of SnapshotRow messages: name, 32-bit offsets, joined fragments."""
        chosen = [name for name in self._all if name in wanted]
        is_wanted = bytes(name in wanted for name in self._all)
        found = self._scan.columns(messages, self._names, self._types, is_wanted)
        if found is None:
            return None
        return [(name, *buffers) for name, buffers in zip(chosen, found, strict=True)]


def scan(columns: Sequence[Column], key_at: Sequence[int] = ()) -> StructScan | None:
    """The compiled scan of rows with these columns; None if there is none."""
    # The elements of such a type may be arrays of another type than their own.
    if module is None or any(column.type.startswith("__") for column in columns):
        return None
    return StructScan(module, columns, key_at)


def _types(column: Column) -> bytes:
    """The rule for a column's values, and that for the elements of its lists."""
    return _type(column.type) + _type(element_type(column.type))


def _type(name: str) -> bytes:
    if name in JSONS:
        return b"j"
    return b"i" if name in INTEGERS else _FLOATS.get(name, b"t")


_DOUBLE = Struct("<d")
_ESCAPED = re.compile(rb'[\x00-\x1f"\\]')
_NOT_TEXT = JSONS | INTEGERS | FLOAT_DIGITS.keys()
"""Types whose strings in a Struct may be something else in a line."""
_NULL, _NUMBER, _STRING, _BOOL, _STRUCT, _LIST, _ENTRY = 0x08, 0x11, 0x1A, 0x20, 0x2A, 0x32, 0x0A


class StructRowReader:
    """Reads rows of one table, whose columns are known or not (None)."""

    def __init__(self, columns: Sequence[Column] | None, key_fields: Sequence[str]) -> None:
        self._key_fields = list(key_fields)
        self._columns = columns
        self._equal_rows = keys_.EqualRows()
        self._members: list[tuple[bytes, bytes, str, bool]] = []
        self._key_at: list[int] = []
        self._scan: StructScan | None = None
        if columns:
            names = [column.name for column in columns]
            self._members = [
                (entry_key(column.name), prefix, column.type, column.type not in _NOT_TEXT)
                for column, prefix in zip(columns, lines_.names_prefix(names), strict=True)
            ]
            if set(self._key_fields) <= set(names):
                self._key_at = [2 * names.index(name) + 1 for name in self._key_fields]
            key_at = [names.index(name) for name in self._key_fields] if self._key_at else []
            self._scan = scan(columns, key_at)

    def line(self, data: bytes, at: int, stop: int) -> bytes:
        """The line of the Struct in ``data`` from ``at`` to before ``stop``.

        :raises BadBytes: if there is no such Struct, or it has other columns.
        """
        scanned = self._scan and self._scan.row(data, at, stop)
        return scanned[0] if scanned else b"".join(self._pieces(data, at, stop))

    def columns(
        self, messages: list[bytes], wanted: Collection[str]
    ) -> list[tuple[str, bytes, bytes]] | None:
        """The wanted columns of SnapshotRow messages; None if they have to be read row by row."""
        return None if self._scan is None else self._scan.columns(messages, wanted)

    def row(self, data: bytes, at: int, stop: int) -> tuple[bytes, bytes]:
        """Row as a line, and its key.

        :raises BadBytes: also if the row lacks a key column.
        """
        scanned = self._scan and self._scan.row(data, at, stop) if self._key_at else None
        if scanned:
            return keys_.of_fragments(scanned[1]), scanned[0]
        pieces = self._pieces(data, at, stop)
        if self._key_at:
            return keys_.of_fragments([pieces[index] for index in self._key_at]), b"".join(pieces)
        line = b"".join(pieces)
        try:
            if not self._key_fields:
                return self._equal_rows.of(line), line
            return keys_.of_line(line, self._key_fields), line
        except ValueError as wrong:
            raise BadBytes(str(wrong)) from wrong

    def _pieces(self, data: bytes, at: int, stop: int) -> list[bytes]:
        try:
            if self._members:
                pieces = self._in_order(data, at, stop)
                if pieces is not None:
                    return pieces
            return self._in_any_order(data, at, stop)
        except (IndexError, struct_error, UnicodeDecodeError, RecursionError) as wrong:
            raise BadBytes(f"not a row: {data[at : at + 80]!r}") from wrong

    def _in_order(self, data: bytes, at: int, stop: int) -> list[bytes] | None:
        pieces: list[bytes] = []
        search, unpack = _ESCAPED.search, _DOUBLE.unpack_from
        for key, prefix, type_name, is_text in self._members:
            if at >= stop or data[at] != _ENTRY:
                return None
            size = data[at + 1]
            at += 2
            if size > 0x7F:
                size, at = struct_rows.read(data, at - 1)
            end = at + size
            if not data.startswith(key, at):
                return None
            at += len(key) + 1
            if data[at - 1] > 0x7F:
                _, at = struct_rows.read(data, at - 1)
            # The most frequent values without a call: numbers, and strings with a short length.
            kind = data[at] if at < end else _NULL
            if kind == _STRING and is_text and data[at + 1] == end - at - 2 <= 0x7F:
                raw = data[at + 2 : end]
                fragment = b'"' + raw + b'"' if search(raw) is None else orjson.dumps(raw.decode())
            elif kind == _NUMBER:
                fragment = number_text(unpack(data, at + 1)[0], type_name)
            else:
                fragment = _fragment(data, at, end, type_name)
            pieces += (prefix, fragment)
            at = end
        if at != stop:
            return None
        pieces.append(b"}")
        return pieces

    def _in_any_order(self, data: bytes, at: int, stop: int) -> list[bytes]:
        types = {column.name: column.type for column in self._columns or ()}
        found = {
            name.decode(): _fragment(data, start, end, types.get(name.decode(), UNKNOWN))
            for name, start, end in _entries(data, at, stop)
        }
        if self._columns is None:
            names = sorted(found)
        elif found.keys() <= types.keys():
            names = list(types)
        else:
            odd = ", ".join(sorted(found.keys() - types.keys()))
            raise BadBytes(f"a row has columns that the manifest doesn't name: {odd}")
        pieces: list[bytes] = []
        for name, prefix in zip(names, lines_.names_prefix(names), strict=True):
            pieces += (prefix, found.get(name, b"null"))
        return [*pieces, b"}"] if pieces else [b"{}"]


def _fragment(data: bytes, at: int, stop: int, type_name: str) -> bytes:
    """The JSON of the Value in ``data`` from ``at`` to before ``stop``."""
    if at >= stop:
        return b"null"
    kind = data[at]
    if kind == _NUMBER:
        return number_text(_DOUBLE.unpack_from(data, at + 1)[0], type_name)
    if kind in (_NULL, _BOOL):
        return b"null" if kind == _NULL else b"true" if data[at + 1] else b"false"
    start, end = _submessage(data, at, stop, kind)
    if end != stop:
        raise BadBytes(f"a value's parts don't add up: {data[at : at + 80]!r}")
    return _of_sized(kind, data, start, end, type_name)


def _of_sized(kind: int, data: bytes, at: int, stop: int, type_name: str) -> bytes:
    if kind == _STRING:
        return _of_string(data[at:stop], type_name)
    if kind == _LIST:
        return _of_list(data, at, stop, type_name)
    if kind == _STRUCT:
        return _of_struct(data, at, stop, type_name)
    raise BadBytes(f"a value of unknown kind {kind >> 3}")


def _of_string(raw: bytes, type_name: str) -> bytes:
    if type_name in JSONS:
        return raw
    if (type_name in INTEGERS or type_name in FLOAT_DIGITS) and NUMBER.match(raw):
        return raw
    if _ESCAPED.search(raw):
        return orjson.dumps(raw.decode())
    return b'"' + raw + b'"'


def _of_list(data: bytes, at: int, stop: int, type_name: str) -> bytes:
    inner = UNKNOWN if type_name in JSONS else element_type(type_name)
    elements = []
    while at < stop:
        start, end = _submessage(data, at, stop, _ENTRY)
        elements.append(_fragment(data, start, end, inner))
        at = end
    return b"[" + b",".join(elements) + b"]"


def _of_struct(data: bytes, at: int, stop: int, type_name: str) -> bytes:
    entries = list(_entries(data, at, stop))
    if type_name not in JSONS and type_name != UNKNOWN and len(entries) == 1:
        name, start, end = entries[0]
        if name == VERBATIM_MEMBER and data[start] == _STRING:
            _, text_at = struct_rows.read(data, start + 1)
            return data[text_at:end]
    members = [
        (_of_string(name, UNKNOWN), _fragment(data, start, end, UNKNOWN))
        for name, start, end in entries
    ]
    return b"{" + b",".join([name + b":" + text for name, text in members]) + b"}"


def _entries(data: bytes, at: int, stop: int) -> list[tuple[bytes, int, int]]:
    """Every member of a Struct: its name, and the start and end of its Value."""
    found = []
    while at < stop:
        at, end = _submessage(data, at, stop, _ENTRY)
        name, value = b"", (end, end)
        while at < end:
            tag = data[at]
            start, part_end = _submessage(data, at, end, tag)
            if tag == 0x0A:
                name = data[start:part_end]
            elif tag == 0x12:
                value = (start, part_end)
            at = part_end
        found.append((name, *value))
        at = end
    return found


def _submessage(data: bytes, at: int, stop: int, tag: int) -> tuple[int, int]:
    if data[at] != tag or tag & 7 != 2:
        raise BadBytes(f"not a row, at {data[at : at + 80]!r}")
    size, start = struct_rows.read(data, at + 1)
    if start + size > stop:
        raise BadBytes(
            f"a field declares {size} bytes, more than the {stop - start} of the one around it"
        )
    return start, start + size


class Projection:
    """Some of a table's columns, to which a diff's rows are reduced before they are parsed."""

    def __init__(self, names: Sequence[str], wanted: Container[str]) -> None:
        """``names``: those of all columns; ``wanted``: one or more of them."""
        self._all = list(names)
        self._chosen = [number for number, name in enumerate(names) if name in wanted]
        #: The names of the wanted columns, in the table's order.
        self.names = [names[number] for number in self._chosen]
        #: For each column a byte that is 1 if it is wanted.
        self.wanted = bytes(name in wanted for name in names)

    @cached_property
    def line_heads(self) -> tuple[bytes, ...]:
        """Text in front of each column's value in a line."""
        return heads(self._all)

    @cached_property
    def entry_heads(self) -> tuple[bytes, ...]:
        """Bytes in front of the length of each column's Value in a Struct."""
        return tuple(map(entry_key, self._all))

    @cached_property
    def _split(self) -> Callable[[bytes], Sequence[bytes]]:
        return splitter(self._all)

    def line(self, line: bytes) -> bytes:
        """The line with the wanted columns.

        :raises BadLine: if it isn't a line with the table's columns.
        """
        values = self._split(line)
        return lines_.join(self.names, [values[number] for number in self._chosen])
