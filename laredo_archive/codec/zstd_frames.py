"""Frames of zstd: written with splits and checksums, read as the plain bytes in bounded memory.

Frames are taken apart here as far as their blocks' lengths, and each block, of 128 KB at most
before and after, goes through the library by itself: so a frame's end is known, and no few
bytes become gigabytes at once. https://www.rfc-editor.org/rfc/rfc8878#name-zstandard-frames
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import zstandard

from laredo_archive.codec.output import (
    MAX_RECORD,
    READ_BYTES,
    ByteSink,
    ByteSource,
    EncodedFile,
    FileWriter,
)
from laredo_archive.errors import BadBytes
from laredo_model.column import Column

MAX_WINDOW = 8 << 20
"""Bytes that a frame may refer back to, and so the memory that it takes: what RFC 8878 asks of
every reader."""
MAX_CONTENT = MAX_RECORD
"""Plain bytes of a frame: it holds a single record if it is larger than a block."""

_MAGIC = b"\x28\xb5\x2f\xfd"
_SINGLE_SEGMENT, _CHECKSUM = 0x20, 0x04
_DICTIONARY_BYTES = (0, 1, 2, 4)
_SIZE_BYTES = (0, 2, 4, 8)
_RLE, _RESERVED = 1, 3
_MOST_IN_BLOCK = 128 << 10


class PlainBytes:
    """The plain bytes of whole frames; a ByteSource."""

    def __init__(
        self, source: ByteSource, start: int | None = None, stop: int | None = None
    ) -> None:
        """Frames from ``start`` to ``stop``; a ``start`` needs a seekable ``source``."""
        if start:
            source.seek(start)  # type: ignore[attr-defined]  # ranges are for seekable streams
        self._pieces = _pieces(_Compressed(source, start or 0, stop))
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        """The next ``size`` bytes; fewer only at the end.

        :raises BadBytes: where the source isn't whole frames.
        """
        parts, held = [self._rest], len(self._rest)
        while size < 0 or held < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            parts.append(piece)
            held += len(piece)
        data = b"".join(parts)
        if size < 0 or held <= size:
            self._rest = b""
            return data
        self._rest = data[size:]
        return data[:size]


class _Compressed:
    """The frames' bytes, in bounded pieces."""

    def __init__(self, source: ByteSource, start: int, stop: int | None) -> None:
        self._source = source
        self._stop = stop
        self._read_to = start
        self._buffer = b""
        self._at = 0

    @property
    def offset(self) -> int:
        return self._read_to - len(self._buffer) + self._at

    def at_end(self) -> bool:
        return self._at == len(self._buffer) and not self._more()

    def take(self, size: int) -> bytes:
        while len(self._buffer) - self._at < size:
            if not self._more():
                raise BadBytes(f"the file ends inside a zstd frame, at byte {self._read_to}")
        self._at += size
        return self._buffer[self._at - size : self._at]

    def _more(self) -> bool:
        left = READ_BYTES if self._stop is None else min(READ_BYTES, self._stop - self._read_to)
        if left <= 0:
            return False
        piece = self._source.read(left)
        if not piece and self._stop is not None:
            raise BadBytes(f"the file ends at byte {self._read_to}, before byte {self._stop}")
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        self._read_to += len(piece)
        return bool(piece)


class _Header(NamedTuple):
    data: bytes
    content_bytes: int


def _pieces(compressed: _Compressed) -> Iterator[bytes]:
    unpacking = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    while not compressed.at_end():
        begun = compressed.offset
        header = _header(compressed, begun)
        frame = unpacking.decompressobj()
        try:
            yield from _frame(compressed, header, frame, begun)
        except zstandard.ZstdError as wrong:
            raise BadBytes(f"the zstd frame at byte {begun} can't be read: {wrong}") from wrong


