"""Writes records as zstd frames, with the splits and checksums of the compressed file."""

from collections.abc import Callable, Iterable, Sequence

import zstandard

from laredo_archive.codec.output import ByteSink, EncodedFile, FileWriter
from laredo_model.column import Column

LEVEL = 1
"""Higher ones save little and cost much: docs/costs.md has the figures."""


class FrameWriter:
    """Takes what ``FileWriter`` takes, and writes it in frames of about ``block`` plain bytes.

    Memory: a frame's plain bytes, and the same compressed. A record is never divided, so a
    longer one makes a frame of its own.
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
        """The account. The sink stays open: it is the caller's."""
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
