"""Bytes flipped in a store's data file while nobody has it open, as a disk that rots does."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_BIT = 0x04


def flip(state: Path, place: bytes, *, at: int = 0, unless_after: bytes | None = None) -> int:
    """Flip one bit ``at`` bytes into each occurrence of ``place``, but not where it is right after
    ``unless_after``; returns how many there were."""
    flipped = 0
    with (state / "data.mdb").open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for start, end in _written(file.fileno(), len(data)):
            found = data.find(place, start, end)
            while found >= 0:
                if unless_after is None or data[found - len(unless_after) : found] != unless_after:
                    data[found + at] ^= _BIT
                    flipped += 1
                found = data.find(place, found + 1, end)
    assert flipped, f"{place!r} isn't in {state}"
    return flipped


def _written(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges of a sparse file that were ever written: a store of 17 MB is a file of 512 MiB."""
    end = 0
    while end < size:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole is left
            return
        end = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield start, end


def flip_at(state: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of the byte at ``offset``."""
    with (state / "data.mdb").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
