"""The framing of a Connect stream: HTTP/1.1's chunks, and the envelopes of messages within them.

Both take bytes as they come from the socket, however they are cut: many messages at a time, or a
part of one.
"""

import re
from typing import NamedTuple

HEAD_BYTES = 5
COMPRESSED = 1
END_STREAM = 2

_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}\Z")
_LONGEST_LINE = 1024


class BadFraming(Exception):
    """The body isn't chunked correctly, or its messages aren't enveloped."""


class Envelope(NamedTuple):
    """A message, or the end of the stream, with its flags."""

    flags: int
    content: bytes


class ChunkedBody:
    """The bytes within the chunks of a body (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        #: Whether the last chunk has come; what follows it is ignored.
        self.ended = False
        self._rest = b""
        self._left = 0
        self._closing = False

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in what came.

        :raises BadFraming: if it isn't a chunked body.
        """
        data = self._rest + data if self._rest else data
        start, found = 0, []
        while not self.ended:
            if self._left:
                piece = data[start : start + self._left]
                start += len(piece)
                self._left -= len(piece)
                found.append(piece)
                if self._left:
                    break
                self._closing = True
            if self._closing:
                if len(data) < start + 2:
                    break
                if not data.startswith(b"\r\n", start):
                    raise BadFraming("a chunk is longer than its header declares")
                start += 2
                self._closing = False
            end = data.find(b"\r\n", start)
            if end < 0:
                if len(data) - start > _LONGEST_LINE:
                    raise BadFraming("a chunk doesn't begin with its size")
                break
            self._left = self._size(data[start:end])
            self.ended = not self._left
            start = end + 2
        self._rest = data[start:]
        return b"".join(found)

    def _size(self, line: bytes) -> int:
        size = line.partition(b";")[0].strip()
        if _SIZE.match(size) is None:
            raise BadFraming(f"a chunk's size is {line[:40]!r}")
        return int(size, 16)


class Envelopes:
    """The messages in a stream's bytes; https://connectrpc.com/docs/protocol#enveloped-message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Envelope]:
        """The envelopes that are whole now, in order."""
        buffer, found, start = self._buffer, [], 0
        buffer += data
        with memoryview(buffer) as view:
            while len(view) >= start + HEAD_BYTES:
                stop = start + HEAD_BYTES + int.from_bytes(view[start + 1 : start + 5], "big")
                if stop > len(view):
                    break
                found.append(Envelope(view[start], view[start + HEAD_BYTES : stop].tobytes()))
                start = stop
        del buffer[:start]
        return found

    @property
    def is_empty(self) -> bool:
        """True if no part of an unfinished message is left."""
        return not self._buffer
