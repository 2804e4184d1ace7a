"""Clients of a server, which remember what their tables were at every position they came by."""

import asyncio
import threading
from dataclasses import dataclass, field

from laredo_fanout.client import (
    Backoff,
    Changes,
    Endpoint,
    Event,
    Handshake,
    Heartbeat,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
    Subscription,
    SyncOptions,
    TableNotFound,
)
from laredo_model.line import Action
from tests.support.processes import PATIENCE_S

_Change = tuple[int, bytes, bytes]


@dataclass
class LiveCopy:
    """One table by key. What a stream didn't finish is no part of it."""

    table: str
    rows: dict[bytes, bytes] = field(default_factory=dict)
    position: int = 0
    states: dict[int, list[bytes]] = field(default_factory=dict)
    snapshots: int = 0
    _loading: dict[bytes, bytes] | None = None
    _pending: list[_Change] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Apply an event of the stream."""
        match event:
            case Handshake():
                self._loading = None
                self._pending.clear()
            case SnapshotBegin():
                self._loading = {}
                self._pending.clear()
            case SnapshotRows():
                assert self._loading is not None
                self._loading.update(zip(event.keys, event.lines, strict=True))
            case SnapshotEnd():
                assert self._loading is not None and event.position is not None
                assert event.rows == len(self._loading), f"{self.table}: rows of a snapshot"
                self.rows, self._loading = self._loading, None
                self.snapshots += 1
                self._reached(event.position)
            case Changes():
                self._take_changes(event)
            case Heartbeat() if event.position and self._loading is None and not self._pending:
                self._reached(max(event.position, self.position))
            case _:
                pass

    def _take_changes(self, changes: Changes) -> None:
        columns = list(zip(changes.actions, changes.keys, changes.lines, strict=True))
        for part in changes.transactions():
            self._pending += columns[part.start : part.stop]
            if part.last:
                assert part.position > self.position, f"{self.table}: a transaction comes twice"
                for change in self._pending:
                    self._apply(*change)
                self._pending.clear()
                self._reached(part.position)

    def _apply(self, action: int, key: bytes, line: bytes) -> None:
        if action == Action.TRUNCATE:
            self.rows.clear()
        elif action == Action.DELETE:
            del self.rows[key]
        else:
            assert (key in self.rows) == (action == Action.UPDATE), (self.table, action, key)
            self.rows[key] = line

    def _reached(self, position: int) -> None:
        self.position = position
        self.states[position] = list(self.rows.values())


class LiveCopies(threading.Thread):
    """A client for each table, until :meth:`finish`."""

    def __init__(self, port: int, tables: list[str]) -> None:
        super().__init__(name="live-copies", daemon=True)
        self.copies = {table: LiveCopy(table) for table in tables}
        self.failure: BaseException | None = None
        self.absent: set[str] = set()
        """Tables that the server may not know for a while."""
        self._endpoint = Endpoint(f"127.0.0.1:{port}")
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
            for copy in self.copies.values():
                group.create_task(self._follow(copy))

    async def _follow(self, copy: LiveCopy) -> None:
        while True:
            try:
                await self._follow_while_known(copy)
            except TableNotFound:
                if copy.table not in self.absent:
                    raise
                await asyncio.sleep(0.2)

    async def _follow_while_known(self, copy: LiveCopy) -> None:
        options = SyncOptions(f"public.{copy.table}", f"live-{copy.table}")
        quick = Backoff(initial=0.05, maximum=0.5)
        async with Subscription(self._endpoint, options, backoff=quick) as events:
            async for event in events:
                copy.take(event)
