"""Where each table stands now, read once per wake-up for all of its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from laredo_fanout.serving.journal.backlog import Backlog
from laredo_fanout.serving.ports import Wakeups
from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.view import TableView
from laredo_model.history import History

POSITION_PAUSE_S = 1.0
LOOK_AGAIN_S = 1.0


class Follower(Protocol):
    """A session, as its table's tail sees it."""

    def ring(self) -> None:
        """There may be something to send."""
        ...

    def position_moved(self) -> None:
        """The store's position moved, with or without changes of this table."""
        ...

    def boundary_moved(self) -> None:
        """The source's catalog was looked at."""
        ...

    def look(self, before: TableView, now: TableView) -> None:
        """The table moved; the session may be blocked in a write and must judge its backlog."""
        ...


class Tail:
    """One table's newest state, and the sessions that follow it.

    Sessions are rung when the table itself changed; those that care are told that the position
    moved, at most once in POSITION_PAUSE_S. `view` and `history` are None as long as the store
    has no such table, or no source. `ask_look` has the source's catalog looked at soon.
    """

    def __init__(self, name: str, reader: StoreReader, ask_look: Callable[[], None]) -> None:
        self.name = name
        self.view: TableView | None = None
        self.history: History | None = None
        self._reader = reader
        self._followers: set[Follower] = set()
        self._told_at = float("-inf")
        self._pending: asyncio.TimerHandle | None = None
        self._backlog: Backlog | None = None
        self._judging: asyncio.TimerHandle | None = None
        self._ask_look = ask_look
        self._wanted = 0
        self._asked: asyncio.TimerHandle | None = None

    def refresh(self, history: History | None) -> None:
        """Read the table's figures and wake those whom they concern."""
        before, history_before = self.view, self.history
        try:
            now = self._reader.table(self.name)
        except TableUnknown:
            now = None
        self.view, self.history = now, history
        if before is None or now is None or history != history_before:
            self._wanted = 0
            self.ring_all()
            return
        if _moved(before, now):
            for follower in self._followers:
                follower.ring()
            self._judge(before, now)
        if now.position != before.position:
            self._position_moved()
        if now.boundary != before.boundary:
            self._boundary_moved()

    def _judge(self, before: TableView, now: TableView) -> None:
        """Have the sessions judge their backlogs, and again in the loop's next turn if counting
        them takes longer."""
        if self._judging is not None:
            self._judging.cancel()
            self._judging = None
        backlog = self._backlog
        if backlog is not None:
            backlog.begin_turn()
        for follower in list(self._followers):
            follower.look(before, now)
        if backlog is not None and backlog.unfinished:
            loop = asyncio.get_running_loop()
            self._judging = loop.call_later(0, self._judge, before, now)

    def backlog(self, table_id: int) -> Backlog:
        """The counts that all sessions of this incarnation share."""
        if self._backlog is None or self._backlog.table_id != table_id:
            self._backlog = Backlog(self._reader, table_id)
        return self._backlog

    def follow(self, follower: Follower) -> None:
        """Ring this one from now on."""
        self._followers.add(follower)

    def leave(self, follower: Follower) -> None:
        """Ring it no more."""
        self._followers.discard(follower)

    def ring_all(self) -> None:
        """Everybody has something to do."""
        for follower in self._followers:
            follower.ring()

    def want_boundary(self, position: int) -> None:
        """Somebody waits until the boundary has passed this position."""
        self._wanted = max(self._wanted, position)
        if self._asked is None:
            self._ask_if_wanted()

    def close(self) -> None:
        """No timer stays behind."""
        for timer in (self._pending, self._asked, self._judging):
            if timer is not None:
                timer.cancel()

    def _boundary_moved(self) -> None:
        for follower in self._followers:
            follower.boundary_moved()
        if self._asked is not None:
            self._asked.cancel()
        self._ask_if_wanted()

    def _ask_if_wanted(self) -> None:
        """Ask for a look, and again until one has passed what is wanted: it may come to nothing."""
        self._asked = None
        view = self.view
        if view is None or not self._followers:
            return
        if view.live and view.boundary < self._wanted:
            self._ask_look()
            loop = asyncio.get_running_loop()
            self._asked = loop.call_later(LOOK_AGAIN_S, self._ask_if_wanted)

    def _position_moved(self) -> None:
        if self._pending is not None or not self._followers:
            return
        loop = asyncio.get_running_loop()
        wait = self._told_at + POSITION_PAUSE_S - loop.time()
        if wait <= 0:
            self._tell_position()
        else:
            self._pending = loop.call_later(wait, self._tell_position)

    def _tell_position(self) -> None:
        self._pending = None
        self._told_at = asyncio.get_running_loop().time()
        for follower in self._followers:
            follower.position_moved()


def _moved(before: TableView, now: TableView) -> bool:
    if before.record.doubts != now.record.doubts:
        return True
    return (before.sequence, before.id, before.status) != (now.sequence, now.id, now.status)


class Tails:
    """The tails of all tables that are served, kept up to date by one task."""

    def __init__(
        self,
        names: Iterable[str],
        reader: StoreReader,
        wakeups: Wakeups,
        ask_look: Callable[[], None],
    ) -> None:
        self._tails = {name: Tail(name, reader, ask_look) for name in names}
        self._reader = reader
        self._wakeups = wakeups

    def __iter__(self) -> Iterator[Tail]:
        return iter(self._tails.values())

    def get(self, name: str) -> Tail | None:
        """The table's tail, if the table is served."""
        return self._tails.get(name)

    def refresh(self) -> None:
        """Read every table once."""
        source = self._reader.source()
        history = source.history if source is not None else None
        for tail in self._tails.values():
            tail.refresh(history)

    async def run(self) -> None:
        """Follow the wake-ups until cancelled."""
        try:
            while True:
                # The future first: a commit while the tables are read then shows at once.
                woken = self._wakeups.current()
                self.refresh()
                await asyncio.wait([woken])
        finally:
            for tail in self:
                tail.close()
