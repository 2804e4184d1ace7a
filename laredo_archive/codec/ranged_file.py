"""An object as a seekable file, for formats that are read at several positions."""

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from shutil import copyfileobj
from typing import BinaryIO, cast

from laredo_archive.codec.output import READ_BYTES, ByteSource
from laredo_archive.errors import BadBytes, TemporarySpaceLacking

OpenAt = Callable[[int], AbstractContextManager[ByteSource]]
"""The object's bytes from an offset on."""

_BUFFER_BYTES = 32 << 10
_SKIPPED_BYTES = 256 << 10
"""A smaller gap is read through: another request takes longer."""
_MEMORY_BYTES = 16 << 20
"""A smaller object is buffered in memory, not spooled to disk."""


def ranged(open_at: OpenAt, size_bytes: int) -> BinaryIO:
    """The object as a seekable file; a seek opens it again at the new position.

    Reading raises BadBytes where the object ends before ``size_bytes``.
    """
    return cast(BinaryIO, io.BufferedReader(_Ranged(open_at, size_bytes), _BUFFER_BYTES))


@contextmanager
def spooled(source: ByteSource) -> Iterator[BinaryIO]:
    """The object in a temporary file: all of ``source`` is read first.

    :raises TemporarySpaceLacking: if there is no room for it.
    """
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file:
        try:
            copyfileobj(source, file, READ_BYTES)
            file.seek(0)
        except OSError as failure:
            raise TemporarySpaceLacking(tempfile.gettempdir(), failure) from failure
        yield cast(BinaryIO, file)


class Seekable(io.RawIOBase):
    """A file of a known size that is read at any position; subclasses read the bytes."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        self._at = begins[whence] + offset
        return self._at


class _Ranged(Seekable):
    def __init__(self, open_at: OpenAt, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._open_at = open_at
        self._source: ByteSource | None = None
        self._source_at = 0
        self._opened = ExitStack()

    def readinto(self, buffer: "memoryview", /) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._opened_here().read(wanted)
        if not data:
            raise BadBytes(f"the file ends at byte {self._at}, before its {self._size} bytes")
        buffer[: len(data)] = data
        self._at = self._source_at = self._at + len(data)
        return len(data)

    def _opened_here(self) -> ByteSource:
        """Source of the bytes from here on."""
        source, gap = self._source, self._at - self._source_at
        while source is not None and 0 < gap <= _SKIPPED_BYTES:
            skipped = len(source.read(gap))
            if not skipped:
                break
            gap -= skipped
        if source is None or gap:
            self._opened.close()
            source = self._source = self._opened.enter_context(self._open_at(self._at))
        self._source_at = self._at
        return source

    def close(self) -> None:
        self._opened.close()
        super().close()
