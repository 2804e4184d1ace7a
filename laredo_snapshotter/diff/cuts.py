"""Cuts: tables end their diffs at the same position.

docs/commit-protocol.md: "Tables of one process are cut together." The position is the highest that
any of the streams has reached; every table seals there when its own stream has passed it. No table
waits for another: one that is stuck keeps the cuts it owes, and forgets those that are too old or
too many.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

MOST_PENDING = 256
"""Cuts that a table may owe; each becomes a diff."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A position at which a table's buffer is sealed."""

    position: int
    asked_at: float
    """Monotonic."""
    forced: bool = False
    """Committed even when nothing changed."""
    common: bool = False
    """Of all the tables: what cancelled out is committed too."""


class PendingCuts:
    """The cuts that a table owes, in order of position."""

    def __init__(self, time_limit: float) -> None:
        """``time_limit``: seconds after which a cut that isn't forced may be forgotten."""
        self._time_limit = time_limit
        self._cuts: deque[Cut] = deque()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._cuts)

    def add(self, position: int, now: float, *, forced: bool = False, common: bool = False) -> None:
        """Owe a cut; one at the same position is the same cut."""
        kept = [c for c in self._cuts if c.position != position]
        same = [c for c in self._cuts if c.position == position]
        forced = forced or any(c.forced for c in same)
        common = common or any(c.common for c in same)
        kept.append(Cut(position, now, forced, common))
        kept.sort(key=lambda cut: cut.position)
        self._cuts = deque(self._within_limits(kept, now))

    def take(self, reached: int) -> list[Cut]:
        """The cuts at or before ``reached``; they are owed no longer."""
        taken = []
        while self._cuts and self._cuts[0].position <= reached:
            taken.append(self._cuts.popleft())
        return taken

    def postpone(self, until: int, now: float) -> list[Cut]:
        """Owe the cuts before ``until`` there: their states can't be known. Returns the forced
        ones, which are for their own position or not at all, and owed no longer."""
        before = self.take(until - 1)
        if any(not cut.forced for cut in before):
            self.add(until, now)
        return [cut for cut in before if cut.forced]

    def next_position(self) -> int | None:
        """The first owed cut's position."""
        return self._cuts[0].position if self._cuts else None

    def owes(self, position: int) -> bool:
        """True if a cut at ``position`` is pending."""
        return any(cut.position == position for cut in self._cuts)

    def clear(self) -> None:
        """Owe nothing, because what was to be cut is gone."""
        self._cuts.clear()

    def _within_limits(self, cuts: list[Cut], now: float) -> Iterable[Cut]:
        newest = cuts[-1]
        young = [
            cut
            for cut in cuts
            if cut.forced or cut is newest or now - cut.asked_at < self._time_limit
        ]
        over = len(young) - MOST_PENDING
        for cut in young:
            if over > 0 and not cut.forced and cut is not newest:
                over -= 1
                continue
            yield cut
        self.forgotten += len(cuts) - min(len(young), MOST_PENDING)


class CutTable(Protocol):
    """A table as the coordinator sees it."""

    @property
    def stream(self) -> tuple[str, int] | None:
        """The history and the position that its stream has reached; None while it isn't live."""

    def cut(self, position: int, *, common: bool) -> None:
        """Seal at ``position`` as soon as the stream has passed it; ``common``: as all tables."""

    def tick(self) -> None:
        """An interval has passed; called after :meth:`cut`."""


def cut_together(tables: Sequence[CutTable], *, common: bool = False) -> dict[str, int]:
    """Ask every table for a cut at the highest position reached in its history; say which.

    ``common``: these are all tables of the process.
    """
    highest: dict[str, int] = {}
    for table in tables:
        if (stream := table.stream) is not None:
            history, position = stream
            highest[history] = max(position, highest.get(history, position))
    for table in tables:
        if (stream := table.stream) is not None:
            table.cut(highest[stream[0]], common=common)
        table.tick()
    return highest
