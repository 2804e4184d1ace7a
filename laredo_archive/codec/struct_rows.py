"""Conversion of rows to google.protobuf.Struct and back, byte for byte.

Struct's numbers are doubles, so by a column's type (docs/archive-format.md, protobuf):

- a number that a double and its type's printing give back is a number_value,
  any other its digits in a string_value (integers beyond 2^53);
- a json or jsonb value, or array of them, is its text in a string_value;
- arrays are list_values of their element's rule;
- a value that these rules would not give back (none of the types in that page's
  table) is a struct_value with the one member ``json``: its text.

Written by hand, and compared with the generated class by the tests: that takes 1.31 times as
long for forty short columns, 0.93 times for ten of 28 bytes each (``benchmarks.struct_rows``; its
map has to be sorted, else the bytes differ from process to process).
https://protobuf.dev/programming-guides/encoding/
"""

import math
import re
from collections.abc import Callable, Sequence
from struct import Struct

import orjson

from laredo_archive.codec.row_keys import SCALAR, STRING, splitter
from laredo_model.column import Column

# Floats as PostgreSQL prints them.
#
# The shortest digits that read back as the same number, with an exponent from 10^15 up (10^6 for
# float4) and below 10^-4 (float_to_shortest_decimal_bufn and double_to_shortest_decimal_bufn in
# src/common).

FLOAT8_DIGITS = 15
FLOAT4_DIGITS = 6


def text(number: float, digits: int = FLOAT8_DIGITS) -> bytes:
    """``number`` as PostgreSQL prints it, as JSON; NaN and the infinities are JSON strings.

    In rare cases PostgreSQL prints one digit more than is needed. A caller that
    needs PostgreSQL's own text compares, as :func:`value` does.
    """
    if not math.isfinite(number):
        name = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
        return f'"{name}"'.encode()
    shortest = repr(number)
    if number == 0 or 1e-4 <= abs(number) < 10.0**digits:
        return shortest.removesuffix(".0").encode()
    return _with_exponent(shortest)


def _with_exponent(shortest: str) -> bytes:
    mantissa, _, exponent = shortest.partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    rest = "." + digits[1:] if len(digits) > 1 else ""
    power = point - 1
    return f"{sign}{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}".encode()


# The column types whose values a Struct holds only as text, and the digits of numbers.

JSONS = frozenset({"json", "jsonb", "_json", "_jsonb"})
INTEGERS = frozenset({"int2", "int4", "int8", "oid"})
FLOAT_DIGITS = {"float4": FLOAT4_DIGITS, "float8": FLOAT8_DIGITS}
UNKNOWN = ""
"""The type of a column in an archive that names no columns."""
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
"""A JSON number: https://www.rfc-editor.org/rfc/rfc8259#section-6"""

_EXACT_INTEGER = 1 << 53


def element_type(type_name: str) -> str:
    """The type of an array's elements, at any depth; PostgreSQL calls the array ``_int4``."""
    return type_name.removeprefix("_")


def number_text(number: float, type_name: str) -> bytes:
    """Text of ``number`` in a column of this type."""
    digits = FLOAT_DIGITS.get(type_name)
    if digits is not None:
        return text(number, digits)
    if number.is_integer() and abs(number) <= _EXACT_INTEGER:
        return b"%d" % int(number)
    return text(number)


# Base-128 varints: seven bits a byte, low ones first.
#
# https://protobuf.dev/programming-guides/encoding/#varints

_LONGEST_BITS = 70
_SHORT = [bytes([low]) for low in range(128)] + [
    bytes([number & 0x7F | 0x80, number >> 7]) for number in range(128, 1 << 14)
]


