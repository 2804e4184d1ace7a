"""The copy of one table: its state machine, its SQL, and its progress.

    WAITING --planned--> READING --all read--> READ --barrier sent--> BARRIER_SENT
                                                |                      ^    |   |
                                          rows partial     barrier sent     |   barrier passed
                                                v                      |    |   v
                                            REREADING --all read--> REREAD  | PUBLISHED
                                                ^                           |
                                                +----rows partial-----------+

    READING and REREADING hand out chunks. A chunk that a TRUNCATE made stale, or whose connection
    was lost, is read again. WAITING, READING and REREADING end in FAILED if the table can't be
    read; every state but PUBLISHED ends in DISCARDED if the incarnation ends.

This module waits, reads and writes nothing: copier.py acts on each state, and reads the chunks.
docs/streaming.md has the algorithm and its proof.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from laredo_fanout.batch.status import CopyProgress
from laredo_fanout.copy.range_reader import append_only_statement, statement
from laredo_fanout.pg_catalog import key_ranges, shape

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.key_ranges import Split
    from laredo_fanout.pg_catalog.requirements import TransactionFilter
    from laredo_fanout.pg_catalog.side_connection import BarrierRequest
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.source_options import SourceTableOptions

MOST_REFUSALS = 5
"""Number of successive refusals of chunks that ends the copy."""

KEYS_A_CHUNK = 500
"""Number of rows that one SELECT reads again by their keys."""

RECOPY_OF = "beside"
"""Name of the live incarnation's id in the ``copy`` of a re-copy's record."""


class CopyState(Enum):
    """A copy's state."""

    WAITING = auto()
    """Transactions that wrote to the table are still running, or the split points aren't known."""
    READING = auto()
    """The key ranges are being read."""
    READ = auto()
    """Every range is in the store's transaction, which isn't durable yet."""
    REREADING = auto()
    """Rows that lack unchanged TOAST values are read again by their keys."""
    REREAD = auto()
    """These rows are in the store's transaction, which isn't durable yet."""
    BARRIER_SENT = auto()
    """The barrier is being written into the WAL, and will arrive in the stream."""
    PUBLISHED = auto()
    """The barrier has arrived, and no row lacked columns: the table is live."""
    FAILED = auto()
    """The table can't be read."""
    DISCARDED = auto()
    """The incarnation has ended; rows that are still being read for it are ignored."""

    @property
    def phase(self) -> str:
        """Name of the state in /status."""
        return _PHASES[self]

    @property
    def ended(self) -> bool:
        """True if no other state follows."""
        return self in (CopyState.PUBLISHED, CopyState.FAILED, CopyState.DISCARDED)


class Event(Enum):
    """Event in a copy's state machine."""

    WRITERS_LEFT = "transactions that wrote to the table are still running"
    PLANNED = "the first chunk may be read"
    CHUNK_TAKEN = "a reader was given a chunk"
    CHUNK_READ = "a chunk is in the store's transaction"
    CHUNK_AGAIN = "a chunk must be read again"
    ALL_READ = "all chunks were read"
    ROWS_PARTIAL = "rows lack unchanged TOAST values"
    BARRIER_SENT = "a barrier was sent"
    BARRIER_PASSED = "the stream has passed the barrier"
    GIVEN_UP = "the table can't be read"
    DISCARDED = "the incarnation has ended"


