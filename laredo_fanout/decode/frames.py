"""A spool's frames: a u32 size and the message with its envelope, written and read in bulk.

Compiled (``_frames.c``) if the installation found a C compiler: a row then costs less
than half of what it costs here. A property test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, Protocol

from laredo_fanout.postgres import pgoutput as message_

Get = Callable[[int], "tuple[int, bytes | memoryview]"]
"""psycopg's PGconn.get_copy_data: 1 means without waiting; size 0 is nothing yet, -1 the end."""

SIZE = Struct(">I")
_KIND = message_.ENVELOPE
_OID = slice(message_.ENVELOPE + 1, message_.ENVELOPE + 5)
_ROWS = (message_.INSERT, message_.UPDATE, message_.DELETE)


class GatherEnd(NamedTuple):
    """Reason why gathering stopped, and its extent."""

    size: int
    """``get``'s last result: 0 nothing has arrived, -1 the end; else a message or the limit."""
    message: bytes | None
    """The message that isn't a row of the relation, for the caller to handle."""
    messages: int
    """Number of messages that were taken, ``message`` included."""


class Frames(Protocol):
    """Interface of :class:`PlainFrames` and of its compiled twin; ``new_frames`` makes either."""

    @property
    def left(self) -> int: ...
    def add(self, more: bytes, /) -> None: ...
    def get(self, _: int, /) -> tuple[int, bytes]: ...


class Gather(Protocol):
    """Signature of :func:`gather_plainly` and of its compiled twin; ``gather`` is one of them."""

    def __call__(
        self, get: Get, limit: int, relation: bytes, into: bytearray, /
    ) -> tuple[int, bytes | None, int]: ...


def gather_plainly(get: Get, limit: int, relation: bytes, into: bytearray) -> GatherEnd:
    """Frame rows of ``relation``, an oid's four bytes, until another message comes."""
    for taken in range(limit):
        size, data = get(1)
        if size <= 0:
            return GatherEnd(size, None, taken)
        if not _is_row(data) or data[_OID] != relation:
            return GatherEnd(size, bytes(data), taken + 1)
        into += SIZE.pack(size)
        into += data
    return GatherEnd(1, None, limit)


def _is_row(message: bytes | memoryview) -> bool:
    whole = len(message) >= _OID.stop and message[0] == message_.XLOG_DATA
    return whole and message[_KIND] in _ROWS


class PlainFrames:
    """Splits blocks, which may end anywhere, into the messages of their frames."""

    def __init__(self) -> None:
        self._block = b""
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that :meth:`get` hasn't returned yet."""
        return len(self._block) - self._at

    def add(self, more: bytes, /) -> None:
        """Append the next block."""
        self._block = self._block[self._at :] + more
        self._at = 0

    def get(self, _: int, /) -> tuple[int, bytes]:
        """The next message, as ``get_copy_data`` returns it: size 0 if no whole one is left."""
        block, start = self._block, self._at + SIZE.size
        if start > len(block):
            return 0, b""
        size: int = SIZE.unpack_from(block, self._at)[0]
        stop = start + size
        if stop > len(block):
            return 0, b""
        self._at = stop
        return size, block[start:stop]


def framed(message: bytes | memoryview) -> bytes:
    """The frame of one message."""
    return SIZE.pack(len(message)) + message


new_frames: Callable[[], Frames] = PlainFrames
gather: Gather = gather_plainly
with suppress(ImportError):  # there was no C compiler when this was installed
    from laredo_fanout.decode import _frames

    new_frames, gather = _frames.Frames, _frames.gather
