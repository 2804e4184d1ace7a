"""The sha256 and the size of bytes, computed while they are read or written."""

from hashlib import sha256

Data = bytes | bytearray | memoryview


class Digest:
    """The sha256 and the size of the bytes given to :meth:`update`."""

    __slots__ = ("_hash", "size")

    def __init__(self) -> None:
        self._hash = sha256()
        self.size = 0
        """Bytes so far."""

    def update(self, data: Data) -> None:
        """Add the next bytes."""
        self._hash.update(data)
        self.size += len(data)

    def hex(self) -> str:
        """The sha256 so far, in hex, as manifests have it."""
        return self._hash.hexdigest()

    def digest(self) -> bytes:
        """The sha256 so far, as 32 bytes."""
        return self._hash.digest()
