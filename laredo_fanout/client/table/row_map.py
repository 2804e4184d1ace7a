"""RowMap: a table's rows by key, in parts that are small enough to work on one at a time.

A dict of a million rows takes tens of milliseconds to grow or to be freed, and nobody else runs on
the event loop meanwhile; one of 256 parts takes a tenth of one.

A :class:`RowView` reads the rows of one moment while they change: it shares the parts, and a part
that it hasn't passed yet is copied before its first change.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from laredo_model.position import Position

K = TypeVar("K")
V = TypeVar("V")

PARTS = 256
_SHIFT = 24  # a dict uses the lowest bits of the hash itself


class RowMap:
    """Lines by key, in the part that the key's hash names."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[dict[bytes, bytes]] | None = None) -> None:
        self.parts = [{} for _ in range(PARTS)] if parts is None else list(parts)

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


class LinesBefore:
    """The lines that a transaction's rows had before it, by key; None: there was no such row."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[dict[bytes, bytes | None]] = [{} for _ in range(PARTS)]

    def note(self, rows: RowMap, keys: Iterable[bytes]) -> None:
        """Keep the lines of ``keys``, which are about to change."""
        for key in keys:
            lines = self.parts[hash(key) >> _SHIFT & 255]
            if key not in lines:
                lines[key] = rows.get(key)


class RowView:
    """The rows of one moment. Its thread may be another one than that which changes the rows."""

    __slots__ = ("__weakref__", "before", "parts", "position")

    def __init__(
        self,
        parts: Sequence[dict[bytes, bytes]],
        before: LinesBefore | None,
        position: Position | None,
    ) -> None:
        """``before``: what the rows of an open transaction were; it may grow."""
        self.parts = list(parts)
        self.before = before
        self.position = position

    def lines(self) -> Iterator[bytes]:
        """The rows' lines, in no order, once."""
        for place in range(PARTS):
            part: Mapping[bytes, bytes | None] = self.parts[place]
            if self.before is not None:
                # What is noted meanwhile is as it is in this part.
                part = {**part, **self.before.parts[place]}
            for line in part.values():
                if line is not None:
                    yield line
            self.parts[place] = {}


class SharedRowMap(RowMap):
    """A map of which some parts may be in views too."""

    __slots__ = ("_own", "_views")

    def __init__(self, parts: Sequence[dict[bytes, bytes]], views: Collection[RowView]) -> None:
        super().__init__(parts)
        self._views = views
        self._own: set[int] = set()

    def put(self, key: bytes, line: bytes) -> None:
        """Add or replace a row; no view sees it."""
        self._part(hash(key) >> _SHIFT & 255)[key] = line

    def remove(self, key: bytes) -> None:
        """Remove a row, if it is there; every view keeps it."""
        self._part(hash(key) >> _SHIFT & 255).pop(key, None)

    def _part(self, place: int) -> dict[bytes, bytes]:
        part = self.parts[place]
        if place not in self._own:
            self._own.add(place)
            if any(view.parts[place] is part for view in self._views):
                part = self.parts[place] = part.copy()
        return part


def unheld(parts: Iterable[dict[K, V]], views: Collection[RowView]) -> list[dict[K, V]]:
    """The parts that no view reads, so that they can be emptied."""
    held = {id(part) for view in views for part in view.parts}
    held |= {id(part) for view in views if view.before for part in view.before.parts}
    return [part for part in parts if id(part) not in held]
