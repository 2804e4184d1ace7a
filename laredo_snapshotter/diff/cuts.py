"""Cuts: tables end their diffs at the same position, and each freezes its buffer there.

A cut is owed until every transaction up to it was taken. One whose state can't be known, because a
batch has only the states before it and after it, is postponed.
"""

import asyncio
import math
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from laredo_fanout.client.events import Changes, Handshake, SnapshotBegin, SnapshotEnd
from laredo_model.column import Column
from laredo_model.position import History, Position
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.buffer import ChangeBuffer, FrozenBuffer
from laredo_snapshotter.errors import ServerUnfit


class Outlet(Protocol):
    """Commits frozen buffers, one after the other (committer.py)."""

    @property
    def blocked(self) -> object | None:
        """Not None while a destination is unavailable."""

    @property
    def waiting_bytes(self) -> int:
        """Memory that waits to be committed."""

    @property
    def waiting_spilled_bytes(self) -> int:
        """Disk space that waits to be committed."""

    @property
    def unverified(self) -> object | None:
        """Not None while the next commit waits to be verified."""

    def put(self, frozen: FrozenBuffer) -> None:
        """Commit it after all that was put before."""

    def cut_off(self) -> int:
        """Discard the artifacts that aren't verified, and return their number."""

    async def progress(self) -> None:
        """Wait until something was committed, or couldn't be."""

    async def drained(self) -> None:
        """Wait until all is committed."""

    async def settled(self) -> None:
        """Wait until all is committed, but for what must wait to be verified.

        That would wait for ever without a stream: only it brings the verified position.
        """


class StreamedBase(Protocol):
    """A base that the live stream itself brings."""

    async def write(self, keys: list[bytes], lines: list[bytes]) -> None:
        """Write the next rows of the base."""

    async def finish(self, end: SnapshotEnd) -> None:
        """All rows are there: commit it as a new epoch."""

    async def abort(self) -> None:
        """Discard the base."""


class FeedTable(Protocol):
    """Interface of the feed to the table's writer (table/session.py)."""

    def fits(self, handshake: Handshake) -> bool:
        """True if changes from this stream may follow the archive's head."""

    @property
    def archive_end(self) -> tuple[Position, History] | None:
        """End of the archive; None if nothing may follow its artifacts."""

    async def begin_base(
        self, begin: SnapshotBegin, columns: tuple[Column, ...], history: History
    ) -> StreamedBase:
        """The stream begins a snapshot: all that was taken before is committed."""


# docs/commit-protocol.md: "Tables of one process are cut together." The position is the highest
# that any of the streams has reached; each table's buffer is frozen there when its own stream has
# passed it. No table waits for another: one that is stuck keeps the cuts it owes, and forgets those
# that are too old or too many.

MOST_PENDING = 256
"""Cuts that a table may owe; each becomes a diff."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A position at which a table's buffer is frozen."""

    position: int
    asked_at: float
    """Monotonic."""
    forced: bool = False
    """Committed even when nothing changed."""
    common: bool = False
    """A cut of all tables: a diff of changes that cancelled out is committed too."""


