"""The wake-up of one session: an event that is set when the session may have something to send."""

from __future__ import annotations

import asyncio


class WakeUp:
    """An event with one waiter and any number of notifiers, all in one event loop.

    The waiter clears it *before* it checks what there is to do: a notification that comes during
    the check makes the next wait return at once. Ten times cheaper than asyncio.Event with a
    time-out, which counts with hundreds of sessions and tens of commits a second.
    """

    __slots__ = ("_future", "_notified")

    def __init__(self) -> None:
        self._notified = False
        self._future: asyncio.Future[None] | None = None

    @property
    def notified(self) -> bool:
        """True if the next wait returns at once."""
        return self._notified

    def notify(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._notified = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        """Forget the notifications so far: the caller now checks what there is to do."""
        self._notified = False

    async def wait(self) -> None:
        """Return once notified after the last clear."""
        if self._notified:
            return
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None
