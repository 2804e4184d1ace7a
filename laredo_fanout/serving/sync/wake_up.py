"""A session's bell: rung when there may be something to do."""

from __future__ import annotations

import asyncio


class Bell:
    """One waiter, any number of ringers, all in one event loop.

    The waiter clears the bell *before* it looks at what there is to do: a ring that comes while
    it looks makes the next wait return at once. Ten times cheaper than asyncio.Event with a
    time-out, which counts with hundreds of sessions and tens of commits a second.
    """

    __slots__ = ("_future", "_rung")

    def __init__(self) -> None:
        self._rung = False
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def clear(self) -> None:
        """What was rung so far will be looked at now."""
        self._rung = False

    async def wait(self) -> None:
        """Return once the bell was rung after the last clear."""
        if self._rung:
            return
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None
