"""The journal's reach: how long it still goes back to where a closed stream stopped."""

import time
from typing import NamedTuple

from laredo_fanout.client.table_client import TableStatus


class Reach(NamedTuple):
    """Extent of the server's journal, compared with the end of a closed stream."""

    sequence: int | None
    """Of the last journal entry that was taken."""
    oldest_sequence: int
    """Of the oldest entry that the journal still has."""
    current_sequence: int
    """Of its newest entry."""
    reaches: bool | None
    """True if the stream can still be resumed there; None: not known."""
    seconds_left: float | None
    """At the pace at which the journal was pruned between the last two checks; None: it isn't."""


class JournalReach:
    """Check if the server's journal still reaches back to the end of a closed stream."""

    def __init__(self, sequence: int | None) -> None:
        """``sequence``: of the last entry that was taken."""
        self.latest: Reach | None = None
        self._sequence = sequence
        self._before: tuple[float, int] | None = None

    def check(self, status: TableStatus, now: float | None = None) -> Reach:
        """Note the server's figures; ``now`` is monotonic."""
        now = time.monotonic() if now is None else now
        oldest = status.oldest_sequence
        seconds_left: float | None = None
        reaches = None if self._sequence is None else oldest <= self._sequence + 1
        if self._before is not None and self._sequence is not None:
            then, before = self._before
            rate = (oldest - before) / max(now - then, 1e-3)
            if rate > 0:
                seconds_left = round(max(0.0, (self._sequence + 1 - oldest) / rate), 1)
        self._before = (now, oldest)
        self.latest = Reach(self._sequence, oldest, status.current_sequence, reaches, seconds_left)
        return self.latest
