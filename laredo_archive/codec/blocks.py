"""Files in blocks of whole lines or whole messages, so that memory doesn't grow with the file."""

from collections.abc import Iterator
from typing import Protocol

from laredo_archive.codec.errors import BadBytes
from laredo_archive.codec.structs import compiled

READ_BYTES = 512 * 1024
MAX_RECORD = 2 * 1024 * 1024 * 1024
"""Bytes. PostgreSQL's values end at 1 GB; a longer line or message is damage."""


class ByteSource(Protocol):
    """Source of bytes: a file open for reading, a download."""

    def read(self, size: int = -1, /) -> bytes: ...


def ranged(
    stream: ByteSource, start: int | None, stop: int | None, size: int | None = None
) -> Iterator[bytes]:
    """The bytes from ``start`` to before ``stop``, in pieces of ``size`` bytes.

    ``start`` is sought for, so only a seekable stream may have one.

    :raises BadBytes: if the stream ends before ``stop``.
    """
    if start:
        stream.seek(start)  # type: ignore[attr-defined]  # ranges are for seekable streams
    left = None if stop is None else stop - (start or 0)
    at_once = size or READ_BYTES
    while left is None or left > 0:
        piece = stream.read(at_once if left is None else min(at_once, left))
        if not piece:
            if left is not None:
                raise BadBytes(f"it ends {left} bytes before byte {stop}")
            return
        if left is not None:
            left -= len(piece)
        yield piece


def lines(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Lines without their ``\\n``; only ``\\n`` ends one, and the last may lack it."""
    open_line: list[bytes] = []
    held = 0
    for piece in pieces:
        head, newline, rest = piece.partition(b"\n")
        open_line.append(head)
        if not newline:
            held += len(piece)
            if held > MAX_RECORD:
                raise BadBytes(f"a line longer than {MAX_RECORD} bytes")
            continue
        whole = rest.split(b"\n")
        last = whole.pop()
        yield [b"".join(open_line), *whole]
        open_line, held = [last], len(last)
    last = b"".join(open_line)
    if last:
        yield [last]


def line_blocks(stream: ByteSource, size: int) -> Iterator[bytes]:
    """Blocks of whole lines, about ``size`` bytes each, that end with a newline.

    :raises BadBytes: at a line longer than any row.
    """
    rest: list[bytes] = []
    held = 0
    while piece := stream.read(size):
        end = piece.rfind(b"\n") + 1
        if end == len(piece) and not held:
            yield piece
        elif end:
            yield b"".join([*rest, memoryview(piece)[:end]])
            rest, held = [piece[end:]], len(piece) - end
        else:
            rest.append(piece)
            held += len(piece)
            if held > MAX_RECORD:
                raise BadBytes(f"a line longer than {MAX_RECORD} bytes")
    if held:
        yield b"".join([*rest, b"\n"])


def messages(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Messages, each with its length in front as a varint.

    https://protobuf.dev/programming-guides/techniques/#streaming

    :raises BadBytes: if the stream ends inside of one.
    """
    parts: list[bytes] = []
    held, needed = 0, 1
    for piece in pieces:
        parts.append(piece)
        held += len(piece)
        if held < needed:
            continue
        found, rest, needed = _whole_messages(b"".join(parts))
        if found:
            yield found
        # Not an empty one: one piece alone is joined without a copy.
        parts, held = [rest] if rest else [], len(rest)
    if held:
        raise BadBytes(f"it ends inside a message, {held} bytes after its start")


def _whole_messages(buffer: bytes) -> tuple[list[bytes], bytes, int]:
    """The whole messages, the rest after them, and how many bytes the rest must grow to."""
    scanned = None if compiled.module is None else compiled.module.messages(buffer, MAX_RECORD)
    if scanned is not None:
        return scanned[0], buffer[scanned[1] :], scanned[2]
    found = []
    at, size, needed = 0, len(buffer), 1
    while at < size:
        header = _length(buffer, at)
        if header is None:
            break
        length, start = header
        if start + length > size:
            needed = start + length - at
            break
        at = start + length
        found.append(buffer[start:at])
    return found, buffer[at:], needed


def _length(buffer: bytes, at: int) -> tuple[int, int] | None:
    """(length, where the message starts), None if the buffer ends inside the length."""
    value = shift = 0
    for index in range(at, min(at + 10, len(buffer))):
        byte = buffer[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_RECORD:
                raise BadBytes(f"a message of {value} bytes")
            return value, index + 1
        shift += 7
    if len(buffer) - at >= 10:
        raise BadBytes("a message's length has no end")
    return None
