"""The tail of each table's journal: its newest state, read once per wake-up for all sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from laredo_fanout.serving.journal.backlog import Backlog
from laredo_fanout.serving.ports import Wakeups
from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.view import TableView
from laredo_model.position import History

POSITION_PAUSE_S = 1.0
CHECK_AGAIN_S = 1.0


class TailFollower(Protocol):
    """The part of a session that its table's tail calls."""

    def notify(self) -> None:
        """Wake the session: there may be something to send."""
        ...

    def position_moved(self) -> None:
        """Note that the store's position moved, with or without changes of this table."""
        ...

    def verified_position_moved(self) -> None:
        """Note that the table's verified position moved."""
        ...

    def judge_backlog(self, before: TableView, now: TableView) -> None:
        """Check the session's backlog; the session itself may be blocked in a write."""
        ...


class Tail:
    """One table's newest state, and the sessions that follow it.

    Sessions are notified when the table itself changed, and, at most once in POSITION_PAUSE_S,
    when the position moved. `view` and `history` are None as long as the store
    has no such table, or no source. `request_check` requests a catalog check.
    """

    def __init__(self, name: str, reader: StoreReader, request_check: Callable[[], None]) -> None:
        self.name = name
        self.view: TableView | None = None
        self.history: History | None = None
        self._reader = reader
        self._followers: set[TailFollower] = set()
        self._notified_at = float("-inf")
        self._pending: asyncio.TimerHandle | None = None
        self._backlog: Backlog | None = None
        self._judging: asyncio.TimerHandle | None = None
        self._request_check = request_check
        self._wanted = 0
        self._asked: asyncio.TimerHandle | None = None

    def refresh(self, history: History | None) -> None:
        """Read the table's figures and notify the sessions that they concern."""
        before, history_before = self.view, self.history
        try:
            now = self._reader.table(self.name)
        except TableUnknown:
            now = None
        self.view, self.history = now, history
        if before is None or now is None or history != history_before:
            self._wanted = 0
            self.notify_all()
            return
        if _moved(before, now):
            for follower in self._followers:
                follower.notify()
            self._judge(before, now)
        if now.position != before.position:
            self._position_moved()
        if now.boundary != before.boundary:
            self._verified_position_moved()

    def _judge(self, before: TableView, now: TableView) -> None:
        """Have the sessions check their backlogs, and again in the loop's next turn if counting
        takes longer."""
        if self._judging is not None:
            self._judging.cancel()
            self._judging = None
        backlog = self._backlog
        if backlog is not None:
            backlog.begin_turn()
        for follower in list(self._followers):
            follower.judge_backlog(before, now)
        if backlog is not None and backlog.unfinished:
            loop = asyncio.get_running_loop()
            self._judging = loop.call_later(0, self._judge, before, now)

    def backlog(self, table_id: int) -> Backlog:
        """The counts that all sessions of this incarnation share."""
        if self._backlog is None or self._backlog.table_id != table_id:
            self._backlog = Backlog(self._reader, table_id)
        return self._backlog

    def follow(self, follower: TailFollower) -> None:
        """Notify this session from now on."""
        self._followers.add(follower)
        if self._asked is None:
            self._ask_if_wanted()

    def leave(self, follower: TailFollower) -> None:
        """Stop notifying this session."""
        self._followers.discard(follower)

    def notify_all(self) -> None:
        """Notify every session."""
        for follower in self._followers:
            follower.notify()

    def want_verified(self, position: int) -> None:
        """Request catalog checks until the verified position has passed this one."""
        self._wanted = max(self._wanted, position)
        if self._asked is None:
            self._ask_if_wanted()

    def close(self) -> None:
        """Cancel the timers."""
        for timer in (self._pending, self._asked, self._judging):
            if timer is not None:
                timer.cancel()

    def _verified_position_moved(self) -> None:
        for follower in self._followers:
            follower.verified_position_moved()
        if self._asked is not None:
            self._asked.cancel()
        self._ask_if_wanted()

    def _ask_if_wanted(self) -> None:
        """Request a catalog check, and again until the verified position has passed the wanted."""
        self._asked = None
        view = self.view
        if view is None or not self._followers:
            return
        if view.live and view.boundary < self._wanted:
            self._request_check()
            loop = asyncio.get_running_loop()
            self._asked = loop.call_later(CHECK_AGAIN_S, self._ask_if_wanted)

    def _position_moved(self) -> None:
        if self._pending is not None or not self._followers:
            return
        loop = asyncio.get_running_loop()
        wait = self._notified_at + POSITION_PAUSE_S - loop.time()
        if wait <= 0:
            self._notify_position()
        else:
            self._pending = loop.call_later(wait, self._notify_position)

    def _notify_position(self) -> None:
        self._pending = None
        self._notified_at = asyncio.get_running_loop().time()
        for follower in self._followers:
            follower.position_moved()


def _moved(before: TableView, now: TableView) -> bool:
    if before.record.suspect_ranges != now.record.suspect_ranges:
        return True
    return (before.sequence, before.id, before.status) != (now.sequence, now.id, now.status)


class Tails:
    """The tails of all tables that are served, kept up to date by one task."""

    def __init__(
        self,
        names: Iterable[str],
        reader: StoreReader,
        wakeups: Wakeups,
        request_check: Callable[[], None],
    ) -> None:
        self._tails = {name: Tail(name, reader, request_check) for name in names}
        self._request_check = request_check
        self._reader = reader
        self._wakeups = wakeups
        self._newest_us = 0
        self.delay_us = 0
        """Between the newest transaction's commit and when it could be read here; 0: none came."""

    def __iter__(self) -> Iterator[Tail]:
        return iter(self._tails.values())

    def get(self, name: str) -> Tail | None:
        """The table's tail, if the table is served."""
        return self._tails.get(name)

    def change(self, names: Iterable[str]) -> None:
        """Serve these tables from now on; the tails of those that stay are the same."""
        before, self._tails = self._tails, {}
        for name in names:
            known = before.pop(name, None)
            self._tails[name] = known or Tail(name, self._reader, self._request_check)
            if known is None:
                self._tails[name].refresh(self._history())
        for tail in before.values():
            tail.close()

    def refresh(self) -> None:
        """Read every table once."""
        self._measure_delay()
        history = self._history()
        for tail in self._tails.values():
            tail.refresh(history)

    def _history(self) -> History | None:
        source = self._reader.source()
        return source.history if source is not None else None

    def _measure_delay(self) -> None:
        _, newest_us = self._reader.position()
        if newest_us > self._newest_us:
            # What was there when this process began is no measure.
            if self._newest_us:
                self.delay_us = max(1, time.time_ns() // 1000 - newest_us)
            self._newest_us = newest_us

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
