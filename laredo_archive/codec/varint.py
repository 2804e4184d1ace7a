"""Base-128 varints: seven bits a byte, low ones first.

https://protobuf.dev/programming-guides/encoding/#varints
"""

_LONGEST_BITS = 70
_SHORT = [bytes([low]) for low in range(128)] + [
    bytes([number & 0x7F | 0x80, number >> 7]) for number in range(128, 1 << 14)
]


def varint(number: int) -> bytes:
    """``number``, not negative, as a varint."""
    if number < len(_SHORT):
        return _SHORT[number]
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def read(data: bytes, at: int) -> tuple[int, int]:
    """(the number at ``at``, where the bytes after it start).

    :raises IndexError: if ``data`` ends inside of it, or it has no end within ten bytes.
    """
    number = shift = 0
    while shift < _LONGEST_BITS:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise IndexError("a varint has at most ten bytes")
