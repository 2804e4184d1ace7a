"""The checksum of a table's rows: independent of their order, updated change by change.

The sum, modulo 2^128, over the rows of the md5 of the line (UTF-8) read as an
unsigned big-endian integer. md5 because PostgreSQL, Spark and Python all have
it built in; it guards against mistakes, not against an adversary.
"""

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from laredo_model.errors import ModelError

_md5: Callable[[bytes], Any]
try:
    # The interpreter's own: a row is so short that setting up OpenSSL's costs as much as hashing.
    from _md5 import md5 as _md5  # type: ignore[import-not-found, no-redef, unused-ignore]
except ImportError:
    _md5 = partial(hashlib.md5, usedforsecurity=False)

MODULUS = 1 << 128


def sum_of(lines: Iterable[bytes]) -> int:
    """The sum, not yet reduced modulo 2^128, over ``lines``."""
    total = 0
    from_bytes, md5 = int.from_bytes, _md5
    for line in lines:
        total += from_bytes(md5(line).digest(), "big")
    return total


class StateChecksum:
    """The row count and the checksum of one table's rows."""

    __slots__ = ("rows", "value")

    def __init__(self, rows: int = 0, value: int = 0) -> None:
        self.rows = rows
        self.value = value % MODULUS

    @classmethod
    def from_hex(cls, rows: int, text: str) -> "StateChecksum":
        """Parse a checksum that is written as ``text``.

        :raises ModelError: if ``text`` isn't 32 hex digits.
        """
        if len(text) != 32:
            raise ModelError(f"{text!r} is not a state checksum; expected 32 hex digits")
        try:
            return cls(rows, int(text, 16))
        except ValueError as wrong:
            raise ModelError(f"{text!r} is not a state checksum; expected 32 hex digits") from wrong

    def add(self, lines: list[bytes]) -> None:
        """Count rows that were inserted."""
        self.rows += len(lines)
        self.value = (self.value + sum_of(lines)) % MODULUS

    def remove(self, lines: list[bytes]) -> None:
        """Subtract rows that were deleted."""
        self.rows -= len(lines)
        self.value = (self.value - sum_of(lines)) % MODULUS

    def hex(self) -> str:
        """The checksum as 32 hex digits."""
        return f"{self.value:032x}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StateChecksum):
            return NotImplemented
        return self.rows == other.rows and self.value == other.value

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"StateChecksum(rows={self.rows}, {self.hex()})"
