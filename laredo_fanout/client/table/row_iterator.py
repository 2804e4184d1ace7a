"""Iterators over all rows of a client's table, as they were at one position."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Self

from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.table.row_map import RowView
from laredo_fanout.client.table.rows import Row, parse
from laredo_model.position import Position


class RowIterator(Iterator[Row]):
    """``for row in client.rows()``: each row of one moment, in no order."""

    def __init__(self, view: RowView) -> None:
        #: The position of that moment; None before the first snapshot.
        self.position: Position | None = view.position
        self._lines = view.lines()

    def __next__(self) -> Row:
        return parse(next(self._lines))


class AsyncRowIterator(AsyncIterator[Row]):
    """``async for row in client.rows()``: each row of one moment, in no order.

    The moment is when the iteration begins. Other tasks of the loop run between rows.
    """

    def __init__(self, view: Callable[[], Awaitable[RowView]]) -> None:
        self._view = view
        self._lines: Iterator[bytes] | None = None
        #: The position of that moment; None before it, and before the first snapshot.
        self.position: Position | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        if self._lines is None:
            view = await self._view()
            self.position, self._lines = view.position, view.lines()
        await LoopShare.of_running_loop().pause_if_used()
        for line in self._lines:
            return parse(line)
        raise StopAsyncIteration
