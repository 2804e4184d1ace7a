"""Listeners, which an application has called with each change, in order, with rows as dicts."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple, Self

from laredo_fanout.client.table.replica import Difference
from laredo_fanout.client.table.rows import Row, parse
from laredo_model.position import Position
from laredo_service.log import Log

log = Log(__name__)

Listener = Callable[[Row | None, Row | None], Any]

_WAITING_AT_MOST = 10_000


class RowChange(NamedTuple):
    """A change of one row, as dicts."""

    #: None for a new row.
    old: Row | None
    #: None for a deleted row.
    new: Row | None
    position: Position | None
    #: None where a new snapshot brought the difference.
    sequence: int | None


def to_rows(difference: Difference) -> RowChange:
    """The change of a row with its lines parsed."""
    old, new = difference.old, difference.new
    return RowChange(
        None if old is None else parse(old),
        None if new is None else parse(new),
        difference.position,
        difference.sequence,
    )


class Listeners:
    """The listeners of one client. A listener's exception ends neither the stream nor the others:
    it is counted, and each kind is logged once with its traceback."""

    def __init__(self, table: str) -> None:
        self.errors = 0
        """Calls that raised."""
        self.turn = threading.Lock()
        """Held by the one thread that calls them."""
        self._table = table
        self._guard = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._logged: set[tuple[int, type[BaseException]]] = set()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._listeners)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; returns the function that removes it."""
        with self._guard:
            self._listeners = (*self._listeners, listener)

        def stop_listening() -> None:
            with self._guard:
                self._listeners = tuple(one for one in self._listeners if one is not listener)
                self._logged = {known for known in self._logged if known[0] != id(listener)}

        return stop_listening

    def failed(self, listener: Listener, key: bytes, error: BaseException) -> None:
        """Count and log the error that ``listener`` raised for the row ``key``."""
        self.errors += 1
        known = (id(listener), type(error))
        if known not in self._logged:
            self._logged.add(known)
            log.error(
                "listener failed; listener_errors counts later failures",
                table=self._table,
                listener=getattr(listener, "__qualname__", repr(listener)),
                key=key,
                exc_info=error,
            )


class ListenerQueue:
    """A bounded buffer between the stream and one reader; the stream waits while it is full."""

    def __init__(self) -> None:
        self._changes: deque[RowChange] = deque()
        self._moved = asyncio.Event()
        self._error: BaseException | None = None
        self.closed = False

    async def put(self, change: RowChange) -> None:
        """Append a change, once there is room; without effect when the reader is gone."""
        while len(self._changes) >= _WAITING_AT_MOST and not self.closed:
            self._moved.clear()
            await self._moved.wait()
        if not self.closed:
            self._changes.append(change)
            self._moved.set()

    async def get(self) -> RowChange:
        """The next change, in order.

        :raises StopAsyncIteration: when the client was stopped.
        """
        while not self._changes:
            if self.closed:
                raise self._error or StopAsyncIteration
            self._moved.clear()
            await self._moved.wait()
        change = self._changes.popleft()
        self._moved.set()
        return change

    def close(self, error: BaseException | None = None) -> None:
        """End the changes: the reader gets those in the buffer, then ``error``."""
        self.closed = True
        self._error = error
        self._moved.set()


class ChangeStream(AsyncIterator[RowChange]):
    """``async for change in client.changes()``: each change after this was made.

    It ends when the client is stopped. The stream from the server waits for a slow reader, but not
    for one that is no longer referenced.
    """

    def __init__(self, buffer: ListenerQueue) -> None:
        self._buffer = buffer
        weakref.finalize(self, buffer.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowChange:
        return await self._buffer.get()

    async def aclose(self) -> None:
        """Stop listening."""
        self._buffer.close()
