"""The encoder of rows for base clients: a JSON line to google.protobuf.Struct, by hand.

`_struct_rows.c` encodes almost every row, in a sixth of the time that Python takes. Rows that it
refuses, and every row if there was no C compiler at the installation, are encoded here.

Struct is lossy, and so is this form, in known ways: numbers are doubles, so an integer beyond
+-2^53 is sent as a string; numbers inside json beyond 64 bits lose digits; of duplicate names in
json the last stays; a lone surrogate becomes "?"; and a value nested deeper than protobuf parsers
go (they stop at 100 messages, three to a JSON level) is sent as the string of its JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from struct import Struct
from typing import Any

import orjson

from laredo_fanout.serving.slices import SLICE_BYTES, Slice, Sliced
from laredo_fanout.wire.protobuf import delimited
from laredo_model import line as line_

struct_of: Callable[[dict[str, Any]], bytes | None] | None
try:
    from laredo_fanout.serving._struct_rows import struct_of
except ImportError:  # there was no C compiler when this was installed
    struct_of = None

_EXACT = 1 << 53
_DEEPEST = 28
_NULL = b"\x08\x00"
_TRUE = b"\x20\x01"
_FALSE = b"\x20\x00"
_double = Struct("<cd").pack
_SIZES = 512
_LARGE = 8 << 10 if struct_of is None else SLICE_BYTES
"""Bytes of a line from which on it is encoded value by value."""


def parse(line: bytes) -> dict[str, Any]:
    """The row as Python values; by the fast parser, or by column what that refuses."""
    try:
        row: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _parse_by_column(line)
    return row


def _parse_by_column(line: bytes) -> dict[str, Any]:
    row = {}
    for name, fragment in line_.items(line):
        try:
            row[orjson.loads(name)] = json.loads(fragment, parse_int=_any_int)
        except RecursionError:
            row[orjson.loads(name)] = fragment.decode()
    return row


def _any_int(digits: str) -> int | str:
    # Python refuses to convert more than 4,300 digits.
    return int(digits) if len(digits) < 4000 else digits


class StructRows:
    """Encodes the rows of any table; encoded column names are kept."""

    def __init__(self) -> None:
        self._columns: dict[str, _ColumnHeads] = {}

    def encode(self, line: bytes) -> bytes:
        """The bytes of the Struct that holds this row."""
        row = parse(line)
        if struct_of is not None and (encoded := struct_of(row)) is not None:
            return encoded
        return self.encode_plainly(row)

    def encode_plainly(self, row: dict[str, Any]) -> bytes:
        """Encode a parsed row, in Python alone."""
        pieces: list[bytes] = []
        add = pieces.append
        columns = self._columns
        for name, value in row.items():
            heads = columns.get(name) or self._heads(name)
            kind = type(value)
            if kind is str:
                text = _utf8(value)
                add(heads.of_string(len(text)))
                add(text)
            elif kind is int and -_EXACT <= value <= _EXACT:
                add(heads.number)
                add(_double(b"\x11", value))
            elif value is None:
                add(heads.null)
            elif kind is bool:
                add(heads.true if value else heads.false)
            else:
                add(heads.of_value(_value(value, 0)))
        return b"".join(pieces)

    def encode_large(self, line: bytes) -> Sliced[bytes]:
        """Encode a line that may take long, in slices; only its JSON is parsed in one go."""
        pieces: list[bytes] = []
        counter = Slice()
        for name, value in parse(line).items():
            encoded = yield from _sliced_value(value, 0, counter)
            pieces.append(self._heads(name).of_value(encoded))
        return b"".join(pieces)

    def _heads(self, name: str) -> _ColumnHeads:
        heads = self._columns.get(name)
        if heads is None:
            heads = self._columns[name] = _ColumnHeads(name)
        return heads


class Encoder:
    """Encodes one session's rows after each other, in slices.

    A row is `encode(line) or (yield from encode_next(line))`: a generator for each would cost as
    much as half of its encoding.
    """

    def __init__(self, structs: StructRows) -> None:
        self._structs = structs
        self._slice = Slice()

    def encode(self, line: bytes) -> bytes | None:
        """The bytes of the Struct that holds this row; None if it doesn't belong to this slice."""
        size = len(line)
        # Values within json cost eight times as much as the plain values that a slice assumes.
        if size > _LARGE or self._slice.done_with(size * SLICE_BYTES // _LARGE):
            return None
        return self._structs.encode(line)

    def encode_next(self, line: bytes) -> Sliced[bytes]:
        """Encode a line in the next slice, or in slices of its own."""
        if len(line) > _LARGE:
            return (yield from self._structs.encode_large(line))
        yield
        return self._structs.encode(line)


class _ColumnHeads:
    """The bytes before a value of this column, by the value's kind."""

    def __init__(self, name: str) -> None:
        self._name = delimited(b"\x0a", _utf8(name))
        self.null = self.of_value(_NULL)
        self.true = self.of_value(_TRUE)
        self.false = self.of_value(_FALSE)
        self.number = self.of_value(bytes(9))[:-9]
        self._strings: dict[int, bytes] = {}

    def of_value(self, value: bytes) -> bytes:
        return delimited(b"\x0a", self._name + delimited(b"\x12", value))

    def of_string(self, size: int) -> bytes:
        head = self._strings.get(size)
        if head is None:
            text = bytes(size)
            head = self.of_value(delimited(b"\x1a", text))
            head = head[: len(head) - size]
            if size < _SIZES:
                self._strings[size] = head
        return head


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _value(value: Any, depth: int) -> bytes:  # noqa: PLR0911  one per kind of Value
    match value:
        case None:
            return _NULL
        case bool():
            return _TRUE if value else _FALSE
        case str():
            return _string(value)
        case int():
            return _number(value) if -_EXACT <= value <= _EXACT else _string(str(value))
        case float():
            return _number(value) if math.isfinite(value) else _string(str(value))
        case _ if depth >= _DEEPEST and value:
            return _string(_deep_text(value))
        case list():
            items = b"".join([delimited(b"\x0a", _value(item, depth + 1)) for item in value])
            return delimited(b"\x32", items)
        case _:
            return _struct(value, depth)


def _sliced_value(value: Any, depth: int, counter: Slice) -> Sliced[bytes]:
    """Encode a value like `_value`, in slices."""
    if depth >= _DEEPEST or not isinstance(value, list | dict):
        if counter.done_with(0):
            yield
        return _value(value, depth)
    encoded: list[bytes] = []
    if isinstance(value, list):
        for item in value:
            encoded.append(delimited(b"\x0a", (yield from _sliced_value(item, depth + 1, counter))))
        return delimited(b"\x32", b"".join(encoded))
    for name, member in value.items():
        inside = yield from _sliced_value(member, depth + 1, counter)
        pair = delimited(b"\x0a", _utf8(name)) + delimited(b"\x12", inside)
        encoded.append(delimited(b"\x0a", pair))
    return delimited(b"\x2a", b"".join(encoded))


def _number(number: float) -> bytes:
    return _double(b"\x11", number)


def _struct(members: dict[str, Any], depth: int) -> bytes:
    fields = b"".join(
        [
            delimited(
                b"\x0a",
                delimited(b"\x0a", _utf8(name)) + delimited(b"\x12", _value(member, depth + 1)),
            )
            for name, member in members.items()
        ]
    )
    return delimited(b"\x2a", fields)


def _deep_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "(nested too deep)"


def _string(text: str) -> bytes:
    return delimited(b"\x1a", _utf8(text))
