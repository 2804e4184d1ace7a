"""Changes of the tables that a serving process serves, while it serves them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from laredo_fanout.serving.options import ServingTableOptions

_Tables = Mapping[str, ServingTableOptions]


class TableOptionChanges:
    """A queue of table sets, each with whom to call once it is served.

    What is put before the process serves is taken over when it does.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[_Tables, Callable[[], None]]] = asyncio.Queue()

    def put(self, tables: _Tables, done: Callable[[], None]) -> None:
        """Serve these tables from now on; ``done`` is called once streams of others have ended."""
        self._queue.put_nowait((tables, done))

    async def follow(self, change: Callable[[_Tables], Awaitable[None]]) -> None:
        """Have each taken over by ``change``, one after the other; never returns."""
        while True:
            tables, done = await self._queue.get()
            await change(tables)
            done()
