"""Rows as lines of compact JSON, their values, and changes between two lines.

Values stay verbatim: a json column may contain duplicate keys, blanks or
30-digit numbers that a parser would lose. So a line is split into *fragments*,
the bytes of its top-level values.

A *partial* line is an update whose unchanged TOAST values PostgreSQL didn't
send. It starts with byte 0x01, and each missing value is the single byte 0x02;
neither occurs in JSON. Partial lines occur only between the source and the
store, which fills them from its row.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import orjson

from laredo_model.column import Rule, TypeInfo, element_of, rule_of
from laredo_model.errors import BadLine

PARTIAL = b"\x01"
MISSING = b"\x02"

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^,}\]\[{\"]+")
_BLANK = frozenset((b" ", b"\t", b"\n", b"\r"))
_BLANKS = re.compile(rb"[ \t\n\r]*")
_NESTED_STOP = re.compile(rb'["\[\]{}]')


def names_prefix(names: Iterable[str]) -> list[bytes]:
    """The bytes before each value: ``{"id":``, ``,"name":``, ..."""
    prefixes = [b"," + orjson.dumps(name) + b":" for name in names]
    if prefixes:
        prefixes[0] = b"{" + prefixes[0][1:]
    return prefixes


def join(names: Sequence[str], fragments: Sequence[bytes]) -> bytes:
    """The line with these columns and values."""
    if not names:
        return b"{}"
    pieces: list[bytes] = []
    for prefix, fragment in zip(names_prefix(names), fragments, strict=True):
        pieces += (prefix, fragment)
    return b"".join(pieces) + b"}"


def items(line: bytes) -> list[tuple[bytes, bytes]]:
    """Each column's name (still a JSON string) and its value's bytes, verbatim, in order.

    :raises BadLine: if ``line`` isn't an object without blanks around its members' names.
    """
    at = 1 if line[:1] == PARTIAL else 0
    if line[at : at + 1] != b"{" or line[-1:] != b"}":
        raise BadLine(f"not a row's line: {line[:80]!r}")
    if line[at:] == b"{}":
        return []
    found = []
    while line[at : at + 1] != b"}":
        name = _STRING.match(line, at + 1)
        if name is None or line[name.end() : name.end() + 1] != b":":
            raise BadLine(f"not a row's line, at byte {at + 1}: {line[:80]!r}")
        end = _value_end(line, name.end() + 1)
        found.append((name[0], line[name.end() + 1 : end]))
        at = end
        if line[at : at + 1] not in (b",", b"}"):
            raise BadLine(f"not a row's line, at byte {at}: {line[:80]!r}")
    if at != len(line) - 1:
        raise BadLine(f"bytes after the row's end, at byte {at + 1}: {line[:80]!r}")
    return found


def fragments(line: bytes) -> list[bytes]:
    """The bytes of each top-level value, verbatim, in the line's order.

    :raises BadLine: if ``line`` isn't a row's line.
    """
    return [value for _, value in items(line)]


def names(line: bytes) -> list[str]:
    """The names of the columns, in the line's order.

    :raises BadLine: if ``line`` isn't a row's line.
    """
    try:
        return [orjson.loads(name) for name, _ in items(line)]
    except orjson.JSONDecodeError as wrong:
        raise BadLine(f"a column's name isn't a JSON string ({wrong}): {line[:80]!r}") from wrong


def is_partial(line: bytes) -> bool:
    """True if a value of the line is missing."""
    return line[:1] == PARTIAL


def fill(partial: bytes, other: bytes) -> bytes:
    """``partial`` with its missing values taken, by column name, from ``other``.

    A value that ``other`` lacks too stays missing.

    :raises BadLine: if either isn't a row's line.
    """
    if not is_partial(partial):
        return partial
    known = dict(items(other))
    pieces: list[bytes] = []
    still_missing = False
    for name, value in items(partial):
        whole = known.get(name, MISSING) if value == MISSING else value
        still_missing = still_missing or whole == MISSING
        pieces.append(name + b":" + whole)
    line = b"{" + b",".join(pieces) + b"}"
    return PARTIAL + line if still_missing else line


def elements(array: bytes) -> list[bytes]:
    """The bytes of each element of a JSON array without blanks between them, verbatim, in order.

    :raises BadLine: if ``array`` isn't such an array.
    """
    if array[:1] != b"[" or array[-1:] != b"]":
        raise BadLine(f"not an array: {array[:80]!r}")
    found: list[bytes] = []
    at, last = 0, len(array) - 1
    while at < last and last > 1:
        end = _value_end(array, at + 1)
        found.append(array[at + 1 : end])
        if array[end : end + 1] not in (b",", b"]"):
            raise BadLine(f"not an array, at byte {end}: {array[:80]!r}")
        at = end
    if at != last and found:
        raise BadLine(f"more after the array, at byte {at + 1}: {array[:80]!r}")
    return found


def _value_end(line: bytes, start: int) -> int:
    """The end of the value from ``start``; a json column's may have blanks on both sides."""
    if line[start : start + 1] in _BLANK:
        start = _after_blanks(line, start)
    end = _bare_value_end(line, start)
    return _after_blanks(line, end) if line[end : end + 1] in _BLANK else end


def _after_blanks(line: bytes, at: int) -> int:
    blanks = _BLANKS.match(line, at)
    assert blanks is not None, "no blank is matched too"
    return blanks.end()


def _bare_value_end(line: bytes, start: int) -> int:
    first = line[start : start + 1]
    if first == b'"':
        match = _STRING.match(line, start)
    elif first in (b"{", b"["):
        return _nested_end(line, start)
    else:
        match = _SCALAR.match(line, start)
    if match is None:
        raise BadLine(f"no value at byte {start}: {line[:80]!r}")
    return match.end()


def _nested_end(line: bytes, start: int) -> int:
    depth, at = 1, start + 1
    while depth:
        stop = _NESTED_STOP.search(line, at)
        if stop is None:
            raise BadLine(f"the value at byte {start} has no end: {line[:80]!r}")
        if stop[0] == b'"':
            string = _STRING.match(line, stop.start())
            if string is None:
                raise BadLine(f"the string at byte {stop.start()} has no end: {line[:80]!r}")
            at = string.end()
            continue
        depth += 1 if stop[0] in b"{[" else -1
        at = stop.end()
    return at


# Convert a value from pgoutput's text to JSON, by its type's rule.
#
# pgoutput sends the text that a type's output function prints under the settings of
# ``value_sql.SESSION``
# (https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html).

Encode = Callable[[bytes], bytes]

_LINE_BREAKS_TO_BLANKS = bytes.maketrans(b"\n\r", b"  ")
_BOUNDS = re.compile(rb"\[[-0-9:\[\]]+\]=")
_QUOTED_ELEMENT = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def text(value: bytes) -> bytes:
    """A JSON string; only what JSON must escape is escaped, as in to_json."""
    return orjson.dumps(value.decode())


def boolean(value: bytes) -> bytes:
    """true or false."""
    return b"true" if value == b"t" else b"false"


def number(value: bytes) -> bytes:
    """The digits as they are."""
    return value


def floating(value: bytes) -> bytes:
    """The digits as PostgreSQL prints them; NaN and the infinities are JSON strings."""
    return b'"' + value + b'"' if value[-1:] in b"Ny" else value


def timestamp(value: bytes) -> bytes:
    """ISO 8601, as to_json prints it; infinity stays as it is."""
    value = value.replace(b" ", b"T", 1)
    for end in (b"", b" BC"):
        if value.endswith(b"+00" + end):
            return b'"' + value.removesuffix(end) + b":00" + end + b'"'
    return b'"' + value + b'"'


def json(value: bytes) -> bytes:
    """The value verbatim, on one line."""
    return value.translate(_LINE_BREAKS_TO_BLANKS)


_SCALARS: dict[Rule, Encode] = {
    Rule.BOOLEAN: boolean,
    Rule.INTEGER: number,
    Rule.OID: number,
    Rule.FLOAT: floating,
    Rule.DECIMAL: text,
    Rule.TIMESTAMP: timestamp,
    Rule.JSON: json,
    Rule.NESTING: text,
    Rule.TEXT: text,
}


def encoder(type_info: TypeInfo) -> Encode:
    """The function that converts a value of this type (never NULL) from text to JSON."""
    rule = rule_of(type_info)
    if rule is not Rule.ARRAY:
        return _SCALARS[rule]
    element = element_of(type_info)
    delimiter = element.delimiter.encode()
    encode_element = encoder(element)

    def array(value: bytes) -> bytes:
        return array_of(value, encode_element, delimiter)

    return array


def array_of(value: bytes, encode_element: Encode, delimiter: bytes) -> bytes:
    """Convert an array's text (``{1,NULL,"a b"}``) to a JSON array; bounds are dropped.

    https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO

    :raises BadLine: if it isn't an array's text.
    """
    bounds = _BOUNDS.match(value)
    at = bounds.end() if bounds else 0
    bare = re.compile(rb"[^" + re.escape(delimiter) + rb"{}\"]+")
    pieces: list[bytes] = []
    while at < len(value):
        byte = value[at : at + 1]
        if byte == b"{":
            pieces.append(b"[")
        elif byte == b"}":
            pieces.append(b"]")
        elif byte == delimiter:
            pieces.append(b",")
        elif quoted := _QUOTED_ELEMENT.match(value, at):
            pieces.append(encode_element(_ESCAPED.sub(rb"\1", quoted[1])))
            at = quoted.end()
            continue
        elif plain := bare.match(value, at):
            pieces.append(b"null" if plain[0] == b"NULL" else encode_element(plain[0]))
            at = plain.end()
            continue
        else:
            raise BadLine(f"not an array's text, at byte {at}: {value[:80]!r}")
        at += 1
    return b"".join(pieces)


# A change: the INSERT, UPDATE or DELETE of one row, or a TRUNCATE of the table.


class Action(IntEnum):
    """The kind of a change; the numbers are those of the journal and the batch wire form."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4


class Change(NamedTuple):
    """One change of one row. An UPDATE of a row's key is a DELETE and an INSERT."""

    #: INSERT, UPDATE, DELETE or TRUNCATE.
    action: Action
    #: The row's key (:mod:`laredo_model.key`); empty on TRUNCATE.
    key: bytes
    #: The row's line before; None on INSERT and TRUNCATE.
    old: bytes | None
    #: The row's line after; None on DELETE and TRUNCATE.
    new: bytes | None


TRUNCATION = Change(Action.TRUNCATE, b"", None, None)