def _frame(compressed: _Compressed, header: _Header, frame: Any, begun: int) -> Iterator[bytes]:
    unpack = frame.decompress
    unpack(header.data)
    left, is_last = header.content_bytes, False
    while not is_last:
        head = compressed.take(3)
        value = int.from_bytes(head, "little")
        is_last, kind, size = bool(value & 1), value >> 1 & 3, value >> 3
        if kind == _RESERVED or size > _MOST_IN_BLOCK:
            raise BadBytes(f"the zstd frame at byte {begun} has a block that no frame may have")
        # The checksum goes with the last block, so its bytes come out only if they are right.
        data = compressed.take((1 if kind == _RLE else size) + (4 if is_last else 0))
        piece = unpack(head + data)
        left -= len(piece)
        if left < 0 or (is_last and (left or not frame.eof)):
            raise BadBytes(
                f"the zstd frame at byte {begun} doesn't have the {header.content_bytes} bytes"
                " that its header declares"
            )
        if piece:
            yield piece


def _header(compressed: _Compressed, begun: int) -> _Header:
    """A frame's header.

    :raises BadBytes: if none begins here, or it isn't one that archives have.
    """
    magic = compressed.take(len(_MAGIC))
    if magic != _MAGIC:
        raise BadBytes(f"no zstd frame begins at byte {begun}: {magic!r}")
    descriptor = compressed.take(1)
    flags = descriptor[0]
    single = bool(flags & _SINGLE_SEGMENT)
    size_bytes = _SIZE_BYTES[flags >> 6] or int(single)
    if not size_bytes or not flags & _CHECKSUM:
        raise BadBytes(f"the zstd frame at byte {begun} lacks its content's size or checksum")
    fields = compressed.take((not single) + _DICTIONARY_BYTES[flags & 3])
    size = compressed.take(size_bytes)
    content = int.from_bytes(size, "little") + (256 if size_bytes == 2 else 0)
    if content > MAX_CONTENT:
        raise BadBytes(
            f"the zstd frame at byte {begun} declares {content} bytes, more than the"
            f" {MAX_CONTENT} that a record may have"
        )
    return _Header(magic + descriptor + fields + size, content)


# Writes records as zstd frames, with the splits and checksums of the compressed file.

LEVEL = 1
"""Higher ones save little and cost much: docs/costs.md has the figures."""


class FrameWriter:
    """A FileWriter that writes in frames of about ``block`` plain bytes.

    Takes memory for a frame, plain and compressed. A record is never divided, so a longer one
    makes a frame of its own.
    """

    def __init__(self, sink: ByteSink, block: int, columns: Sequence[Column] = ()) -> None:
        self._file = FileWriter(sink, 0, columns)
        self._block = block
        self._compressor = zstandard.ZstdCompressor(
            level=LEVEL, write_checksum=True, write_content_size=True
        )
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._first_key = b""

    def header(self, data: bytes) -> None:
        """The TRUNCATE record: a frame of its own, before the first split."""
        self._file.header(self._frame([data], len(data)))

    def put(self, keys: Sequence[bytes], data: bytes, sizes: Callable[[], Iterable[int]]) -> None:
        """Write records with these keys, as ``data``; ``sizes`` gives each one's bytes."""
        if not keys:
            return
        self._file.count(keys)
        if self._held_bytes + len(data) <= self._block:
            self._hold(keys[0], data)
            return
        first, begun, at = keys[0], 0, 0
        for key, size in zip(keys, sizes(), strict=True):
            if self._held_bytes + at + size - begun > self._block:
                self._hold(first, data[begun:at])
                self._end_frame()
                first, begun = key, at
            at += size
        self._hold(first, data[begun:])

    def close(self) -> EncodedFile:
        """End the file; the sink stays open."""
        self._end_frame()
        return self._file.close()

    def _hold(self, first_key: bytes, data: bytes) -> None:
        if not data:
            return
        if not self._held:
            self._first_key = first_key
        self._held.append(data)
        self._held_bytes += len(data)

    def _end_frame(self) -> None:
        if self._held:
            self._file.block(self._first_key, self._frame(self._held, self._held_bytes))
            self._held, self._held_bytes = [], 0

    def _frame(self, pieces: Sequence[bytes], size: int) -> bytes:
        frame = self._compressor.compressobj(size=size)
        return b"".join([*map(frame.compress, pieces), frame.flush()])
