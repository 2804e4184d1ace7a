"""CRC-32 of each block of a file, so that a part of it can be checked without the rest.

zlib-ng makes it in a thirteenth of zlib's time.

Where blocks become one, their checksums are put together without their bytes:
of A followed by B it is the CRC of A times x^(8 |B|), modulo CRC-32's polynomial, plus
that of B (https://www.zlib.net/manual.html, crc32_combine).
"""

from collections.abc import Collection
from functools import cache

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # Spark's workers may have less than the project installs
    from zlib import crc32

__all__ = ["BlockSums", "Blocks", "combined", "crc32"]

Blocks = tuple[tuple[int, int], ...]
"""Start of each block, and its CRC-32; a block ends where the next begins, or with the file."""

_POLYNOMIAL = 0xEDB88320
_ONE, _X = 1 << 31, 1 << 30
"""The highest power of a polynomial is in the lowest bit."""


class BlockSums:
    """The checksums of a file's blocks, while it is written."""

    def __init__(self) -> None:
        self._size = self._begun = self._sum = 0
        self._cuts: list[int] = []
        self._blocks: list[tuple[int, int, int]] = []

    def cut(self, offset: int) -> None:
        """A block begins at ``offset``, which isn't written yet; offsets ascend."""
        self._cuts.append(offset)

    def add(self, data: bytes) -> None:
        """The next bytes."""
        view, start = memoryview(data), self._size
        for offset in self._cuts:
            self._take(view[self._size - start : offset - start])
            self._end_block()
        self._cuts.clear()
        self._take(view[self._size - start :])

    def blocks(self, begins: Collection[int]) -> Blocks:
        """Blocks that begin at 0 and at those of ``begins`` where one was cut."""
        self._end_block()
        wanted = {0, *begins}
        found: list[tuple[int, int]] = []
        for offset, size, sum_ in self._blocks:
            if offset in wanted:
                found.append((offset, sum_))
            else:
                begun, before = found[-1]
                found[-1] = begun, combined(before, sum_, size)
        return tuple(found)

    def _take(self, data: memoryview) -> None:
        self._sum = crc32(data, self._sum)
        self._size += len(data)

    def _end_block(self) -> None:
        if self._size > self._begun:
            self._blocks.append((self._begun, self._size - self._begun, self._sum))
            self._begun, self._sum = self._size, 0


def combined(first: int, second: int, size: int) -> int:
    """The CRC-32 of two pieces one after the other; ``size``: bytes of the second."""
    power, bits = _ONE, size * 8
    for bit in range(bits.bit_length()):
        if bits >> bit & 1:
            power = _times(power, _squared(bit))
    return _times(power, first) ^ second


@cache
def _squared(times: int) -> int:
    """The polynomial x, squared ``times`` times."""
    return _X if times == 0 else _times(_squared(times - 1), _squared(times - 1))


def _times(a: int, b: int) -> int:
    product, bit = 0, _ONE
    while bit:
        if a & bit:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
        bit >>= 1
    return product
