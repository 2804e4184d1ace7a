"""Bytes made wrong: what an input that was right becomes on a bad day."""

from __future__ import annotations

import random
from collections.abc import Sequence

_NUMBERS = (b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\0\0", b"\xff\xff", b"\x7f\xff\xff\xff")
_NUMBERS += (b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xff" * 9 + b"\x01", b"\xff" * 16)


def mutated(draw: random.Random, data: bytes, words: Sequence[bytes] = ()) -> bytes:
    """``data`` with one to four changes; ``words`` are put in too, beside numbers' ends."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        _change(draw, changed, words)
    return bytes(changed)


def _change(draw: random.Random, data: bytearray, words: Sequence[bytes]) -> None:
    at = draw.randint(0, len(data))
    size = draw.choice((1, 1, 2, 4, 8, 40))
    match draw.randrange(7):
        case 0 if at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        case 1 if at < len(data):
            data[at] = draw.randrange(256)
        case 2:
            del data[at : at + size]
        case 3:
            del data[at:]
        case 4:
            data[at:at] = data[at : at + size]
        case 5:
            data[at:at] = draw.randbytes(size)
        case _:
            word = draw.choice((*_NUMBERS, *words))
            data[at : at + draw.choice((0, len(word)))] = word
