"""What goes between the ingest and the processes that decode for it.

Messages and what they decode to lie in memory that both map; through a socket
go orders (which block lies where, how rows are taken apart) and answers (what
lies where in its place). So neither side waits for the other to read.
"""

from __future__ import annotations

import marshal
import pickle
import socket
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from laredo_fanout.source.row_decoder import PADDING
from laredo_model.rule import TypeInfo

BLOCK_BYTES = 512 << 10
"""Room for a block: messages with padding, and their sizes."""
RESULT_FACTOR = 4
"""Times a block's room is what it may decode to; what needs more is decoded by the ingest."""

_SIZE = Struct(">I")
ANSWER = Struct(">II")
"""Slot and size; of size 0 where the result had no room, the slot NOBODY's where it is a sign
of life alone."""
NOBODY = 0xFFFFFFFF


class Layout(NamedTuple):
    """How one relation's rows are taken apart: the arguments of ``compile_decoder``."""

    names: tuple[str, ...]
    types: tuple[TypeInfo, ...]
    key: tuple[str, ...]


Layouts = Mapping[bytes, Layout | None]
"""By relation id, as it stands in a message; None: its rows are for the ingest alone."""


class Setup(NamedTuple):
    """Relations whose layout is another one from here on, and which is the state then."""

    number: int
    changed: dict[bytes, Layout | None]
    ignored: tuple[bytes, ...]
    """No longer known: their rows go nowhere."""


class Block(NamedTuple):
    """Messages lie in this slot: their bytes with padding, then so many sizes."""

    slot: int
    size: int
    messages: int


class Part(NamedTuple):
    """One relation's changes in a block, as in TableChanges; the columns of its transactions
    end with the last commit in the block."""

    actions: bytes
    keys: list[bytes]
    lines: list[bytes]
    counts: list[int]
    positions: list[int]
    times_us: list[int]


@dataclass(slots=True)
class Decoded:
    """What the first ``messages`` of a block, of ``received`` bytes, decode to.

    ``commits`` are the first, the last but one and the last commit among them
    (position, time), fewer if there are fewer; ``xid`` is the last BEGIN's (b"": none),
    ``open_bytes`` were received since. ``setup`` is by which layouts.
    """

    setup: int = 0
    messages: int = 0
    received: int = 0
    commits: list[tuple[int, int]] = field(default_factory=list)
    xid: bytes = b""
    open_bytes: int = 0
    in_transaction: bool | None = None
    """After them; None: as before."""
    wal_end: int = 0
    reply_wanted: bool = False
    parts: dict[bytes, Part] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """For :func:`decoded_from_bytes` of the same Python."""
        parts = {oid: tuple(part) for oid, part in self.parts.items()}
        return marshal.dumps(
            (
                self.setup,
                self.messages,
                self.received,
                self.commits,
                self.xid,
                self.open_bytes,
                self.in_transaction,
                self.wal_end,
                self.reply_wanted,
                parts,
            ),
            2,  # later versions look for what is there twice
        )


def decoded_from_bytes(stored: bytes | memoryview) -> Decoded:
    """What :meth:`Decoded.to_bytes` gave."""
    fields = marshal.loads(stored)
    decoded = Decoded(*fields)
    decoded.parts = {oid: Part(*columns) for oid, columns in decoded.parts.items()}
    return decoded


def block_bytes(messages: Sequence[bytes | memoryview], sizes: Sequence[int]) -> bytes:
    """The messages, each padded, and then their sizes."""
    return b"".join((PADDING.join(messages), PADDING, array("I", sizes).tobytes()))


def room_for(size: int, messages: int) -> int:
    """How many bytes a block of so many messages has, of ``size`` bytes together."""
    return size + messages * (len(PADDING) + array("I").itemsize)


class Messages:
    """A block's messages from number ``first`` on, as a connection gives them."""

    def __init__(self, block: bytes, count: int, first: int = 0) -> None:
        sizes = array("I")
        sizes.frombytes(block[len(block) - count * sizes.itemsize :])
        self._block = block
        self._at = sum(sizes[:first]) + first * len(PADDING)
        self._sizes = iter(sizes[first:])

    def get(self, _: int) -> tuple[int, bytes]:
        """The next one; a size of 0: there is none."""
        size = next(self._sizes, 0)
        start = self._at
        self._at += size + len(PADDING)
        return size, self._block[start : start + size]


def send(connection: socket.socket, order: Setup | Block) -> None:
    """Send an order.

    :raises OSError: if nobody takes it.
    """
    stored = pickle.dumps(order)
    connection.sendall(_SIZE.pack(len(stored)) + stored)


def receive(connection: socket.socket) -> Setup | Block | None:
    """The next order; None: there won't be any more."""
    head = _exactly(connection, _SIZE.size)
    if head is None:
        return None
    stored = _exactly(connection, _SIZE.unpack(head)[0])
    if stored is None:
        return None
    order = pickle.loads(stored)  # the ingest's, through a socket that nobody else has
    assert isinstance(order, Setup | Block)
    return order


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    taken = bytearray()
    while len(taken) < size:
        got = connection.recv(size - len(taken))
        if not got:
            return None
        taken += got
    return bytes(taken)


def module_command(module: str, *arguments: object) -> list[str]:
    """The command line of a module of ours as a process of its own."""
    return [sys.executable, "-m", module, *map(str, arguments)]