_TRANSITIONS: Mapping[CopyState, Mapping[Event, CopyState]] = {
    CopyState.WAITING: {
        Event.WRITERS_LEFT: CopyState.WAITING,
        Event.PLANNED: CopyState.READING,
        Event.GIVEN_UP: CopyState.FAILED,
        Event.DISCARDED: CopyState.DISCARDED,
    },
    CopyState.READING: {
        Event.CHUNK_TAKEN: CopyState.READING,
        Event.CHUNK_READ: CopyState.READING,
        Event.CHUNK_AGAIN: CopyState.READING,
        Event.ALL_READ: CopyState.READ,
        Event.GIVEN_UP: CopyState.FAILED,
        Event.DISCARDED: CopyState.DISCARDED,
    },
    CopyState.READ: {
        Event.ROWS_PARTIAL: CopyState.REREADING,
        Event.BARRIER_SENT: CopyState.BARRIER_SENT,
        Event.DISCARDED: CopyState.DISCARDED,
    },
    CopyState.REREADING: {
        Event.CHUNK_TAKEN: CopyState.REREADING,
        Event.CHUNK_READ: CopyState.REREADING,
        Event.CHUNK_AGAIN: CopyState.REREADING,
        Event.ALL_READ: CopyState.REREAD,
        Event.GIVEN_UP: CopyState.FAILED,
        Event.DISCARDED: CopyState.DISCARDED,
    },
    CopyState.REREAD: {
        Event.BARRIER_SENT: CopyState.BARRIER_SENT,
        Event.DISCARDED: CopyState.DISCARDED,
    },
    CopyState.BARRIER_SENT: {
        Event.ROWS_PARTIAL: CopyState.REREADING,
        Event.BARRIER_PASSED: CopyState.PUBLISHED,
        Event.DISCARDED: CopyState.DISCARDED,
    },
    CopyState.PUBLISHED: {},
    CopyState.FAILED: {Event.DISCARDED: CopyState.DISCARDED},
    CopyState.DISCARDED: {},
}

_READING, _REREADING = "copying", "reading rows with unchanged TOAST values again"
_PHASES = {
    CopyState.WAITING: "waiting for transactions that were writing to the table",
    CopyState.READING: _READING,
    CopyState.READ: _READING,
    CopyState.REREADING: _REREADING,
    CopyState.REREAD: _REREADING,
    CopyState.BARRIER_SENT: "waiting for the barrier",
    CopyState.PUBLISHED: "live",
    CopyState.FAILED: "failed",
    CopyState.DISCARDED: "discarded",
}


class IllegalTransition(Exception):
    """An event that can't happen in the copy's state: a defect of the server.

    The server ends; the next start continues from the durable chunks.
    """

    def __init__(self, table: str, state: CopyState, problem: str) -> None:
        super().__init__(
            f"the copy of {table} is in state {state.name}, in which an event must not happen:"
            f" {problem}. Restart the server: the copy continues from its durable chunks. Report"
            " this with the log"
        )


class CopyChunk(NamedTuple):
    """One chunk: a key range, or the rows with some keys."""

    number: int | None
    """Number of the range; None for the rows with ``keys``."""
    keys: tuple[bytes, ...] = ()
    generation: int = 0
    """The table's generation, which each TRUNCATE raises, when a reader was given the chunk."""


