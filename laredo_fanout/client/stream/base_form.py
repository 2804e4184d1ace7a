"""Rows of the base wire form: converts a Struct back to a row's key and line.

The form loses what Struct loses (a number inside json is a double), so a
line made here equals the table's own but for that: columns in the table's
order, numbers as PostgreSQL prints them, integers beyond 2^53 from the
string they travel as.
"""

import re
from collections.abc import Sequence
from math import isfinite

import orjson
from google.protobuf import struct_pb2

from laredo_model import key as key_
from laredo_model.column import Column, key_columns
from laredo_model.errors import BadLine

_INTEGERS = frozenset({"int2", "int4", "int8", "oid", "smallint", "integer", "bigint"})
_DIGITS = re.compile(r"-?\d+\Z")


class BaseRows:
    """Converts one table's Structs to keys and lines."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [
            (column.name, orjson.dumps(column.name) + b":", column.type in _INTEGERS)
            for column in columns
        ]
        self._key_names = [column.name for column in key_columns(columns)]

    def key_and_line(self, row: struct_pb2.Struct) -> tuple[bytes, bytes]:
        """The row's key (its whole line where the table has no key) and its line."""
        fields = row.fields
        found: dict[str, bytes] = {}
        pieces: list[bytes] = []
        for name, prefix, integer in self._columns:
            if name in fields:
                found[name] = fragment = _fragment(fields[name], integer=integer)
                pieces.append(prefix + fragment)
        if len(found) < len(fields):  # columns that the handshake didn't have
            for name in sorted(set(fields) - found.keys()):
                found[name] = fragment = _fragment(fields[name], integer=False)
                pieces.append(orjson.dumps(name) + b":" + fragment)
        line = b"{" + b",".join(pieces) + b"}"
        if not self._key_names:
            return line, line
        return key_.of_fragments([found.get(name, b"null") for name in self._key_names]), line


def _fragment(value: struct_pb2.Value, *, integer: bool) -> bytes:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        text = value.string_value
        return text.encode() if integer and _DIGITS.match(text) else orjson.dumps(text)
    if kind == "number_value":
        if not isfinite(value.number_value):
            raise BadLine(f"the number {value.number_value} isn't JSON")
        return number_text(value.number_value)
    if kind == "bool_value":
        return b"true" if value.bool_value else b"false"
    if kind == "struct_value":
        members = value.struct_value.fields
        return (
            b"{"
            + b",".join(
                orjson.dumps(name) + b":" + _fragment(members[name], integer=False)
                for name in members
            )
            + b"}"
        )
    if kind == "list_value":
        items = value.list_value.values
        return b"[" + b",".join(_fragment(item, integer=integer) for item in items) + b"]"
    return b"null"


def number_text(number: float) -> bytes:
    """A double as PostgreSQL prints it: shortest digits, an exponent from 1e15 on."""
    if 1e15 <= abs(number) < 1e16:
        digits = str(int(number))
        sign, digits = ("-", digits[1:]) if number < 0 else ("", digits)
        rest = digits[1:].rstrip("0")
        return f"{sign}{digits[0]}{'.' + rest if rest else ''}e+15".encode()
    text = repr(number)
    return text.removesuffix(".0").encode()