class PendingCuts:
    """The cuts that a table owes, in order of position."""

    def __init__(self, time_limit: float) -> None:
        """``time_limit``: seconds after which a cut that isn't forced may be forgotten."""
        self._time_limit = time_limit
        self._cuts: deque[Cut] = deque()
        self.forgotten = 0

    def add(self, position: int, now: float, *, forced: bool = False, common: bool = False) -> None:
        """Owe a cut; one at the same position is the same cut."""
        kept = [c for c in self._cuts if c.position != position]
        same = [c for c in self._cuts if c.position == position]
        forced = forced or any(c.forced for c in same)
        common = common or any(c.common for c in same)
        kept.append(Cut(position, now, forced, common))
        kept.sort(key=lambda cut: cut.position)
        self._cuts = deque(self._within_limits(kept, now))

    def take(self, reached: int) -> list[Cut]:
        """The cuts at or before ``reached``; they are owed no longer."""
        taken = []
        while self._cuts and self._cuts[0].position <= reached:
            taken.append(self._cuts.popleft())
        return taken

    def postpone(self, until: int, now: float) -> list[Cut]:
        """Owe the cuts before ``until`` at ``until``, as the states before it can't be known.

        Returns the forced cuts, which are for their own position or not at all, and owed no longer.
        """
        before = self.take(until - 1)
        if any(not cut.forced for cut in before):
            self.add(until, now)
        return [cut for cut in before if cut.forced]

    def next_position(self) -> int | None:
        """The first owed cut's position."""
        return self._cuts[0].position if self._cuts else None

    def owes(self, position: int) -> bool:
        """True if a cut at ``position`` is pending."""
        return any(cut.position == position for cut in self._cuts)

    def clear(self) -> None:
        """Owe nothing, because what was to be cut is gone."""
        self._cuts.clear()

    def _within_limits(self, cuts: list[Cut], now: float) -> Iterable[Cut]:
        newest = cuts[-1]
        young = [
            cut
            for cut in cuts
            if cut.forced or cut is newest or now - cut.asked_at < self._time_limit
        ]
        over = len(young) - MOST_PENDING
        for cut in young:
            if over > 0 and not cut.forced and cut is not newest:
                over -= 1
                continue
            yield cut
        self.forgotten += len(cuts) - min(len(young), MOST_PENDING)


class CutTable(Protocol):
    """A table as the coordinator sees it."""

    @property
    def stream(self) -> tuple[str, int] | None:
        """The history and the position that its stream has reached; None while it isn't live."""

    def cut(self, position: int, *, common: bool) -> None:
        """Freeze at ``position`` as soon as the stream has passed it.

        ``common``: all tables of the process are cut there.
        """

    def tick(self) -> None:
        """An interval has passed; called after :meth:`cut`."""


def cut_together(tables: Sequence[CutTable], *, common: bool = False) -> dict[str, int]:
    """Ask every table for a cut at the highest position reached in its history; return these.

    ``common``: these are all tables of the process.
    """
    highest: dict[str, int] = {}
    for table in tables:
        if (stream := table.stream) is not None:
            history, position = stream
            highest[history] = max(position, highest.get(history, position))
    for table in tables:
        if (stream := table.stream) is not None:
            table.cut(highest[stream[0]], common=common)
        table.tick()
    return highest


# Schedule of cuts: each table at every multiple of its interval, all at the longest one's.
#
# The multiples are of one origin, so that tables whose intervals meet are cut together there. At
# the longest interval's all of them are, also those whose own interval doesn't divide it: so the
# tables of one process have positions in common as often as the slowest of them is cut.

EARLY_S = 0.001
"""Multiples of two intervals this near are one: 3 x 0.1 s isn't 0.3 s in floats."""


