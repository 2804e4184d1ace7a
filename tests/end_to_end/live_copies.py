"""Clients of a server, which remember what their tables were at every position they came by."""

import asyncio
import threading

from laredo_fanout.client import TableNotFound
from tests.support.processes import PATIENCE_S
from tests.support.server.states import States


class LiveCopies(threading.Thread):
    """A client for each table, until :meth:`finish`."""

    def __init__(self, port: int, tables: list[str]) -> None:
        super().__init__(name="live-copies", daemon=True)
        self.copies = {table: States(port, f"public.{table}", f"live-{table}") for table in tables}
        self.failure: BaseException | None = None
        self.absent: set[str] = set()
        """Tables that the server may not know for a while."""
        self._loop = asyncio.new_event_loop()
        self._all: asyncio.Task[None] | None = None

    def run(self) -> None:
        try:
            self._all = self._loop.create_task(self._follow_all())
            self._loop.run_until_complete(self._all)
        except asyncio.CancelledError:
            pass
        except BaseException as failure:  # noqa: BLE001 - raised by check, where the test is
            self.failure = failure
        finally:
            self._loop.close()

    def check(self) -> None:
        """Check that all clients still follow.

        :raises BaseException: what ended them.
        """
        if self.failure is not None:
            raise self.failure

    def finish(self) -> None:
        """End them."""
        if self.is_alive() and self._all is not None:
            self._loop.call_soon_threadsafe(self._all.cancel)
        self.join(PATIENCE_S)
        self.check()

    async def _follow_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for table, copy in self.copies.items():
                group.create_task(self._follow(table, copy))

    async def _follow(self, table: str, copy: States) -> None:
        while True:
            try:
                await copy.follow()
            except TableNotFound:
                if table not in self.absent:
                    raise
                await asyncio.sleep(0.2)
