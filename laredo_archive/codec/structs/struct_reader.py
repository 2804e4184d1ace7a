"""Converts google.protobuf.Struct to lines: the inverse of ``struct_rows``.

Without columns (archives of other writers) values are read as they are, numbers
by their value, and columns are in the order of their names.

Rows whose members are in the columns' order are read by compiled code (``compiled``); the rest,
and all where there was no C compiler, in Python here. By hand: the generated class takes 1.15
times as long for forty short columns, 1.05 times for ten of 28 bytes each
(``benchmarks.struct_rows``).
"""

import re
from collections.abc import Collection, Sequence
from struct import Struct
from struct import error as struct_error

import orjson

from laredo_archive.codec import varint
from laredo_archive.codec.errors import BadBytes
from laredo_archive.codec.struct_rows import VERBATIM_MEMBER
from laredo_archive.codec.structs import compiled
from laredo_archive.codec.structs.compiled import StructScan
from laredo_archive.codec.values import (
    FLOAT_DIGITS,
    INTEGERS,
    JSONS,
    NUMBER,
    UNKNOWN,
    element_type,
    number_text,
)
from laredo_model import key as keys_
from laredo_model import line as lines_
from laredo_model.column import Column

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
                (compiled.entry_key(column.name), prefix, column.type, column.type not in _NOT_TEXT)
                for column, prefix in zip(columns, lines_.names_prefix(names), strict=True)
            ]
            if set(self._key_fields) <= set(names):
                self._key_at = [2 * names.index(name) + 1 for name in self._key_fields]
            key_at = [names.index(name) for name in self._key_fields] if self._key_at else []
            self._scan = compiled.scan(columns, key_at)

    def line(self, data: bytes, at: int, stop: int) -> bytes:
        """The line of the Struct in ``data`` from ``at`` to before ``stop``.

        :raises BadBytes: if there is no such Struct, or it has other columns.
        """
        scanned = self._scan and self._scan.row(data, at, stop)
        return scanned[0] if scanned else b"".join(self._pieces(data, at, stop))

    def columns(
        self, messages: list[bytes], wanted: Collection[str]
    ) -> list[tuple[str, bytes, bytes]] | None:
        """Of SnapshotRow messages the wanted columns: name, 32-bit offsets, fragments on end.

        None where they have to be read row by row.
        """
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
                size, at = varint.read(data, at - 1)
            end = at + size
            if not data.startswith(key, at):
                return None
            at += len(key) + 1
            if data[at - 1] > 0x7F:
                _, at = varint.read(data, at - 1)
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
            _, text_at = varint.read(data, start + 1)
            return data[text_at:end]
    members = [
        (_of_string(name, UNKNOWN), _fragment(data, start, end, UNKNOWN))
        for name, start, end in entries
    ]
    return b"{" + b",".join([name + b":" + text for name, text in members]) + b"}"


def _entries(data: bytes, at: int, stop: int) -> list[tuple[bytes, int, int]]:
    """(name, where its Value starts, where it ends) of every member of a Struct."""
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
    size, start = varint.read(data, at + 1)
    if start + size > stop:
        raise BadBytes(f"a part of {size} bytes doesn't fit into the {stop - start} around it")
    return start, start + size