class CutSchedule:
    """Cuts tables by their intervals; tables come and go. Belongs to one event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        all_cut: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        """``clock``: monotonic, in seconds. ``all_cut`` is called after a cut of all tables with
        its positions, by history."""
        self._clock = clock
        self._all_cut = all_cut
        self._origin = clock()
        self._intervals: dict[CutTable, float] = {}
        self._due: dict[float, float] = {}
        self._changed = asyncio.Event()

    def add(self, table: CutTable, interval: float) -> None:
        """Cut it every ``interval`` seconds from now on."""
        self._intervals[table] = interval
        if interval not in self._due:
            self._due[interval] = self._after(interval, self._clock())
        self._changed.set()

    def remove(self, table: CutTable) -> None:
        """Cut it no more."""
        interval = self._intervals.pop(table)
        if interval not in self._intervals.values():
            del self._due[interval]
        self._changed.set()

    async def run(self) -> None:
        """Cut what is due, without drift, until cancelled."""
        while True:
            self._changed.clear()
            delay = self.cut_due()
            try:
                await asyncio.wait_for(self._changed.wait(), delay)
            except TimeoutError:
                continue

    def cut_due(self) -> float | None:
        """Cut the tables that are due; return seconds until the next cut, None without tables."""
        now = self._clock()
        due = {interval for interval, at in self._due.items() if at <= now + EARLY_S}
        for interval in due:
            self._due[interval] = self._after(interval, now)
        if due:
            self._cut(due)
        return max(0.0, min(self._due.values()) - self._clock()) if self._due else None

    def _cut(self, due: Collection[float]) -> None:
        if max(self._due) in due:
            tables = list(self._intervals)
            self._all_cut(cut_together(tables, common=len(tables) > 1))
        else:
            cut_together([table for table, each in self._intervals.items() if each in due])

    def _after(self, interval: float, now: float) -> float:
        """The first multiple after ``now``. Those that a stall has missed are left out."""
        passed = math.floor((now + EARLY_S - self._origin) / interval)
        return self._origin + (passed + 1) * interval


# Position of a table's first change since its last diff: until then the table was unchanged.
#
# Changes that cancel each other count too: the table was another one in between.


class FirstChange:
    """Keeps the position before a table's first change that isn't put into a diff yet."""

    def __init__(self) -> None:
        self.unchanged_until: int | None = None
        """The last position before the first change; None while there is none."""
        self._open_after: int | None = None

    def take(self, after: int, *, some: bool, ends: bool) -> None:
        """Take transactions after a position, of which the last ends or goes on in the next call.

        ``some``: this call has changes. It may have none, and only end an open transaction.
        """
        if self._open_after is not None:
            after, some = min(after, self._open_after), True
        if not ends:
            self._open_after = after
            return
        self._open_after = None
        if some and self.unchanged_until is None:
            self.unchanged_until = after

    def frozen(self, *, put: bool) -> int | None:
        """The last position before a frozen buffer's first change; None if there is none.

        A buffer that isn't put leaves its changes to the next one.
        """
        until = self.unchanged_until
        if put:
            self.unchanged_until = None
        return until


# Position up to which the server has verified a table: no artifact may end after it.


class VerifiedPosition:
    """One table's verified position: the live stream sets it, the committer waits for it.

    After this position silent DDL may have changed rows, so no artifact may end there.
    """

    def __init__(self) -> None:
        self._position: int | None = None
        self._changed: Callable[[], None] = _nobody

    @property
    def position(self) -> int | None:
        """None if the server doesn't send it: then everything counts as verified."""
        return self._position

    def notify(self, changed: Callable[[], None]) -> None:
        """Have ``changed`` called whenever the position changes."""
        self._changed = changed

    def set(self, position: int | None) -> None:
        """Set the verified position that the server has sent."""
        if position != self._position:
            self._position = position
            self._changed()

    def covers(self, position: int) -> bool:
        """True if an artifact may end at ``position``."""
        return self._position is None or position <= self._position

    def limit(self, position: Position) -> Position:
        """``position``, or the verified one if that is before it."""
        return position if self._position is None else Position(min(self._position, position))


