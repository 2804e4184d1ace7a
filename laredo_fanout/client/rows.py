"""Rows for those who look them up: from a line to a dict, with every number exact.

Integers are ``int`` whatever their size; a number with a fraction or an
exponent is a ``float`` where the float prints as the same number, else a
``decimal.Decimal`` (a 30-digit number inside a jsonb). What a line carries as a string stays
one: numeric with its exact digits, timestamps, uuid, bytea.
"""

import json
import re
from decimal import Decimal
from typing import Any

import orjson

Row = dict[str, Any]

# Fifteen digits survive a double; what may have more, or an exponent, is read with care.
_NEEDS_CARE = re.compile(rb"[0-9][0-9.]{15}|[0-9][eE][-+0-9]")
_DIGITS_PYTHON_READS = 4000


def parse(line: bytes) -> Row:
    """The row that ``line`` writes."""
    if _NEEDS_CARE.search(line) is None:
        try:
            row: Row = orjson.loads(line)
            return row
        except orjson.JSONDecodeError:
            pass  # a lone surrogate inside json, which PostgreSQL lets through
    careful: Row = json.loads(line, parse_float=_fraction, parse_int=_integer)
    return careful


def as_text(value: object) -> str | None:
    """A column's value as look-ups compare it: a number equals the string of its digits."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, default=str)
    return str(value)


def _fraction(text: str) -> float | Decimal:
    exact, near = Decimal(text), float(text)
    return near if Decimal(repr(near)) == exact else exact


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _DIGITS_PYTHON_READS else Decimal(text)