class CopyMachine:
    """One copy's state and its chunks. Any thread may read ``state``.

    An event that can't happen in the state raises :class:`IllegalTransition` and changes nothing.
    """

    def __init__(self, table: str, done: Iterable[int] = (), *, repeatable: bool = True) -> None:
        """``done`` are ranges that an earlier session finished. A table without a key isn't
        ``repeatable``: if a chunk were read again, its rows would be stored twice."""
        self._table = table
        self._repeatable = repeatable
        self._todo: deque[CopyChunk] = deque()
        self._active: set[CopyChunk] = set()
        self._done = set(done)
        self.state = CopyState.WAITING
        self.waiting_for: tuple[int, ...] = ()
        """Pids whose transactions wrote to the table, while the state is WAITING."""
        self.refusals = 0
        """Number of successive chunks that PostgreSQL refused to read."""
        self.barrier: str | None = None
        """The payload that must arrive in the stream, from BARRIER_SENT on."""

    @property
    def ended(self) -> bool:
        """True if nothing more is read or written for the copy."""
        return self.state.ended

    @property
    def done(self) -> frozenset[int]:
        """The numbers of the ranges that are finished."""
        return frozenset(self._done)

    @property
    def active(self) -> int:
        """Number of chunks that are being read."""
        return len(self._active)

    @property
    def has_work(self) -> bool:
        """True if a reader may :meth:`take` a chunk."""
        return bool(self._todo) and Event.CHUNK_TAKEN in _TRANSITIONS[self.state]

    def wait_for(self, pids: Sequence[int]) -> None:
        """Note processes whose transactions wrote to the table and haven't ended."""
        self._move(Event.WRITERS_LEFT)
        self.waiting_for = tuple(pids)

    def plan(self, ranges: int) -> None:
        """Begin to read ``ranges`` ranges, without those that were done before."""
        self._move(Event.PLANNED)
        self.waiting_for = ()
        self._todo.extend(CopyChunk(number) for number in range(ranges) if number not in self._done)
        self._move_if_all_read()

    def take(self, generation: int) -> CopyChunk:
        """Take the chunk to read next, of the table at this generation."""
        if not self._todo:
            raise IllegalTransition(self._table, self.state, "no chunk is left for a reader")
        self._move(Event.CHUNK_TAKEN)
        reading = self._todo.popleft()._replace(generation=generation)
        self._active.add(reading)
        return reading

    def finish(self, reading: CopyChunk, generation: int) -> None:
        """Finish a chunk whose rows are in the store's transaction.

        If the table is at another ``generation`` now, a TRUNCATE made the chunk stale, and it is
        read again.
        """
        if generation != reading.generation:
            self.repeat(reading)
            return
        self._end(reading, Event.CHUNK_READ)
        self.refusals = 0
        if reading.number is not None:
            self._done.add(reading.number)
        self._move_if_all_read()

    def put_back(self, reading: CopyChunk) -> None:
        """Read again a chunk of which nothing was written."""
        self._end(reading, Event.CHUNK_AGAIN)
        self._todo.appendleft(reading)

    def repeat(self, reading: CopyChunk) -> None:
        """Read again a chunk that may be written in part; give up if that is impossible."""
        self.put_back(reading)
        if not self._repeatable:
            self.give_up()

    def refuse(self, reading: CopyChunk) -> None:
        """Read again a chunk that PostgreSQL refused; give up after MOST_REFUSALS."""
        self.repeat(reading)
        self.refusals += 1
        if self.refusals >= MOST_REFUSALS and not self.ended:
            self.give_up()

    def reread(self, keys: Sequence[bytes]) -> None:
        """Read again the rows with these keys, which lack TOAST values; another barrier follows."""
        self._move(Event.ROWS_PARTIAL)
        self.barrier = None
        for start in range(0, len(keys), KEYS_A_CHUNK):
            self._todo.append(CopyChunk(None, tuple(keys[start : start + KEYS_A_CHUNK])))

    def send_barrier(self, payload: str) -> None:
        """Send the barrier ``payload``, after all rows are durable."""
        self._move(Event.BARRIER_SENT)
        self.barrier = payload

    def awaits(self, payload: str) -> bool:
        """True if this is the barrier that was sent last."""
        return self.state is CopyState.BARRIER_SENT and self.barrier == payload

    def publish(self) -> None:
        """End the copy: the stream has passed the barrier, and every row is whole."""
        self._move(Event.BARRIER_PASSED)

    def give_up(self) -> None:
        """End the copy of a table that can't be read."""
        self._move(Event.GIVEN_UP)

    def discard(self) -> None:
        """End the copy of an incarnation that has ended."""
        self._move(Event.DISCARDED)

    def _end(self, reading: CopyChunk, event: Event) -> None:
        if reading not in self._active:
            raise IllegalTransition(self._table, self.state, "a chunk ended that wasn't being read")
        self._move(event)
        self._active.remove(reading)

    def _move_if_all_read(self) -> None:
        if not self._todo and not self._active:
            self._move(Event.ALL_READ)

    def _move(self, event: Event) -> None:
        try:
            self.state = _TRANSITIONS[self.state][event]
        except KeyError:
            raise IllegalTransition(self._table, self.state, event.value) from None


