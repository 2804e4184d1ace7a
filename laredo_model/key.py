"""Keys of rows: strings that identify a row in store, journal, wire and archive.

For one key column it is the value as unescaped text (``42``, ``a"b``), for
several the compact JSON array of the row's JSON values, in the key's order
(``["a",7]``). Keys order by their UTF-8 bytes.

In a table without a key, a row's key is the md5 of its line and a number for
each of several equal rows (``9e107d9d372bb6826bd81d3542a419d6-0000000001``).
Equal rows are interchangeable: their numbers mean nothing else.
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from hashlib import md5
from typing import Any

import orjson

from laredo_model import line as line_
from laredo_model.errors import BadLine


def of_fragments(fragments: Sequence[bytes]) -> bytes:
    """The key made of the key columns' JSON values, given in the key's order."""
    if len(fragments) == 1:
        return of_fragment(fragments[0])
    return b"[" + b",".join(fragments) + b"]"


def of_fragment(fragment: bytes) -> bytes:
    """The key of a row whose one key column has this JSON value.

    :raises BadLine: if it is a string with an escape that JSON doesn't have.
    """
    if fragment[:1] != b'"':
        return fragment
    if b"\\" not in fragment:
        return fragment[1:-1]
    try:
        text: str = orjson.loads(fragment)
    except ValueError as wrong:
        raise BadLine(f"a key isn't a JSON string ({wrong}): {fragment[:80]!r}") from wrong
    return text.encode()


def digest(line: bytes) -> bytes:
    """The first part of a keyless row's key: the md5 of its line, 32 hex digits."""
    return md5(line, usedforsecurity=False).hexdigest().encode()


def numbered(digest: bytes, number: int) -> bytes:
    """The key of the ``number``-th (from 1) of the rows whose lines have this digest."""
    return b"%b-%010d" % (digest, number)


def begins_equal_rows(key: bytes) -> bool:
    """True if a key that :func:`numbered` made is the first of equal rows."""
    return number_of(key) == 1


def number_of(key: bytes) -> int:
    """The number in a key that :func:`numbered` made."""
    return int(key[-10:])


class EqualRows:
    """Keys of a keyless table's rows, which must come in the order of their keys."""

    def __init__(self) -> None:
        self._digest, self._number = b"", 0

    def of(self, line: bytes) -> bytes:
        """The key of the next row.

        :raises BadLine: if its key comes before the last row's.
        """
        found = digest(line)
        if found == self._digest:
            self._number += 1
        elif found < self._digest:
            raise BadLine(
                f"the rows of a table without a key aren't in the order of their md5: {line[:80]!r}"
            )
        else:
            self._digest, self._number = found, 1
        return numbered(found, self._number)


def of_line(line: bytes, key_fields: Sequence[str]) -> bytes:
    """The key of ``line``, whose key columns are named ``key_fields``, in the key's order.

    :raises BadLine: if ``line`` isn't a row's line or lacks a key column.
    """
    values = dict(line_.items(line))
    try:
        return of_fragments([values[orjson.dumps(name)] for name in key_fields])
    except KeyError as missing:
        raise BadLine(
            f"the row has no key column {missing.args[0].decode()}: {line[:80]!r}"
        ) from None


# Keys as Go's fmt prints them (%v), for readers that find rows by such keys.
#
# The original program's readers parse rows as JSON, whose numbers become float64. They print the
# key column's value, or a slice of several: ``1.000001e+06``, ``[r2 14]``.

_PLAIN_EXPONENTS = range(-4, 6)
"""Powers of ten of numbers that strconv.FormatFloat(x, 'g', -1, 64) prints without an exponent."""


def go_key_of_line(line: bytes, key_fields: Sequence[str]) -> bytes:
    """The key of a row as Go prints it.

    :raises BadLine: if ``line`` isn't a row's line.
    :raises KeyError: if it lacks a key column.
    """
    fragments = dict(line_.items(line))
    values = [orjson.loads(fragments[orjson.dumps(name)]) for name in key_fields]
    return printed(values[0] if len(values) == 1 else values).encode()


def printed(value: Any) -> str:
    """A JSON value as %v prints it."""
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
