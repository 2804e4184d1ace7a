"""One table's changes, sealed into a diff at each cut that the table owes.

A cut is owed until every transaction up to it was taken. One whose state can't be known, because a
batch has only the states before it and after it, is postponed.
"""

import asyncio
import time
from bisect import bisect_right
from collections import deque

from laredo_fanout.client.events import Changes
from laredo_model.position import History, Position
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.buffer import ChangeBuffer, Sealed
from laredo_snapshotter.diff.cuts import MOST_PENDING, PendingCuts
from laredo_snapshotter.diff.feed_ports import Outlet
from laredo_snapshotter.diff.first_change import FirstChange
from laredo_snapshotter.diff.verified import VerifiedPosition
from laredo_snapshotter.errors import ServerUnfit


class CutBuffer:
    """Takes one table's changes, and puts them into ``outlet`` as far as each cut.

    ``position`` and ``history`` are where the archive ends; None if nothing may follow it.
    """

    def __init__(
        self,
        config: TableConfig,
        outlet: Outlet,
        verified: VerifiedPosition,
        position: Position | None,
        history: History | None,
    ) -> None:
        self.changes = ChangeBuffer(config.spill_directory)
        """Changes that were taken and aren't sealed yet."""
        self.position = position
        """Every transaction up to here was taken."""
        self.history = history
        """History that :attr:`position` belongs to."""
        self.sequence: int | None = None
        """Of the last entry of the last whole transaction; None until one was taken."""
        self.live = False
        """True if changes arrive that may follow the archive's head."""
        self._config = config
        self._outlet = outlet
        self._verified = verified
        self._last_whole = position
        self._last_seal: int = 0
        self._cuts = PendingCuts(max(60.0, 10 * config.diff.interval))
        self._first = FirstChange()
        self._cut_at: deque[int] = deque(maxlen=MOST_PENDING)
        self._forced: dict[int, asyncio.Future[Sealed | None]] = {}

    @property
    def cut_position(self) -> Position | None:
        """Position for the next cut: every change taken is at or before it, and it is verified
        soon.

        The stream's own position may be after the last one that the server has a reason to check.
        """
        if self.position is None or self._verified.position is None:
            return self.position
        limit = self._verified.limit(self.position)
        return Position(max(self._last_whole or 0, self._last_seal, limit))

    @property
    def seen_position(self) -> Position | None:
        """Up to where it is certain that nothing but what was taken has happened.

        None while that is before the last that was taken: something may have come and gone.
        """
        if self.position is None or self._verified.position is None:
            return self.position
        seen = self._verified.limit(self.position)
        return seen if seen >= (self._last_whole or 0) else None

    @property
    def unchanged_until(self) -> int | None:
        """The last position at which the table is as it was when it was last put; None: all that
        was taken."""
        return self._first.unchanged_until

    def was_cut(self, position: int) -> bool | None:
        """True if it was cut at ``position``; None: not yet, False: it won't be."""
        if position in self._cut_at:
            return True
        return None if self._cuts.owes(position) else False

    @property
    def quiet(self) -> bool:
        """True if nothing is buffered, so that the state is the one that was put last."""
        return self.live and self.changes.empty

    @property
    def cuts_forgotten(self) -> int:
        """Cuts that were given up because the stream didn't reach them in time."""
        return self._cuts.forgotten

    def cut(self, position: int, *, common: bool = False) -> None:
        """Seal at ``position``, now or as soon as the stream has passed it.

        ``common``: all tables are to be known there, so changes that cancelled out are put too.
        """
        if self.live and self._outlet.blocked is None:
            self._owe(position, common=common)

    def cut_exactly(self, position: int) -> "asyncio.Future[Sealed | None]":
        """Seal at ``position``, and put it even if nothing changed.

        The result is what was put; None if the stream was replaced before it got there.
        """
        done: asyncio.Future[Sealed | None] = asyncio.get_running_loop().create_future()
        self._forced[position] = done
        self._owe(position, forced=True)
        return done

    def take(self, batch: Changes) -> None:
        """Take changes, and seal at the cuts between their transactions."""
        positions, counts = batch.positions, batch.counts
        whole = len(counts) - batch.open
        number = change = 0
        while number < len(counts):
            self._seal_before(positions[number], batch.since if number == 0 else None)
            owed = self._cuts.next_position()
            last = whole if owed is None else bisect_right(positions, owed, number, whole)
            ends = last > number
            until = last if ends else len(counts)
            size = sum(counts[number:until])
            since = batch.since if number == 0 else None
            after = positions[number] - 1 if since is None else since
            transactions = (after, until - 1)
            self._take_slice(batch, change, change + size, transactions, ends=ends)
            number, change = until, change + size

    def reached(self, position: Position) -> None:
        """Every transaction up to ``position`` was taken."""
        if self.position is None or position > self.position:
            self.position = position
        self._seal_owed(position)

    def seal_all(self) -> None:
        """Put everything that was taken, as far as its last whole transaction or heartbeat."""
        if self.live and self.position is not None:
            self._seal(self.position)

    def seal_whole(self) -> None:
        """Put everything that was taken, as far as its last whole transaction."""
        if self.live and self._last_whole is not None:
            self._seal(self._last_whole)

    def begin_after(
        self, position: Position | None, history: History | None, sequence: int
    ) -> None:
        """A base at ``position`` has come; what comes now follows it."""
        self._first = FirstChange()
        self.position = self._last_whole = position
        self.history = history
        self.sequence = sequence

    def go_back(self, position: Position, history: History) -> None:
        """Return to ``position``: the changes after the archive's end come again."""
        self._last_seal = 0
        self._first = FirstChange()
        self.position, self.history = position, history
        self._last_whole = position

    def start_over(self) -> None:
        """Nothing may follow the archive's end: all must come again, with a snapshot."""
        self.position = self.history = None

    def close_chain(self) -> None:
        """Put what was taken: nothing that comes now may follow it."""
        self.changes.abandon()
        # Up to the last transaction only: after it the schema may have changed.
        self.seal_whole()
        if self._outlet.cut_off():
            self.start_over()
        self.live = False
        self._cuts.clear()
        forced, self._forced = self._forced, {}
        for waiting in forced.values():
            if not waiting.done():
                waiting.set_result(None)

    def _take_slice(
        self, batch: Changes, start: int, stop: int, transactions: tuple[int, int], *, ends: bool
    ) -> None:
        """Changes ``start`` to ``stop`` into the buffer: those of the transactions after a
        position, up to one by its number."""
        after, last = transactions
        olds = batch.old_lines
        if olds is None:
            raise ServerUnfit(self._config.name, self._config.endpoint.server)
        everything = start == 0 and stop == len(batch.actions)
        position = Position(batch.positions[last])
        self.changes.take(
            batch.actions if everything else batch.actions[start:stop],
            batch.keys if everything else batch.keys[start:stop],
            batch.lines if everything else batch.lines[start:stop],
            olds if everything else olds[start:stop],
            position=position,
            time_us=batch.times_us[last],
            ends=ends,
        )
        self._first.take(after, some=stop > start, ends=ends)
        if ends:
            self._last_whole = position
            if stop > start:
                self.sequence = batch.sequence(stop - 1)
            self.reached(position)

    def _owe(self, position: int, *, forced: bool = False, common: bool = False) -> None:
        self._cuts.add(position, time.monotonic(), forced=forced, common=common)
        if self.position is not None:
            self._seal_owed(self.position)

    def _seal_owed(self, reached: int) -> None:
        for cut in self._cuts.take(reached):
            self._cut_at.append(cut.position)
            touched = self.unchanged_until is not None
            self._seal(cut.position, forced=cut.forced or (cut.common and touched))

    def _seal_before(self, position: int, since: int | None) -> None:
        """The next changes are of a transaction at ``position``, or of all ``since``."""
        self._seal_owed(position - 1 if since is None else since)
        for cut in self._cuts.postpone(position, time.monotonic()):
            self._answer(cut.position, None)

    def _answer(self, position: int, sealed: Sealed | None) -> None:
        if (waiting := self._forced.pop(position, None)) and not waiting.done():
            waiting.set_result(sealed)

    def _seal(self, position: int, *, forced: bool = False) -> None:
        # A cut just before an open transaction is beyond the last whole one; the next cut, chosen
        # among the tables' positions, must not fall behind it.
        self.position = Position(max(self.position or 0, position))
        self._last_seal = max(self._last_seal, position)
        sealed = self.changes.seal(position, forced=forced)
        sealed.unchanged_until = self._first.sealed(put=forced or not sealed.empty)
        if not sealed.empty or forced:
            self._outlet.put(sealed)
        if forced:
            self._answer(position, sealed)
