"""The time of an event loop that the clients on it take before other tasks have a turn.

A snapshot of a million rows is seconds of work. Clients do it in slices of a millisecond, one slice
for each turn of the loop, however many clients there are.
"""

import asyncio
from collections import deque
from time import perf_counter
from weakref import WeakKeyDictionary

_SLICE_S = 0.001
_LITTLE = 0.25

_shares: "WeakKeyDictionary[asyncio.AbstractEventLoop, LoopShare]" = WeakKeyDictionary()


class LoopShare:
    """The share of one loop; a client that works awaits :meth:`pause_if_used` often."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_going_on = False

    @classmethod
    def of_running_loop(cls) -> "LoopShare":
        """The share of the loop that runs now: the same one for all its clients."""
        loop = asyncio.get_running_loop()
        share = _shares.get(loop)
        if share is None:
            share = _shares[loop] = cls()
        return share

    def note_work(self) -> None:
        """Begin the slice, unless a client has begun it in this turn of the loop."""
        if self._since is None:
            self._begin()

    async def pause_if_used(self) -> None:
        """Let other tasks run if the slice is over; one client a turn goes on, in order."""
        if self._used() > _SLICE_S:
            await self.pause()

    async def pause_before(self, share: float) -> None:
        """Let other tasks run if the next work, about ``share`` of a slice, doesn't fit into this
        slice; not if little of the slice is used."""
        used = self._used()
        if used > _SLICE_S * _LITTLE and used > _SLICE_S * (1 - share):
            await self.pause()

    async def pause(self) -> None:
        """Let other tasks run."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_going_on:
            self._is_going_on = True
            loop.call_soon(self._go_on, loop)
        await turn
        self._begin()

    def _used(self) -> float:
        """The seconds that are used of the slice; it begins now if it hasn't begun."""
        self.note_work()
        return perf_counter() - (self._since or 0)

    def _begin(self) -> None:
        since = self._since = perf_counter()
        asyncio.get_running_loop().call_soon(self._end, since)

    def _end(self, since: float) -> None:
        # Unless another client has begun in this turn already.
        if self._since == since:
            self._since = None

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self._is_going_on = bool(self._waiting)
        if self._is_going_on:
            loop.call_soon(self._go_on, loop)
