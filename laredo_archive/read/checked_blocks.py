"""Reads a part of an artifact, and checks its blocks by their CRC-32.

Of a whole file size and sha256 are compared; a part of it has the checksums that its entry's
``blocks`` have, if the writer recorded any.
"""

from laredo_archive.codec import ByteSource
from laredo_archive.codec.block_sums import crc32
from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest.key_ranges import ObjectSlice

CHECK_AND_CURE = (
    "Check it with laredo-archive verify; restore it from another destination, or read that one"
)


class CheckedBlocks:
    """Passes the bytes of a slice on, also those after it; at each block's end compares.

    It raises ArtifactDamaged.
    """

    def __init__(self, source: ByteSource, part: ObjectSlice, uri: str) -> None:
        self._source = source
        self._uri = uri
        self._blocks = part.blocks[::-1]
        self._at = part.start
        self._sum = 0

    @property
    def left(self) -> int:
        """Bytes up to the last block's end."""
        return self._blocks[0].stop - self._at if self._blocks else 0

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; empty at the file's end.

        Where blocks end among them, up to the last such end: so a piece is whole lines or
        messages, which needn't be put together with the next one's begin.
        """
        data = self._source.read(self._to_an_end(size))
        view = memoryview(data)
        while self._blocks and view:
            here = view[: self._blocks[-1].stop - self._at]
            self._sum = crc32(here, self._sum)
            self._at += len(here)
            view = view[len(here) :]
            if self._at == self._blocks[-1].stop:
                self._end_block()
        return data

    def _to_an_end(self, size: int) -> int:
        wanted = size
        for block in reversed(self._blocks):
            if block.stop > self._at + size:
                break
            wanted = block.stop - self._at
        return wanted

    def _end_block(self) -> None:
        block, found = self._blocks.pop(), self._sum
        self._sum = 0
        if found != block.sum:
            raise ArtifactDamaged(
                self._uri,
                f"the CRC-32 of its bytes {block.start} to {block.stop} is {found}, the manifest"
                f" has {block.sum}: they have changed since they were written. {CHECK_AND_CURE}",
            )
