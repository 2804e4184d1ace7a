"""Bytes flipped in a store's data file while nobody has it open, as a disk that rots does."""

from __future__ import annotations

from pathlib import Path

_BIT = 0x04


def flip(state: Path, place: bytes, *, at: int = 0, unless_after: bytes | None = None) -> int:
    """Flip one bit ``at`` bytes into each occurrence of ``place``, but not where it is right after
    ``unless_after``; returns how many there were."""
    file = state / "data.mdb"
    data = bytearray(file.read_bytes())
    flipped = 0
    found = data.find(place)
    while found >= 0:
        if unless_after is None or not data.endswith(unless_after, 0, found):
            data[found + at] ^= _BIT
            flipped += 1
        found = data.find(place, found + 1)
    assert flipped, f"{place!r} isn't in {file}"
    file.write_bytes(data)
    return flipped


def flip_at(state: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of the byte at ``offset``."""
    with (state / "data.mdb").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
