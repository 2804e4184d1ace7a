"""AsyncFanoutClient: the client for asyncio programs."""

import asyncio
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from laredo_fanout.client.errors import ClientStopped
from laredo_fanout.client.events import Filter
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.table.follower import Follower
from laredo_fanout.client.table.index import TableIndex
from laredo_fanout.client.table.listening import (
    ChangeStream,
    Listener,
    ListenerQueue,
    RowChange,
    to_rows,
)
from laredo_fanout.client.table.replica import Difference
from laredo_fanout.client.table.rows import AsyncRowIterator, Row
from laredo_fanout.client.table_client import TableClient

_AT_ONCE = 1000
"""Changes of a transaction that are applied between two turns of the loop."""


class AsyncFanoutClient(TableClient):
    """The asyncio twin of :class:`FanoutClient`: the same parameters and names, awaitable.

    It runs on the event loop on which it is started, and works in slices of a millisecond, so
    that the loop's other tasks run, too. So readers see a transaction of more than 1,000 changes
    (100 with an index) in parts; :attr:`position` moves at its end. An asynchronous context
    manager.
    """

    _buffers: tuple[ListenerQueue, ...] = ()
    _ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow the table, in the background; without effect when it runs.

        Those of :meth:`follow` start, too.

        :raises BadEndpoint: if the TLS files can't be used.
        """
        self._servers.check()
        self._started = True
        for client in self._with_siblings():
            client._start()

    def _start(self) -> None:
        if self._follower is not None and self._follower.error is None:
            return
        self._follower = self._make_follower(
            wanted=lambda: bool(self._listeners or self._buffers),
            deliver=self._deliver,
            at_once=_AT_ONCE,
            ended=self._close_buffers,
        )
        self._follower.start()

    async def await_ready(self, timeout: float | None = None) -> None:
        """As :meth:`FanoutClient.await_ready`."""
        await self._running().await_ready(timeout)

    async def lookup(self, *values: object) -> Row | None:
        """As :meth:`FanoutClient.lookup`."""
        return self._find(values)

    async def lookup_index(self, name: str, *values: object) -> list[Row]:
        """As :meth:`FanoutClient.lookup_index`."""
        return self._find_all(name, values)

    def rows(self, timeout: float | None = 30.0) -> AsyncRowIterator:
        """``async for row in client.rows()``: as :meth:`FanoutClient.rows`.

        The moment is when the iteration begins. Other tasks run between rows.
        """
        return AsyncRowIterator(lambda: self._view(timeout))

    async def listen(self, listener: Listener) -> Callable[[], None]:
        """As :meth:`FanoutClient.listen`; a listener may be a coroutine function.

        It is called on the event loop, so it must not block. SystemExit and KeyboardInterrupt
        end the loop, as in any task.
        """
        return self._listeners.add(listener)

    def changes(self) -> ChangeStream:
        """``async for change in client.changes()``: each row that changes from now on.

        A change has ``old``, ``new``, ``position`` and ``sequence``. The iteration ends when
        the client is stopped, and raises the error that ended the client for good.
        """
        buffer = ListenerQueue()
        if self._follower is not None and self._follower.error is not None:
            buffer.close(_unless_stopped(self._follower.error))
        self._buffers = (*self._buffers, buffer)
        return ChangeStream(buffer)

    async def stop(self) -> None:
        """End the stream and save the local snapshot; the rows stay. start() resumes.

        Listeners aren't called any more, not even for a change that is in the rows already; one
        that awaits is cancelled, also one that awaits this: the client stops all the same. Those of
        :meth:`follow` stop, too.
        """
        self._started = False
        # A listener's task is cancelled by this, and what it awaits with it.
        self._ending = asyncio.create_task(self._stop_all())
        await asyncio.shield(self._ending)

    async def _stop_all(self) -> None:
        for client in self._with_siblings():
            await client._stop()

    async def follow(
        self,
        table: str,
        *,
        local_snapshot_path: str | os.PathLike[str] | None = None,
        lookup_fields: Sequence[str] | None = None,
        indexes: Mapping[str, Sequence[str] | TableIndex] | None = None,
        filters: Iterable[Filter] = (),
    ) -> Self:
        """As :meth:`FanoutClient.follow`."""
        client = self._another(table, local_snapshot_path, lookup_fields, indexes, filters)
        if self._owner._started:
            await client.start()
        return client

    async def _stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _running(self) -> Follower:
        if self._follower is None:
            raise ClientStopped("the client isn't started; await start() first")
        return self._follower

    def _close_buffers(self, error: BaseException) -> None:
        for buffer in self._buffers:
            buffer.close(_unless_stopped(error))
        self._buffers = ()

    async def _deliver(self, differences: Iterable[Difference]) -> None:
        self._buffers = tuple(buffer for buffer in self._buffers if not buffer.closed)
        share = LoopShare.of_running_loop()
        for difference in differences:
            await share.pause_if_used()
            change = to_rows(difference)
            for buffer in self._buffers:
                await buffer.put(change)
            for listener in self._listeners:
                await self._notify(listener, change, difference.key)

    async def _notify(self, listener: Listener, change: RowChange, key: bytes) -> None:
        try:
            result = listener(change.old, change.new)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The listener awaited something that was cancelled; the client's own task wasn't.
            self._listeners.failed(listener, key, cancelled)
        except Exception as error:  # noqa: BLE001  # a listener's own
            self._listeners.failed(listener, key, error)


def _unless_stopped(error: BaseException) -> BaseException | None:
    return None if isinstance(error, ClientStopped) else error
