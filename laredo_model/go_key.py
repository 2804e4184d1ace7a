"""The key of a row as Go's fmt prints it (%v), for readers that find rows by such keys.

The original program's readers parse rows of JSON, whose numbers become float64, and print the key
column's value, or a slice of several: ``1.000001e+06``, ``[r2 14]``.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import orjson

from laredo_model import line as lines_

_PLAIN_EXPONENTS = range(-4, 6)
"""Powers of ten of numbers that strconv.FormatFloat(x, 'g', -1, 64) prints without an exponent."""


def of_line(line: bytes, key_fields: Sequence[str]) -> bytes:
    """The key of a row.

    :raises BadLine: if ``line`` isn't a row's line.
    :raises KeyError: if it lacks a key column.
    """
    fragments = dict(lines_.items(line))
    values = [orjson.loads(fragments[orjson.dumps(name)]) for name in key_fields]
    return printed(values[0] if len(values) == 1 else values).encode()


def printed(value: Any) -> str:
    """A value of JSON as %v prints it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(printed, value))}]"
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: member[0].encode())
        return f"map[{' '.join(f'{name}:{printed(member)}' for name, member in members)}]"
    return _number(float(value))


def _number(number: float) -> str:
    if not math.isfinite(number):
        return "+Inf" if number > 0 else "-Inf"
    exact = Decimal(repr(number)).normalize()
    exponent = exact.adjusted()
    if not number or exponent in _PLAIN_EXPONENTS:
        return f"{exact:f}"
    digits = "".join(map(str, exact.as_tuple().digits))
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
