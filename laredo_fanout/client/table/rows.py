"""Parses a row's line to a dict, with every number exact.

Integers are ``int`` whatever their size; a number with a fraction or an
exponent is a ``float`` where the float prints as the same number, else a
``decimal.Decimal`` (a 30-digit number inside a jsonb). What a line carries as a string stays
one: numeric with its exact digits, timestamps, uuid, bytea.

A json column may hold what Python can't: PostgreSQL keeps its text as it was written. Such a
column's value is a :class:`RawJson`; the row's other columns are as ever.
"""

import json
import re
from collections.abc import Set as AbstractSet
from decimal import Decimal
from itertools import accumulate
from typing import Any

import orjson

from laredo_model import line as line_
from laredo_model.errors import BadLine

Row = dict[str, Any]

DEEPEST = 256
"""Arrays and objects within one another that a column's value is parsed with. Fixed, because what
Python's parser and encoder bear depends on how deep the stack is when they are called."""

# Fifteen digits survive a double; what may have more, or an exponent, is read with care.
_NEEDS_CARE = re.compile(rb"[0-9][0-9.]{15}|[0-9][eE][-+0-9]")
_DIGITS_PYTHON_READS = 4000
_EXACT = frozenset({str, int, bool, type(None)})
# A string without an end is taken to the line's: else each quote in it would be tried again.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class RawJson(str):
    """A json column's text, where no Python value holds it: a number beyond the exponents of
    ``Decimal`` (``1e99999999999999999999``), or nesting deeper than :data:`DEEPEST`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"RawJson({super().__repr__()})"


def parse(line: bytes) -> Row:
    """The row in ``line`` as a dict.

    :raises BadLine: if it isn't a row's line.
    """
    row = _parse_plain(line)
    return _parse_with_care(line) if row is None else row


def columns_of(line: bytes, fields: AbstractSet[str]) -> Row:
    """The row with at least the columns ``fields``; the others don't matter.

    :raises BadLine: if it isn't a row's line.
    """
    # The C parser is many times as fast as finding the columns, and exact for these types; numbers
    # of other columns don't matter.
    try:
        row: Row | None = orjson.loads(line)
    except orjson.JSONDecodeError:
        row = None
    if isinstance(row, dict) and {type(row.get(field)) for field in fields} <= _EXACT:
        return row
    row = _parse_plain(line)
    return _parse_columns(line, fields) if row is None else row


def as_text(value: object) -> str | None:
    """A column's value as look-ups compare it: a number equals the string of its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int):
        return _digits(value)
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, default=str)
    return str(value)


def _parse_plain(line: bytes) -> Row | None:
    """The row by the fast parser; None if that might change or refuse a value."""
    if _NEEDS_CARE.search(line) is not None or _is_deep(line, DEEPEST + 1):
        return None
    try:
        row: Row = orjson.loads(line)
    except orjson.JSONDecodeError:  # a lone surrogate inside json, which PostgreSQL lets through
        return None
    return row if isinstance(row, dict) else None


def _parse_with_care(line: bytes) -> Row:
    if not _is_deep(line, DEEPEST + 1):
        try:
            row = _exact(line)
            if isinstance(row, dict):
                return row
        except (ValueError, ArithmeticError):
            pass  # one column's; the others are parsed without it
    return _parse_columns(line, None)


def _parse_columns(line: bytes, wanted: AbstractSet[str] | None) -> Row:
    row: Row = {}
    for name, fragment in line_.items(line):
        try:
            column = orjson.loads(name)
        except orjson.JSONDecodeError as wrong:
            raise BadLine(f"a column's name isn't JSON ({wrong}): {line[:80]!r}") from wrong
        if wanted is None or column in wanted:
            row[column] = _value(fragment)
    return row


def _value(fragment: bytes) -> Any:
    if not _is_deep(fragment, DEEPEST):
        try:
            return _exact(fragment)
        except (ValueError, ArithmeticError):
            pass
    return RawJson(fragment.decode(errors="surrogateescape"))


def _exact(text: bytes) -> Any:
    return json.loads(text, parse_float=_fraction, parse_int=_integer)


def _is_deep(text: bytes, deepest: int) -> bool:
    if text.count(b"[") + text.count(b"{") <= deepest:
        return False
    brackets = _STRING.sub(b"", text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > deepest


def _fraction(text: str) -> float | Decimal:
    exact, near = Decimal(text), float(text)
    return near if Decimal(repr(near)) == exact else exact


def _integer(text: str) -> int | Decimal:
    if len(text) > _DIGITS_PYTHON_READS:
        return Decimal(text)
    try:
        return int(text)
    except ValueError:  # a lower limit of this process (sys.set_int_max_str_digits)
        return Decimal(text)


def _digits(number: int) -> str:
    try:
        return str(number)
    except ValueError:  # more digits than Python prints of an int
        return str(Decimal(number))
