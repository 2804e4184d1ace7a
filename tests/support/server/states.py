"""A client that remembers what a table was at each position: relays are compared by it.

Entered again, it resumes where it was, by ``port`` as it is then; or by one of the ``others``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Self

from laredo_fanout.client import (
    Backoff,
    Changes,
    Endpoint,
    Event,
    Handshake,
    Heartbeat,
    Observer,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
    Subscription,
    SyncOptions,
)
from laredo_model.line import Action
from laredo_model.position import Position
from tests.support.processes import PATIENCE_S

Rows = dict[bytes, bytes]


@dataclass
class States(Observer):
    """The rows of a table at each position at which a client has seen it."""

    port: int
    table: str
    name: str = "states"
    #: Whether it is a client that keeps what it makes of the stream, as the writer is.
    boundaries: bool = False
    others: tuple[int, ...] = ()
    transport: Literal["grpc", "connect"] = "grpc"
    token: str | None = None
    #: A snapshot's rows are there at its end: only then can the client resume.
    rows: Rows = field(default_factory=dict)
    seen: dict[int, Rows] = field(default_factory=dict)
    handshakes: list[Handshake] = field(default_factory=list)
    snapshots: list[SnapshotBegin] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)
    position: int = 0
    verified: int = 0
    served_by: int = 0
    goaways: int = 0
    _copied: Rows = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and self._task.exception() is not None:
            raise AssertionError("the client ended") from self._task.exception()

    @property
    def positions(self) -> list[int]:
        """Of each transaction that was sent as changes."""
        return [position for changes in self.changes for position in changes.positions]

    async def until(self, position: int, *, verified: bool = False) -> Rows:
        """Wait until the table is known at this position or beyond; its rows."""
        await self._until(lambda: (self.verified if verified else self.position) >= position)
        return self.rows

    async def until_keys(self, keys: Iterable[bytes]) -> None:
        """Wait until these are the keys that the table has."""
        wanted = set(keys)
        await self._until(lambda: self.rows.keys() == wanted)

    async def _until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                assert self._task is not None and not self._task.done(), self._task
                await asyncio.sleep(0.01)  # poll

    def going_away(self, event: object) -> None:
        self.goaways += 1

    async def follow(self) -> None:
        endpoint = Endpoint(
            f"127.0.0.1:{self.port}",
            token=self.token,
            transport=self.transport,
            others=tuple(f"127.0.0.1:{each}" for each in self.others),
        )
        options = SyncOptions(
            self.table,
            self.name,
            position=Position(self.position) if self.position else None,
            history=self.handshakes[-1].history if self.handshakes else None,
            boundaries=self.boundaries,
        )
        quick = Backoff(initial=0.02, maximum=0.2)
        async with Subscription(endpoint, options, backoff=quick, observer=self) as events:
            async for event in events:
                self.served_by = int(events.server.rpartition(":")[2])
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Handshake):
            self.handshakes.append(event)
            # A transaction that a lost stream sent in part is sent again from its beginning.
            self.rows = dict(self.seen.get(self.position, self.rows))
            self.verified = event.boundary or 0
        elif isinstance(event, SnapshotBegin):
            self._copied = {}
            self.snapshots.append(event)
        elif isinstance(event, SnapshotRows):
            self._copied.update(zip(event.keys, event.lines, strict=True))
        elif isinstance(event, SnapshotEnd):
            self.rows = self._copied
            assert event.rows == len(self.rows), "rows of a snapshot"
            self._reached(event.position or 0)
            self.verified = event.boundary or 0
        elif isinstance(event, Heartbeat):
            if event.position != self.position:
                self._reached(event.position or 0)
            self.verified = max(self.verified, event.boundary or 0)
        elif isinstance(event, Changes):
            self.changes.append(event)
            self._apply(event)

    def _apply(self, changes: Changes) -> None:
        for part in changes.transactions():
            is_new = part.position > self.position
            assert is_new or not part.last or part.start == part.stop, "a transaction comes twice"
            for index in range(part.start, part.stop):
                action, key = changes.actions[index], changes.keys[index]
                if action == Action.TRUNCATE:
                    self.rows.clear()
                elif action == Action.DELETE:
                    del self.rows[key]
                else:
                    assert (key in self.rows) == (action == Action.UPDATE)
                    self.rows[key] = changes.lines[index]
            if part.last:
                self._reached(part.position)

    def _reached(self, position: int) -> None:
        assert position >= self.position, "a position went back"
        self.position = position
        self.seen[position] = dict(self.rows)


def equal_where_both_were(one: States, other: States) -> int:
    """At how many positions both were; their rows are equal there."""
    common = one.seen.keys() & other.seen.keys()
    for position in common:
        assert one.seen[position] == other.seen[position], f"at {position:#x}"
    return len(common)