def _nobody() -> None:
    """Nobody waits for it."""


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
        """Changes that were taken and aren't frozen yet."""
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
        self._last_freeze: int = 0
        self._cuts = PendingCuts(max(60.0, 10 * config.diff.interval))
        self._first = FirstChange()
        self._cut_at: deque[int] = deque(maxlen=MOST_PENDING)
        self._forced: dict[int, asyncio.Future[FrozenBuffer | None]] = {}

    @property
    def cut_position(self) -> Position | None:
        """Position for the next cut, which the server verifies soon.

        Every change that was taken is at or before it.
        The stream's own position may be after the last one that the server has a reason to check.
        """
        if self.position is None or self._verified.position is None:
            return self.position
        limit = self._verified.limit(self.position)
        return Position(max(self._last_whole or 0, self._last_freeze, limit))

    @property
    def seen_position(self) -> Position | None:
        """Position up to which the received changes are certainly all.

        None while it is before the last received change: others may have come and gone.
        """
        if self.position is None or self._verified.position is None:
            return self.position
        seen = self._verified.limit(self.position)
        return seen if seen >= (self._last_whole or 0) else None

    @property
    def unchanged_until(self) -> int | None:
        """The last position at which the table is as it was when it was last put.

        None: at all positions that were taken.
        """
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
        """Freeze at ``position``, now or as soon as the stream has passed it.

        ``common``: all tables are to be known there, so changes that cancelled out are put too.
        """
        if self.live and self._outlet.blocked is None:
            self._owe(position, common=common)

    def cut_exactly(self, position: int) -> "asyncio.Future[FrozenBuffer | None]":
        """Freeze at ``position``, and put it even if nothing changed.

        The result is what was put; None if the stream was replaced before it got there.
        """
        done: asyncio.Future[FrozenBuffer | None] = asyncio.get_running_loop().create_future()
        self._forced[position] = done
        self._owe(position, forced=True)
        return done

    def take(self, batch: Changes) -> None:
        """Take changes, and freeze at the cuts between their transactions."""
        positions, counts = batch.positions, batch.counts
        whole = len(counts) - batch.open
        number = change = 0
        while number < len(counts):
            self._freeze_before(positions[number], batch.since if number == 0 else None)
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
        self._freeze_owed(position)

    def freeze_all(self) -> None:
        """Put everything that was taken, as far as its last whole transaction or heartbeat."""
        if self.live and self.position is not None:
            self._freeze(self.position)

    def freeze_whole(self) -> None:
        """Put everything that was taken, as far as its last whole transaction."""
        if self.live and self._last_whole is not None:
            self._freeze(self._last_whole)

    def begin_after(
        self, position: Position | None, history: History | None, sequence: int
    ) -> None:
        """A base at ``position`` has come; what comes now follows it."""
        self._first = FirstChange()
        self.position = self._last_whole = position
        self.history = history
        self.sequence = sequence

    def resume(self, history: History) -> None:
        """Take changes that follow, in ``history``, which goes on from the one before."""
        self.history = history
        self.live = True

    def go_back(self, position: Position, history: History) -> None:
        """Return to ``position``: the changes after the archive's end come again."""
        self._last_freeze = 0
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
        self.freeze_whole()
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
        """Take the changes ``start`` to ``stop`` into the buffer.

        ``transactions``: the position after which they begin, and the last one's number.
        """
        after, last = transactions
        olds = batch.old_lines
        if olds is None:
            raise ServerUnfit(self._config.name, ", ".join(self._config.endpoint.servers))
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
            self._freeze_owed(self.position)

    def _freeze_owed(self, reached: int) -> None:
        for cut in self._cuts.take(reached):
            self._cut_at.append(cut.position)
            touched = self.unchanged_until is not None
            self._freeze(cut.position, forced=cut.forced or (cut.common and touched))

    def _freeze_before(self, position: int, since: int | None) -> None:
        """The next changes are of a transaction at ``position``, or of all ``since``."""
        self._freeze_owed(position - 1 if since is None else since)
        for cut in self._cuts.postpone(position, time.monotonic()):
            self._answer(cut.position, None)

    def _answer(self, position: int, frozen: FrozenBuffer | None) -> None:
        if (waiting := self._forced.pop(position, None)) and not waiting.done():
            waiting.set_result(frozen)

    def _freeze(self, position: int, *, forced: bool = False) -> None:
        # A cut just before an open transaction is after the last whole one; the next cut, chosen
        # among the tables' positions, must not be before it.
        self.position = Position(max(self.position or 0, position))
        self._last_freeze = max(self._last_freeze, position)
        frozen = self.changes.freeze(position, forced=forced)
        frozen.history = self.history
        frozen.unchanged_until = self._first.frozen(put=forced or not frozen.empty)
        if not frozen.empty or forced:
            self._outlet.put(frozen)
        if forced:
            self._answer(position, frozen)
