"""What bytes come to while they pass: their sha256 and their number."""

from hashlib import sha256

Data = bytes | bytearray | memoryview


class Digest:
    """The sha256 and the size of all that :meth:`update` was given."""

    __slots__ = ("_hash", "size")

    def __init__(self) -> None:
        self._hash = sha256()
        self.size = 0
        """Bytes so far."""

    def update(self, data: Data) -> None:
        """Take the next bytes."""
        self._hash.update(data)
        self.size += len(data)

    def hex(self) -> str:
        """The sha256 so far, as manifests say it."""
        return self._hash.hexdigest()

    def digest(self) -> bytes:
        """The sha256 so far, as 32 bytes."""
        return self._hash.digest()
