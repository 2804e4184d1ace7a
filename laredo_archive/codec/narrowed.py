"""Sorted lines and messages narrowed to a range of keys by bisection: little else is parsed."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
_ABOVE_ALL = b"\xff"
"""No UTF-8 has this byte."""


class KeyBounds(Protocol):
    """A range of keys, as ranges.KeyRange: from ``low`` to before ``high``; None: no such end."""

    @property
    def low(self) -> bytes | None: ...

    @property
    def high(self) -> bytes | None: ...


def lines(block: bytes, keys: KeyBounds, key_at: Callable[[bytes, int], bytes]) -> bytes:
    """The lines of ``block`` whose keys are among ``keys``.

    ``block`` ends with a newline; ``key_at``: the key of the line that begins there.
    """
    start = 0 if keys.low is None else _first_line(block, keys.low, key_at)
    stop = len(block) if keys.high is None else _first_line(block, keys.high, key_at)
    return block if stop - start == len(block) else block[start:stop]


def records(some: Sequence[T], keys: KeyBounds, key_of: Callable[[T], bytes]) -> Sequence[T]:
    """Those whose keys are among ``keys``."""
    start = 0 if keys.low is None else bisect_left(some, keys.low, key=key_of)
    stop = len(some) if keys.high is None else bisect_left(some, keys.high, key=key_of)
    return some[start:stop]


def _first_line(block: bytes, bound: bytes, key_at: Callable[[bytes, int], bytes]) -> int:
    """Offset of the first line whose key isn't below ``bound``."""
    low, high = 0, len(block)
    while low < high:
        middle = (low + high) // 2
        start = block.rfind(b"\n", low, middle) + 1 or low
        if _key(block, start, key_at) < bound:
            low = block.find(b"\n", middle) + 1
        else:
            high = start
    return low


def _key(block: bytes, at: int, key_at: Callable[[bytes, int], bytes]) -> bytes:
    """Of a line without a byte it is that of the next one."""
    while block.startswith(b"\n", at):
        at += 1
    return key_at(block, at) if at < len(block) else _ABOVE_ALL
