"""Messages of the replication protocol and frames of them, right and wrong, for the C extensions.

Whatever takes them draws the same ones for C and for its Python twin.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from struct import pack

from laredo_fanout.decode.frames import Get
from tests.fuzz.mutation import mutated

OIDS = [number.to_bytes(4, "big") for number in (7, 8, 0x7FFFFFFF)]
_LENGTHS = (0, 1, 10, 255, 256, 65_535, 65_536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def xlog(draw: random.Random, kind: bytes, content: bytes) -> bytes:
    """A message in its envelope; the server's WAL may reach anywhere."""
    ends = (0, 1, 0x1234, 1 << 55, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
    return b"w" + pack(">QQQ", 1, draw.choice(ends), 2) + kind + content


def tuple_data(draw: random.Random, values: Sequence[bytes | None]) -> bytes:
    """TupleData of these values, of which one length in a hundred is wrong."""
    columns = []
    for value in values:
        if value is None:
            columns.append(draw.choice((b"n", b"n", b"u")))
        else:
            size = len(value) if draw.randrange(100) else draw.choice(_LENGTHS)
            columns.append(b"t" + pack(">I", size) + value)
    return pack(">H", len(values)) + b"".join(columns)


def row(draw: random.Random, oid: bytes, values: Sequence[bytes | None]) -> bytes:
    """An INSERT or UPDATE with these values."""
    kind = draw.choice((b"I", b"U"))
    old = b""
    if kind == b"U" and not draw.randrange(8):
        old = draw.choice((b"O", b"K")) + tuple_data(draw, values)
    return xlog(draw, kind, oid + old + b"N" + tuple_data(draw, values))


def broken(draw: random.Random, message: bytes) -> bytes:
    """A third of messages as they were, a third cut short or long, a third mutated; never empty."""
    match draw.randrange(6):
        case 0:
            return message[: draw.randint(1, len(message))]
        case 1:
            return message + draw.randbytes(draw.randint(1, 8))
        case 2 | 3:
            return mutated(draw, message) or b"w"
    return message


def getting(messages: Sequence[bytes], end: int = 0) -> Get:
    """Substitute for ``get_copy_data``, for these messages and then ``end``."""
    left: Iterator[tuple[int, bytes]] = iter([(len(each), each) for each in messages])
    return lambda _: next(left, (end, b""))