class TableCopy:
    """One table's copy: its chunks and progress, and the data that a restart needs.

    The progress is stored in the transactions that store the rows.
    """

    def __init__(
        self,
        table_id: int,
        options: SourceTableOptions,
        table: SourceTable,
        stored: Mapping[str, Any],
        transaction_filter: TransactionFilter | None = None,
    ) -> None:
        self.table_id = table_id
        """The incarnation that is copied."""
        self.options = options
        self.table = table
        self.shape = shape.of_table(table)
        self.transaction_filter = transaction_filter
        """The filter of an append-only table, which is read in one piece, with one snapshot."""
        self.live_id: int | None = stored.get(RECOPY_OF)
        """The live incarnation's id; None unless this is a re-copy."""
        self.splits: list[Split] | None = None
        """Split points between the key ranges; None if they aren't chosen yet."""
        if "splits" in stored:
            self.splits = [tuple(split) for split in stored["splits"]]
        done = {number for run in stored.get("done", []) for number in range(*run)}
        self.machine = CopyMachine(table.qualified, done, repeatable=transaction_filter is None)
        """The copy's state, and the chunks that are left to read."""
        self.rows = int(stored.get("rows", 0))
        """Number of rows read, those read again included."""
        self.not_before = 0.0
        """Monotonic time before which no chunk begins."""
        self.refused: BarrierRequest | None = None
        """The barrier, if it was refused and must be sent again."""
        kept = shape.from_json(stored)
        self.version = table.version if kept is None else kept[1]
        """The version with which the barrier compares; its partitions are those when the copy
        began."""
        self._reads_since = 0.0
        self._rows_before = self.rows

    @property
    def partitions(self) -> frozenset[int]:
        """Oids of the partitions that the table had when the copy began."""
        return frozenset(each.oid for each in self.version.partitions)

    @property
    def shown_id(self) -> int:
        """The incarnation whose readers are affected: for a re-copy, the live one."""
        return self.table_id if self.live_id is None else self.live_id

    @property
    def phase(self) -> str:
        """Phase in /status; may be called from any thread."""
        return self.machine.state.phase

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Pids whose transactions must end before the first chunk is read."""
        return self.machine.waiting_for

    @property
    def ranges(self) -> int:
        """Number of ranges; 0 until they are known."""
        return 0 if self.splits is None else len(self.splits) + 1

    @property
    def ranges_done(self) -> int:
        """Number of finished ranges."""
        return len(self.machine.done)

    def plan(self, splits: Sequence[Split]) -> None:
        """Begin to read, without the ranges that an earlier session finished."""
        self.splits = list(splits)
        self._reads_since = time.monotonic()
        self.machine.plan(self.ranges)

    def progress(self, now: float) -> CopyProgress:
        """Progress of the copy; may be called from any thread."""
        estimated = int(self.table.rows_estimated)
        seconds = now - self._reads_since if self._reads_since else 0.0
        rate = (self.rows - self._rows_before) / seconds if seconds > 0 else 0.0
        left = max(0, estimated - self.rows) / rate if rate > 0 and estimated > 0 else None
        return CopyProgress(
            self.phase,
            self.rows,
            estimated if estimated >= 0 else None,
            self.ranges,
            self.ranges_done,
            self.waiting_for,
            rate,
            left if self.machine.state in (CopyState.READING, CopyState.READ) else None,
        )

    def has_work(self, now: float) -> bool:
        """True if a reader can begin a chunk."""
        return self.machine.has_work and now >= self.not_before

    def statement(self, reading: CopyChunk) -> bytes:
        """The SQL that reads a chunk."""
        if self.transaction_filter is not None:
            return append_only_statement(self.table)
        if reading.number is None:
            return statement(self.table, key_ranges.keys_condition(self.table, reading.keys))
        return statement(
            self.table, key_ranges.condition(self.table, self.splits or [], reading.number)
        )

    def to_json(self) -> dict[str, Any]:
        """State of the copy for the table's record."""
        stored = {**shape.to_json(self.shape, self.version), "rows": self.rows}
        if self.splits is not None:
            stored["splits"] = [list(split) for split in self.splits]
            stored["done"] = _runs(sorted(self.machine.done))
        if self.live_id is not None:
            stored[RECOPY_OF] = self.live_id
        return stored


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending numbers as [first, after the last] of each unbroken run."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found
