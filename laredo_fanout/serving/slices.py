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
"""A generator of work: it yields after each slice, and returns the result."""

SLICE_ROWS = 200
"""The rows, changes or values of a request in a slice: about 2 ms of Python."""
SLICE_BYTES = 64 << 10
"""The bytes of lines in a slice."""


async def run(work: Sliced[T]) -> T:
    """Do the work, with a turn of every other task between two slices."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


def at_once(work: Sliced[T]) -> T:
    """Do the work at once: in a thread, or for a result that is certainly small."""
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
        """Count what was read; returns True if that was a slice, and begins the next one."""
        self._rows += rows
        self._bytes += size
        if self._rows < SLICE_ROWS and self._bytes < SLICE_BYTES:
            return False
        self._rows = self._bytes = 0
        return True
