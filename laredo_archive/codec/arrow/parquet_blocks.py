"""Row groups of a parquet base, and its footer, each compared with its checksum before it is read.

Page headers and the footer have none in the file itself; the manifest's ``blocks`` have one for
each row group and one for the footer, so these are fetched whole.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO, cast

from laredo_archive.codec import ByteSource
from laredo_archive.codec.errors import BadBytes
from laredo_archive.codec.ranged_file import Seekable
from laredo_archive.manifest.key_ranges import Block, ObjectSlice

OpenSlice = Callable[[ObjectSlice], AbstractContextManager[ByteSource]]
"""Opens an artifact's bytes from the slice's start on; reading may go beyond its stop."""


@contextmanager
def fetched(base: ObjectSlice, block: Block, open_slice: OpenSlice) -> Iterator[bytes]:
    """One block's bytes, checked; errors in them are raised as the file's damage.

    :raises BadBytes: if the file ends before the block does.
    """
    part = ObjectSlice(base.format_id, base.entry, block.start, block.stop)
    with open_slice(part) as source:
        pieces, left = [], part.size_bytes
        while left:
            data = source.read(left)
            if not data:
                raise BadBytes(f"it ends {left} bytes before byte {block.stop}")
            pieces.append(data)
            left -= len(data)
        yield b"".join(pieces)


def file_of(base: ObjectSlice, open_slice: OpenSlice) -> BinaryIO:
    """The blocks of the slice as a seekable file, as long as the base's.

    Reading raises BadBytes beside them.
    """
    return cast(BinaryIO, io.BufferedReader(_Blocks(base, base.blocks, open_slice)))


class _Blocks(Seekable):
    """Holds the block that was read last."""

    def __init__(self, base: ObjectSlice, blocks: Sequence[Block], open_slice: OpenSlice) -> None:
        super().__init__(base.entry.size_bytes)
        self._base = base
        self._blocks = blocks
        self._open_slice = open_slice
        self._held = b""
        self._held_at = 0

    def readinto(self, buffer: "memoryview", /) -> int:  # type: ignore[override]
        if self._at >= self._size:
            return 0
        if not self._held_at <= self._at < self._held_at + len(self._held):
            self._hold()
        start = self._at - self._held_at
        found = memoryview(self._held)[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _hold(self) -> None:
        for block in self._blocks:
            if block.start <= self._at < block.stop:
                self._held, self._held_at = b"", 0
                with fetched(self._base, block, self._open_slice) as data:
                    self._held = data
                self._held_at = block.start
                return
        raise BadBytes(f"its footer sends to byte {self._at}, which is in no row group read here")
