"""Slices of CPU time: a client's costly request yields to other work every few ms.

One event loop serves all sessions of a process. Work that grows with a request, a record or a
table is a generator that yields after each slice of it, whether or not there is anything to send
yet; a slice is measured in rows and bytes, never in time, so that a slow machine only makes all
of it slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Sliced: TypeAlias = Generator[None, None, T]
"""Yields after each slice; returns what came of it."""

SLICE_ROWS = 200
"""Rows, changes or values of a request that are read at a time: about 2 ms of Python."""
SLICE_BYTES = 64 << 10
"""Bytes of lines that are parsed at a time."""


async def run(work: Sliced[T]) -> T:
    """Do it, and let every other task have its turn between two slices."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


def at_once(work: Sliced[T]) -> T:
    """Do it in one go, where nobody waits: in a thread, or for a result that is surely small."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


class Slice:
    """The clock of one slice: says when it is over."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self) -> None:
        self._rows = self._bytes = 0

    def done_with(self, size: int, rows: int = 1) -> bool:
        """So much more was read; True: that was a slice, and the next one begins."""
        self._rows += rows
        self._bytes += size
        if self._rows < SLICE_ROWS and self._bytes < SLICE_BYTES:
            return False
        self._rows = self._bytes = 0
        return True
