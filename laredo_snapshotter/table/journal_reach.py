"""The journal's reach: how long it still goes back to where a closed stream stopped."""

import time
from typing import NamedTuple

from laredo_fanout.client.table_status import TableStatus


class Reach(NamedTuple):
    """``reaches``: the stream can still be resumed there; None: not known.

    ``seconds_left``: at the pace at which the journal was pruned between the last two checks;
    None while it isn't pruned.
    """

    sequence: int | None
    oldest_sequence: int
    current_sequence: int
    reaches: bool | None
    seconds_left: float | None


class JournalReach:
    """Looks at a journal from time to time."""

    def __init__(self, sequence: int | None) -> None:
        """``sequence``: of the last entry that was taken."""
        self.latest: Reach | None = None
        self._sequence = sequence
        self._before: tuple[float, int] | None = None

    def look(self, told: TableStatus, now: float | None = None) -> Reach:
        """Note what the server says; ``now`` is monotonic."""
        now = time.monotonic() if now is None else now
        oldest = told.oldest_sequence
        seconds_left: float | None = None
        reaches = None if self._sequence is None else oldest <= self._sequence + 1
        if self._before is not None and self._sequence is not None:
            then, before = self._before
            rate = (oldest - before) / max(now - then, 1e-3)
            if rate > 0:
                seconds_left = round(max(0.0, (self._sequence + 1 - oldest) / rate), 1)
        self._before = (now, oldest)
        self.latest = Reach(self._sequence, oldest, told.current_sequence, reaches, seconds_left)
        return self.latest
