"""When a client is next told where it is, although nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Heartbeats:
    """One session's. `ring` wakes it when one has become due."""

    def __init__(self, interval_s: float, ring: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._position_moved = False
        self._told = 0
        self.due = False
        """Whether the interval is over."""

    def start(self) -> None:
        """Have one every interval."""
        self._timer = self._loop.call_later(self._interval_s, self._elapsed)

    def stop(self) -> None:
        """The session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def position_moved(self) -> None:
        """The client wants to know, though nothing else is sent."""
        self._position_moved = True
        self._ring()

    def told(self, position: int) -> None:
        """The client knows that it is here."""
        self._told = position

    def wanted(self, position: int) -> bool:
        """Whether it is time for one that says this position."""
        return self.due or (self._position_moved and position > self._told)

    def sent(self, position: int) -> None:
        """One was made that says this position."""
        self.due = self._position_moved = False
        self._told = position

    def _elapsed(self) -> None:
        self.due = True
        self.start()
        self._ring()