def varint(number: int) -> bytes:
    """``number``, not negative, as a varint."""
    if number < len(_SHORT):
        return _SHORT[number]
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def read(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and the offset of the bytes after it.

    :raises IndexError: if ``data`` ends inside of it, or it has no end within ten bytes.
    """
    number = shift = 0
    while shift < _LONGEST_BITS:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise IndexError("a varint has at most ten bytes")


def entry_key(name: str) -> bytes:
    """First bytes of a member of this name, up to its Value's length."""
    raw = name.encode()
    return b"\x0a" + varint(len(raw)) + raw + b"\x12"


VERBATIM_MEMBER = b"json"
_DOUBLE = Struct("<d")
_NULL = b"\x08\x00"
_TRUE = b"\x20\x01"
_FALSE = b"\x20\x00"
_SHORT_INTEGER = re.compile(rb"(?:0|-?[1-9][0-9]{0,14})\Z")
_ARRAY_TOKEN = re.compile(STRING + rb"|" + SCALAR + rb"|[\[\],{}]", re.DOTALL)
_HEADS_KEPT = 4096


class Unrestorable(Exception):
    """A value that the column's rule wouldn't give back."""


def encoder(columns: Sequence[Column]) -> Callable[[bytes], bytes]:
    """Function that turns a line with these columns into the bytes of its Struct.

    It raises BadLine for a line that has other columns.
    """
    split = splitter([column.name for column in columns])
    members = [_Member(column) for column in columns]

    def encode(line: bytes) -> bytes:
        return b"".join(
            [member.encode(value) for member, value in zip(members, split(line), strict=True)]
        )

    return encode


class _Member:
    """One column's entry in the map ``fields`` of a Struct."""

    def __init__(self, column: Column) -> None:
        self._key = entry_key(column.name)
        self._type = column.type
        self._is_json = column.type in JSONS
        self._is_integer = column.type in INTEGERS
        self._is_number = self._is_integer or column.type in FLOAT_DIGITS
        self._number_head = self._entry(b"\x11" + bytes(8))[:-8]
        self._constants = {
            b"null": self._entry(_NULL),
            b"true": self._entry(_TRUE),
            b"false": self._entry(_FALSE),
        }
        self._string_heads: dict[int, bytes] = {}

    def encode(self, fragment: bytes) -> bytes:
        constant = self._constants.get(fragment)
        if constant is not None:
            return constant
        if self._is_json:
            return self._string(fragment)
        first = fragment[0]
        if first == 34 and not self._is_number and b"\\" not in fragment:
            return self._string(fragment[1:-1])
        if self._is_integer and _SHORT_INTEGER.match(fragment):
            return self._number_head + _DOUBLE.pack(int(fragment))
        try:
            return self._entry(value(fragment, self._type))
        except Unrestorable:
            return self._entry(_verbatim(fragment))

    def _entry(self, encoded: bytes) -> bytes:
        body = self._key + varint(len(encoded)) + encoded
        return b"\x0a" + varint(len(body)) + body

    def _string(self, raw: bytes) -> bytes:
        size = len(raw)
        head = self._string_heads.get(size)
        if head is None:
            head = self._entry(_string_value(raw))[: -size or None]
            if size < _HEADS_KEPT:
                self._string_heads[size] = head
        return head + raw


def value(fragment: bytes, type_name: str) -> bytes:
    """The bytes of the Value for ``fragment`` in a column of this type.

    :raises Unrestorable: if reading it back wouldn't give ``fragment``.
    """
    first = fragment[:1]
    if fragment == b"null":
        return _NULL
    if type_name in JSONS:
        return _string_value(fragment)
    if first == b'"':
        return _text_value(fragment, type_name)
    if fragment in (b"true", b"false"):
        return _TRUE if fragment == b"true" else _FALSE
    if first == b"[":
        return _list_value(fragment, element_type(type_name))
    return _number_value(fragment, type_name)


def _text_value(fragment: bytes, type_name: str) -> bytes:
    if b"\\" in fragment:
        try:
            raw = orjson.loads(fragment).encode()
        except ValueError as wrong:  # such as half of a surrogate pair
            raise Unrestorable from wrong
        if orjson.dumps(raw.decode()) != fragment:
            raise Unrestorable
    else:
        raw = fragment[1:-1]
    if (type_name in INTEGERS or type_name in FLOAT_DIGITS) and NUMBER.match(raw):
        raise Unrestorable
    return _string_value(raw)


def _number_value(fragment: bytes, type_name: str) -> bytes:
    if not NUMBER.match(fragment):
        raise Unrestorable
    number = float(fragment)
    if number_text(number, type_name) == fragment:
        return b"\x11" + _DOUBLE.pack(number)
    if type_name in INTEGERS or type_name in FLOAT_DIGITS:
        return _string_value(fragment)
    raise Unrestorable


def _list_value(fragment: bytes, type_name: str) -> bytes:
    if type_name in JSONS:
        raise Unrestorable
    open_lists: list[list[bytes]] = [[]]
    for token in _ARRAY_TOKEN.findall(fragment):
        if token == b"[":
            open_lists.append([])
        elif token == b"]":
            done = b"".join(
                b"\x0a" + varint(len(element)) + element for element in open_lists.pop()
            )
            open_lists[-1].append(b"\x32" + varint(len(done)) + done)
        elif token in (b"{", b"}"):
            raise Unrestorable
        elif token != b",":
            open_lists[-1].append(value(token, type_name))
    ((whole,),) = open_lists
    return whole


def _string_value(raw: bytes) -> bytes:
    return b"\x1a" + varint(len(raw)) + raw


def _verbatim(fragment: bytes) -> bytes:
    text = _string_value(fragment)
    member = entry_key(VERBATIM_MEMBER.decode()) + varint(len(text)) + text
    fields = b"\x0a" + varint(len(member)) + member
    return b"\x2a" + varint(len(fields)) + fields
