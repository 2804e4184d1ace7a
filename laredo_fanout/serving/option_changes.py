"""Changes of a serving process's options, while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from laredo_fanout.serving.options import ServingOptions


class ServingOptionChanges:
    """A queue of options, each with whom to call once it holds.

    What is put before the process serves is taken over when it does.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[ServingOptions, Callable[[], None]]] = asyncio.Queue()

    def put(self, options: ServingOptions, done: Callable[[], None]) -> None:
        """Serve with these from now on; ``done`` is called once streams of other tables ended."""
        self._queue.put_nowait((options, done))

    async def follow(self, change: Callable[[ServingOptions], Awaitable[None]]) -> None:
        """Have each taken over by ``change``, one after the other; never returns."""
        while True:
            options, done = await self._queue.get()
            await change(options)
            done()
