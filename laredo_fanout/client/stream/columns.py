"""Takes the columns of a batch out of its message, in parts between which other tasks may run."""

from collections.abc import Generator, Sequence
from typing import TypeVar

V = TypeVar("V")

_VALUES_A_PART = 500

Parts = Generator[None, None, list[V]]


def values(column: Sequence[V]) -> Parts[V]:
    """The list of the column's values; yields before each part of a long one."""
    if len(column) <= _VALUES_A_PART:
        return list(column)
    found: list[V] = []
    for start in range(0, len(column), _VALUES_A_PART):
        yield
        found += column[start : start + _VALUES_A_PART]
    return found
