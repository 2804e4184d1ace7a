"""Schedule of cuts: each table at every multiple of its interval, all at the longest one's.

The multiples are of one origin, so that tables whose intervals meet are cut together there. At the
longest interval's all of them are, also those whose own interval doesn't divide it: so the tables
of one process have positions in common as often as the slowest of them is cut.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping

from laredo_snapshotter.diff.cuts import CutTable, cut_together

EARLY_S = 0.001
"""Multiples of two intervals that are so near are one: 3 x 0.1 s isn't 0.3 s in floats."""


class CutSchedule:
    """Cuts tables by their intervals; tables come and go. Belongs to one event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        all_cut: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        """``clock``: monotonic, in seconds. ``all_cut`` is called after a cut of all tables with
        its positions, by history."""
        self._clock = clock
        self._all_cut = all_cut
        self._origin = clock()
        self._intervals: dict[CutTable, float] = {}
        self._due: dict[float, float] = {}
        self._changed = asyncio.Event()

    def add(self, table: CutTable, interval: float) -> None:
        """Cut it every ``interval`` seconds from now on."""
        self._intervals[table] = interval
        if interval not in self._due:
            self._due[interval] = self._after(interval, self._clock())
        self._changed.set()

    def remove(self, table: CutTable) -> None:
        """Cut it no more."""
        interval = self._intervals.pop(table)
        if interval not in self._intervals.values():
            del self._due[interval]
        self._changed.set()

    async def run(self) -> None:
        """Cut what is due, without drift, until cancelled."""
        while True:
            self._changed.clear()
            delay = self.cut_due()
            try:
                await asyncio.wait_for(self._changed.wait(), delay)
            except TimeoutError:
                continue

    def cut_due(self) -> float | None:
        """Cut what is due now; the seconds until more is, None while there are no tables."""
        now = self._clock()
        due = {interval for interval, at in self._due.items() if at <= now + EARLY_S}
        for interval in due:
            self._due[interval] = self._after(interval, now)
        if due:
            self._cut(due)
        return max(0.0, min(self._due.values()) - self._clock()) if self._due else None

    def _cut(self, due: Collection[float]) -> None:
        if max(self._due) in due:
            tables = list(self._intervals)
            self._all_cut(cut_together(tables, common=len(tables) > 1))
        else:
            cut_together([table for table, each in self._intervals.items() if each in due])

    def _after(self, interval: float, now: float) -> float:
        """The first multiple after ``now``. Those that a stall has missed are left out."""
        passed = math.floor((now + EARLY_S - self._origin) / interval)
        return self._origin + (passed + 1) * interval
