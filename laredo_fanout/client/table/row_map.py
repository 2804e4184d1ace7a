"""RowMap: a table's rows by key, in parts that are small enough to work on one at a time.

A dict of a million rows takes tens of milliseconds to grow or to be freed, and nobody else runs on
the event loop meanwhile; one of 256 parts takes a tenth of one.
"""

PARTS = 256
_SHIFT = 24  # a dict uses the lowest bits of the hash itself


class RowMap:
    """Lines by key, in the part that the key's hash names."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[dict[bytes, bytes]] = [{} for _ in range(PARTS)]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def get(self, key: bytes) -> bytes | None:
        """The line of the row; None if there is none."""
        return self.parts[hash(key) >> _SHIFT & 255].get(key)

    def put(self, key: bytes, line: bytes) -> None:
        """Add or replace a row."""
        self.parts[hash(key) >> _SHIFT & 255][key] = line

    def remove(self, key: bytes) -> None:
        """Remove a row, if it is there."""
        self.parts[hash(key) >> _SHIFT & 255].pop(key, None)
