"""The journal as sessions see it: its tail, recent records, and each client's backlog."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from laredo_fanout.serving import slices
from laredo_fanout.serving.forms import Form
from laredo_fanout.serving.ports import Wakeups
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.store.errors import JournalPruned, TableUnknown
from laredo_fanout.store.journal import Record
from laredo_fanout.store.reader import StoreReader, TableView
from laredo_model.position import History

# A cache of recent journal records, encoded once per wire form and shared by sessions.
#
# A session is a cursor: it asks for what comes after a sequence. Sessions at the same sequence with
# the same form get the same bytes; a session far behind reads the journal by itself, in pieces.

READ_BYTES = 256 << 10
"""About the most bytes of a journal that are read at a time."""


class EncodedRecord(NamedTuple):
    """A journal record, encoded in one wire form."""

    messages: list[bytes]
    first_sequence: int
    last_sequence: int
    #: The position up to which its transactions are whole; None if it has only a part of one.
    complete: int | None
    size: int


class RecentRecords:
    """A cache of at most `capacity` bytes of encoded records; the oldest leave first."""

    def __init__(self, reader: StoreReader, capacity: int = 16 << 20) -> None:
        self._reader = reader
        self._capacity = capacity
        self.size = 0
        self._records: OrderedDict[tuple[int, int, bytes], EncodedRecord] = OrderedDict()
        self._under_way: dict[tuple[int, int, bytes], asyncio.Task[EncodedRecord]] = {}
        self.encoded_total = 0

    async def after(self, table_id: int, sequence: int, form: Form) -> list[EncodedRecord]:
        """The next records after this sequence, a piece at a time; [] at the journal's end.

        :raises JournalPruned: the journal no longer reaches back to there.
        """
        found = self._records.get((table_id, sequence, form.signature))
        if found is not None:
            return [found]
        records = self._reader.journal(table_id, sequence, READ_BYTES, with_old=form.wants_old)
        slice_, encoded = Slice(), []
        for record in records:
            encoded.append(await self._encode(table_id, record, form))
            if slice_.done_with(*_cost(record, form)):
                await asyncio.sleep(0)
        return encoded

    async def _encode(self, table_id: int, record: Record, form: Form) -> EncodedRecord:
        key = (table_id, record.first_sequence - 1, form.signature)
        known = self._records.get(key)
        if known is not None and known.last_sequence == record.last_sequence:
            return known
        under_way = self._under_way.get(key)
        if under_way is not None:
            # A session may be at a newer state of this record, or an older one.
            shared = await asyncio.shield(under_way)
            if shared.last_sequence == record.last_sequence:
                return shared
        work = form.changes(record)
        try:
            next(work)
        except StopIteration as done:
            return self._made(key, record, done.value)
        making = asyncio.create_task(self._make(key, record, work))
        self._under_way[key] = making
        making.add_done_callback(lambda _: self._under_way.pop(key, None))
        # It continues if one of the sessions that wait for it leaves.
        return await asyncio.shield(making)

    async def _make(
        self, key: tuple[int, int, bytes], record: Record, work: Sliced[list[bytes]]
    ) -> EncodedRecord:
        return self._made(key, record, await slices.run(work))

    def _made(
        self, key: tuple[int, int, bytes], record: Record, messages: list[bytes]
    ) -> EncodedRecord:
        encoded = EncodedRecord(
            messages,
            record.first_sequence,
            record.last_sequence,
            _complete(record),
            sum(map(len, messages)) + 200,
        )
        self.encoded_total += 1
        self._keep(key, encoded)
        return encoded

    def _keep(self, key: tuple[int, int, bytes], encoded: EncodedRecord) -> None:
        before = self._records.pop(key, None)
        if before is not None:
            self.size -= before.size
        self._records[key] = encoded
        self.size += encoded.size
        while self.size > self._capacity:
            _, gone = self._records.popitem(last=False)
            self.size -= gone.size


def _cost(record: Record, form: Form) -> tuple[int, int]:
    """The bytes and the rows that are read to encode the record."""
    if form.reads_rows:
        return len(record.body) + len(record.old_body), len(record)
    return 0, 1


def _complete(record: Record) -> int | None:
    if not record.open:
        return record.last_position
    return record.first_position if record.first_position < record.last_position else None


# The backlog of a client: the number of transactions it is behind, the unit of max_size.
#
# A transaction counts once, however many rows it changed: one giant transaction must not disconnect
# every client. Sequences count changes, so the transactions are only counted, record by record and
# once for all sessions, when there are more changes than the limit.

READS_A_TURN = 4
"""Records to count before others have their turn: about 5 ms."""
_REMEMBERED = 20_000


def transactions_of(record: Record) -> int:
    """Number of transactions that begin in the record; a continued one counted before."""
    return len(record.decode().counts) - record.continues


class Backlog:
    """Counts the transactions in ranges of one table's journal."""

    def __init__(self, reader: StoreReader, table_id: int) -> None:
        self._reader = reader
        self.table_id = table_id
        self._counted: dict[int, tuple[int, int]] = {}
        self._reads = 0

    def begin_turn(self) -> None:
        """Begin a turn of the event loop: counting may go on."""
        self._reads = 0

    @property
    def unfinished(self) -> bool:
        """True if a count needs another turn."""
        return self._reads > READS_A_TURN

    def more_than(self, limit: int, after: int, upto: int) -> bool:
        """True if more than `limit` transactions are between two sequences.

        One turn reads a bounded number of records, for all sessions together: a long range may need
        several turns until the answer can become True. It is True too if the journal no longer has
        the range: such a session needs a snapshot, and counting would never end.

        :raises JournalDamaged: if a record isn't what was written.
        """
        if upto - after <= limit:
            return False
        start, transactions = after, 0
        while after < upto and transactions <= limit:
            known = self._counted.get(after)
            if known is None:
                self._reads += 1
                try:
                    if self.unfinished or not self._count(after):
                        break
                except JournalPruned:
                    self._reads -= 1
                    return True
                known = self._counted[after]
            after, count = known
            transactions += count
        if after != start:
            # Kept as one range, and as the newest: a backlog may have more records than are kept.
            self._counted.pop(start, None)
            self._counted[start] = after, transactions
        return transactions > limit

    def _count(self, after: int) -> bool:
        try:
            records = self._reader.journal(self.table_id, after, READ_BYTES, with_old=False)
        except TableUnknown:
            self._reads -= 1  # another turn wouldn't find it either
            return False
        while len(self._counted) > _REMEMBERED:
            del self._counted[next(iter(self._counted))]
        for record in records:
            self._counted[record.first_sequence - 1] = record.last_sequence, transactions_of(record)
        return bool(records)


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

    def refresh(self, history: History | None, now: TableView | None) -> None:
        """Take the table's newest figures, and notify the sessions that they concern."""
        before, history_before = self.view, self.history
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
        """Time from the newest transaction's commit until it could be read here; 0 if none came."""

    def __iter__(self) -> Iterator[Tail]:
        return iter(self._tails.values())

    def get(self, name: str) -> Tail | None:
        """The table's tail, if the table is served."""
        return self._tails.get(name)

    def change(self, names: Iterable[str]) -> None:
        """Serve these tables from now on; the tails of those that stay are the same."""
        before, self._tails = self._tails, {}
        history, views = self._history(), self._reader.current_views()
        for name in names:
            known = before.pop(name, None)
            self._tails[name] = known or Tail(name, self._reader, self._request_check)
            if known is None:
                self._tails[name].refresh(history, views.get(name))
        for tail in before.values():
            tail.close()

    def refresh(self) -> None:
        """Read every table once."""
        self._measure_delay()
        # One walk for all: a walk for each would take seconds with a thousand tables.
        history, views = self._history(), self._reader.current_views()
        for tail in self._tails.values():
            tail.refresh(history, views.get(tail.name))

    def _history(self) -> History | None:
        source = self._reader.source()
        return source.history if source is not None else None

    def _measure_delay(self) -> None:
        _, newest_us = self._reader.position()
        if newest_us > self._newest_us:
            # A transaction from before this process began is no measure.
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
