"""An object as a seekable file, for formats that are read from several places."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import BinaryIO, cast

from laredo_archive.codec import Source
from laredo_archive.codec.errors import BadBytes

OpenAt = Callable[[int], AbstractContextManager[Source]]
"""The object's bytes from an offset on."""

_BUFFER_BYTES = 256 << 10


def ranged(open_at: OpenAt, size_bytes: int) -> BinaryIO:
    """The object; it is opened anew wherever reading goes on somewhere else.

    Reading raises BadBytes where the object ends before ``size_bytes``.
    """
    return cast(BinaryIO, io.BufferedReader(_Ranged(open_at, size_bytes), _BUFFER_BYTES))


class _Ranged(io.RawIOBase):
    def __init__(self, open_at: OpenAt, size_bytes: int) -> None:
        super().__init__()
        self._open_at = open_at
        self._size = size_bytes
        self._at = 0
        self._source: Source | None = None
        self._source_at = 0
        self._opened = ExitStack()

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

    def readinto(self, buffer: "memoryview", /) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        if self._source is None or self._source_at != self._at:
            self._opened.close()
            self._source = self._opened.enter_context(self._open_at(self._at))
        data = self._source.read(wanted)
        if not data:
            raise BadBytes(f"it ends at byte {self._at}, before its {self._size} bytes")
        buffer[: len(data)] = data
        self._at = self._source_at = self._at + len(data)
        return len(data)

    def close(self) -> None:
        self._opened.close()
        super().close()
