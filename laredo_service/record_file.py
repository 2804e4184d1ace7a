"""Temporary files of records, which the process that writes them reads again.

A record is a tuple of bytes, int and None. Records are written in blocks, each after its size and
its CRC-32. Where the system allows it the file has no name, so it disappears with the process.
"""

import marshal
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import IO, Any
from zlib import crc32

BLOCK_BYTES = 64 << 10
"""A block ends with the record that makes it larger than this."""
_MOST_RECORDS = 2048
_HEAD = Struct("<QI")
_MARSHAL_VERSION = 2  # later ones compare values

Record = tuple[Any, ...]


class RecordFileDamaged(OSError):
    """A block isn't as it was written."""

    def __init__(self, directory: Path | str, at: int, why: str) -> None:
        super().__init__(
            f"a temporary file in {directory} isn't as it was written: its block at byte {at}"
            f" {why}. Check that disk, or choose a directory on another one"
        )


class RecordFile:
    """One file. It is written by one thread; any number of readers have positions of their own."""

    def __init__(self, directory: Path | None = None) -> None:
        """``directory`` defaults to the system's temporary one.

        :raises OSError: if no file can be made there.
        """
        self._directory = directory or tempfile.gettempdir()
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115  # closed by close()
            dir=directory, prefix="laredo-", buffering=0
        )
        self.size = 0
        """Bytes on disk; the offset of the next block."""

    @property
    def fileno(self) -> int:
        """The file's descriptor."""
        return self._file.fileno()

    def write(self, records: Iterable[Record]) -> tuple[int, int]:
        """Append records; return the offsets of their first block and of what follows.

        :raises OSError: if there is no room; then none of them is kept.
        """
        start = self.size
        try:
            for _, block in blocks(records):
                self.append(block)
        except BaseException:
            self.size = start
            raise
        return start, self.size

    def append(self, block: bytes) -> None:
        """Append a block of :func:`blocks`.

        :raises OSError: if there is no room.
        """
        at, view = self.size, memoryview(block)
        while view:
            written = os.pwrite(self.fileno, view, at)
            at, view = at + written, view[written:]
        self.size = at

    def read(self, start: int = 0, end: int | None = None) -> Iterator[Record]:
        """The records between two blocks' offsets; one block is held at a time.

        :raises RecordFileDamaged: if a block isn't as it was written.
        """
        at, stop = start, self.size if end is None else end
        while at < stop:
            head = self._bytes(at, at, _HEAD.size, stop)
            size, checksum = _HEAD.unpack(head)
            block = self._bytes(at, at + _HEAD.size, size, stop)
            if crc32(block) != checksum:
                raise RecordFileDamaged(self._directory, at, "has another checksum")
            at += _HEAD.size + size
            yield from marshal.loads(block)

    def _bytes(self, block: int, at: int, size: int, stop: int) -> bytes:
        if at + size > stop:
            raise RecordFileDamaged(self._directory, block, "has another size")
        data = os.pread(self.fileno, size, at)
        while len(data) < size:  # a system call gives 2 GB at most
            more = os.pread(self.fileno, size - len(data), at + len(data))
            if not more:
                raise RecordFileDamaged(self._directory, block, "is cut off")
            data += more
        return data

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()


def blocks(records: Iterable[Record]) -> Iterator[tuple[Record, bytes]]:
    """Records as blocks, each with its first record."""
    held: list[Record] = []
    size = 0  # a sum() for each record would take longer than the rest
    for record in records:
        held.append(record)
        for part in record:
            if part.__class__ is bytes:
                size += len(part)
        if size > BLOCK_BYTES or len(held) == _MOST_RECORDS:
            yield held[0], _block(held)
            held, size = [], 0
    if held:
        yield held[0], _block(held)


def _block(records: list[Record]) -> bytes:
    data = marshal.dumps(records, _MARSHAL_VERSION)
    return _HEAD.pack(len(data), crc32(data)) + data
