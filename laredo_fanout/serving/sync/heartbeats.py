"""The heartbeats of a session: messages that send the client its position without changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Heartbeats:
    """The heartbeat timer of one session. `notify` wakes the session when a heartbeat is due."""

    def __init__(self, interval_s: float, notify: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._position_moved = False
        self._sent_position = 0
        self.due = False
        """True if the interval is over."""

    def start(self) -> None:
        """Start the timer."""
        self._timer = self._loop.call_later(self._interval_s, self._elapsed)

    def stop(self) -> None:
        """Cancel the timer: the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def position_moved(self) -> None:
        """Want a heartbeat with the new position, though nothing else is sent."""
        self._position_moved = True
        self._notify()

    def has_position(self, position: int) -> None:
        """Note that another message sent the client this position."""
        self._sent_position = position

    def adopt(self, other: Heartbeats) -> None:
        """Note that the client was sent the positions that `other` sent."""
        self._sent_position = max(self._sent_position, other._sent_position)
        self._position_moved = other._position_moved

    def wanted(self, position: int) -> bool:
        """True if a heartbeat with this position is to be sent now."""
        return self.due or (self._position_moved and position > self._sent_position)

    def sent(self, position: int) -> None:
        """Note that a heartbeat with this position was made."""
        self.due = self._position_moved = False
        self._sent_position = position

    def _elapsed(self) -> None:
        self.due = True
        self.start()
        self._notify()
