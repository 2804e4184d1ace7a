"""Seals: eight bytes after each stored value that show damage on disk.

A seal is a hash of key (without its table's prefix) and value. It guards against bits that change
on disk, not against an adversary. The sum of a table's seals, modulo 2^64, is its running checksum:
each change adds the new row's seal and subtracts the old row's, so the sum shows missing rows.

The hash has four lanes, each of which takes every fourth word of eight bytes (little-endian, the
last one padded with zeros), first of the value, then of the key. After each word the lane is
multiplied to 128 bits, and the halves are combined by exclusive or. At the end the lanes and both
sizes are combined in the same way.
"""

from __future__ import annotations

from struct import Struct, unpack

__all__ = ["checked", "fits", "joined", "opened", "seal_number", "sealed"]

MODULUS = 1 << 64
SEAL_BYTES = 8

_PREFIX = 4
_MULTIPLIER = 0x9E3779B97F4A7C15
_BEGINS = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3)
_LANES = len(_BEGINS)
_U64 = Struct("<Q")


def plain_seal_number(key: bytes, value: bytes | memoryview) -> int:
    """The seal of this key and value, as a number."""
    lanes = list(_BEGINS)
    _absorb(lanes, bytes(value))
    _absorb(lanes, key)
    number = _mix(lanes[0] ^ len(key))
    number = _mix(number ^ lanes[1] ^ len(value))
    number = _mix(number ^ lanes[2])
    return _mix(number ^ lanes[3])


def _absorb(lanes: list[int], data: bytes) -> None:
    padded = data + bytes(-len(data) % 8)
    for index, word in enumerate(unpack(f"<{len(padded) // 8}Q", padded)):
        lane = index % _LANES
        lanes[lane] = _mix(lanes[lane] ^ word)


def _mix(number: int) -> int:
    product = number * _MULTIPLIER
    return (product % MODULUS) ^ (product >> 64)


def plain_sealed(stored: list[bytes], lines: list[bytes]) -> tuple[list[bytes], int]:
    """Stored values of rows, and the sum of their seals."""
    values, total = [], 0
    for key, line in zip(stored, lines, strict=True):
        number = plain_seal_number(key[_PREFIX:], line)
        values.append(line + _U64.pack(number))
        total += number
    return values, total % MODULUS


def plain_checked(stored: list[bytes], values: list[bytes | None]) -> tuple[int, int]:
    """The sum of the seals of stored values, without None and tombstones, and the index of the
    first damaged value (-1 for none; otherwise the sum is 0)."""
    total = 0
    for index, (key, value) in enumerate(zip(stored, values, strict=True)):
        if not value:
            continue
        number = plain_seal_number(key[_PREFIX:], value[:-SEAL_BYTES])
        if value[-SEAL_BYTES:] != _U64.pack(number):
            return 0, index
        total += number
    return total % MODULUS, -1


def plain_opened(
    pairs: list[tuple[bytes, bytes]],
) -> tuple[list[bytes], list[bytes], int, int]:
    """Keys and lines of stored rows, the sum of the seals, and the index of the first damaged row
    (-1 for none; otherwise no rows are returned). A row with another prefix than the first is
    damaged."""
    keys, lines = [], []
    total = 0
    for index, (stored, value) in enumerate(pairs):
        key, line = stored[_PREFIX:], value[:-SEAL_BYTES]
        number = plain_seal_number(key, line)
        alien = stored[:_PREFIX] != pairs[0][0][:_PREFIX]
        if alien or value[-SEAL_BYTES:] != _U64.pack(number):
            return [], [], 0, index
        keys.append(key)
        lines.append(line)
        total += number
    return keys, lines, total % MODULUS, -1


def plain_joined(key: bytes, parts: tuple[bytes, ...]) -> bytes:
    """The parts as one value of the journal or the meta database, with its seal."""
    value = b"".join(parts)
    return value + _U64.pack(plain_seal_number(key, value))


def plain_fits(key: bytes, stored: bytes | memoryview) -> bool:
    """True if the stored value is what was written under this key."""
    size = len(stored) - SEAL_BYTES
    return size >= 0 and stored[size:] == _U64.pack(plain_seal_number(key, stored[:size]))


try:
    from laredo_fanout.store._seals import checked, fits, joined, opened, seal_number, sealed
except ImportError:  # there was no C compiler when this was installed
    sealed, checked, joined = plain_sealed, plain_checked, plain_joined
    opened, fits, seal_number = plain_opened, plain_fits, plain_seal_number
