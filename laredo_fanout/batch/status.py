"""The ingest's status and counters, for /status and /metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.slot.health import SlotWarning, SlotWatch
from laredo_fanout.slot.slot import Slot
from laredo_model import position as position_
from laredo_model.line import Action

if TYPE_CHECKING:
    from laredo_fanout.store.environment import LastRecopy


class CopyProgress(NamedTuple):
    """Progress of a copy."""

    #: Phase of the copy, in a word or two.
    phase: str
    #: Rows read, those that were read again included.
    rows: int
    #: PostgreSQL's estimate of the table's rows; None if unknown.
    estimated_rows: int | None
    #: Number of key ranges.
    ranges: int
    #: Ranges that are finished.
    ranges_done: int
    #: Pids whose transactions must end before the copy can begin.
    waiting_for: tuple[int, ...]
    #: Average since this session began to read.
    rows_per_second: float
    #: None while it is unknown.
    seconds_left: float | None

    @property
    def fraction(self) -> float:
        """Finished share, 0 to 1."""
        if self.estimated_rows:
            return min(1.0, self.rows / self.estimated_rows)
        return self.ranges_done / self.ranges if self.ranges else 0.0


@dataclass(frozen=True)
class ReplicatedTableStatus:
    """Status of one table."""

    #: Phase of the table, in a word or two.
    phase: str = "waiting"
    #: The reason if the table can't be replicated.
    error: str | None = None
    #: Rows read by copies, those that were read again included.
    copied_rows: int = 0
    #: PostgreSQL's estimate of the table's rows; None if unknown.
    estimated_rows: int | None = None
    #: Number of key ranges of its copy.
    ranges: int = 0
    #: Ranges that are finished.
    ranges_done: int = 0
    #: Pids whose transactions must end before the copy can begin.
    waiting_for: tuple[int, ...] = ()
    #: Progress of its copy or re-copy.
    copy: CopyProgress | None = None
    #: True if ``copy`` is that of a re-copy.
    recopying: bool = False
    #: The result of its last re-copy.
    last_recopy: LastRecopy | None = None
    #: Rows that re-copies found to differ.
    recopied_rows: int = 0
    #: Number of repairs because partitions had moved rows without a change in the stream.
    repaired: int = 0
    #: Number of times that damage on disk was found in its rows or journal.
    damages: int = 0
    #: Pids that held a lock for DDL on it in the last catalog snapshot (0: a prepared
    #: transaction). Until they are done the verified position doesn't advance.
    altered_by: tuple[int, ...] = ()


class FaultStatus(NamedTuple):
    """A fault in the WAL that the stream can't pass."""

    #: decoding or protocol.
    kind: str
    #: The error, with its place and cure.
    text: str
    #: The store's position, which is before the fault.
    position: int
    #: Number of successive sessions that ended there.
    attempts: int
    #: Unix time of the first attempt.
    since: float

    def shown(self) -> dict[str, object]:
        """The fault as JSON for /status."""
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        return {
            **self._asdict(),
            "position": position_.text(self.position),
            "since": since.replace("+00:00", "Z"),
        }


@dataclass(frozen=True)
class IngestStatus:
    """Status of the source; sizes in bytes, times in seconds."""

    #: True if the stream is followed just now.
    connected: bool = False
    #: Phase of the session, in a few words.
    phase: str = "starting"
    #: The error of the stream, or of the side connection.
    error: str | None = None
    #: The store's position: everything that PostgreSQL committed up to here is durable.
    position: int = 0
    #: WAL that the server has written after ``position``.
    lag_bytes: int = 0
    #: Time since the newest durable transaction was committed; 0 if nothing newer is known.
    #: It grows while the stream isn't followed.
    lag_seconds: float = 0.0
    #: The slot as it was at ``slot_seen_at``.
    slot: Slot | None = None
    #: Unix time of ``slot``.
    slot_seen_at: float | None = None
    #: Warnings that need an operator.
    slot_warnings: tuple[SlotWarning, ...] = ()
    #: Slots that had to be created again.
    slot_losses: int = 0
    #: Walsenders of earlier connections of ours that were ended.
    senders_ended: int = 0
    #: Messages in the WAL that have our prefix and weren't expected.
    strange_messages: int = 0
    #: Sessions that ended with an error.
    reconnects: int = 0
    #: Sessions that ended at a fault in the WAL, by kind (decoding, protocol).
    stream_faults: Mapping[str, int] = field(default_factory=dict)
    #: The fault that isn't passed yet.
    stream_fault: FaultStatus | None = None
    #: Tables copied again.
    recopies: int = 0
    #: Unix time at which the last unplanned copy of a table was scheduled, by table.
    copied_again_at: Mapping[str, float] = field(default_factory=dict)
    #: Changes of the stream, by action.
    changes: Mapping[str, int] = field(default_factory=dict)
    #: Re-copies that operators asked for and that have ended, by table and outcome.
    asked_recopies: Mapping[tuple[str, str], int] = field(default_factory=dict)
    #: Connections that copy rows, or are being opened for that.
    copy_connections: int = 0
    #: Size of copied rows that were read and aren't written yet.
    copy_bytes: int = 0
    #: Status of each table, by qualified name.
    tables: Mapping[str, ReplicatedTableStatus] = field(default_factory=dict)

    @property
    def known_lag_bytes(self) -> int | None:
        """``lag_bytes``; None while the end of the source's WAL is unknown."""
        return self.lag_bytes if self.connected or self.slot is not None else None


@dataclass
class Counters:
    """Counters over all sessions of the stream; only the ingest thread adds to them."""

    #: Changes of the stream, by action.
    changes: dict[Action, int] = field(default_factory=lambda: dict.fromkeys(Action, 0))
    #: Rows read by copies, by table.
    copied_rows: dict[str, int] = field(default_factory=dict)
    #: The results of the last re-copies, by table; the store keeps them too.
    last_recopies: dict[str, LastRecopy] = field(default_factory=dict)
    #: Re-copies that operators asked for and that have ended, by table and outcome (done,
    #: given_up).
    asked_recopies: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Rows that re-copies found to differ, by table.
    recopied_rows: dict[str, int] = field(default_factory=dict)
    #: Number of repairs because partitions had moved rows, by table.
    repaired: dict[str, int] = field(default_factory=dict)
    #: Number of times that damage on disk was found, by table.
    damages: dict[str, int] = field(default_factory=dict)
    #: Tables copied again.
    recopies: int = 0
    #: Unix time at which the last unplanned copy of a table was scheduled, by table.
    copied_again_at: dict[str, float] = field(default_factory=dict)
    #: Sessions that ended with an error.
    reconnects: int = 0
    #: Sessions whose stream ended at a fault in the WAL, by kind.
    stream_faults: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("decoding", "protocol"), 0)
    )
    #: Slots that had to be created again.
    slot_losses: int = 0
    #: Walsenders of earlier connections of ours that were ended.
    senders_ended: int = 0
    #: Messages in the WAL that have our prefix and weren't expected.
    strange_messages: int = 0
    #: The slot in the last catalog checks.
    slot: SlotWatch = field(default_factory=SlotWatch)

    def count_strange_message(self) -> None:
        """Count a message in the WAL that has our prefix and wasn't expected."""
        self.strange_messages += 1

    def count_damage(self, table: str) -> None:
        """Count damage on disk in this table's rows or journal."""
        self.damages[table] = self.damages.get(table, 0) + 1

    def count_recopy(self, table: str) -> None:
        """Count a table that is copied again."""
        self.recopies += 1
        self.note_copied_again(table)

    def note_copied_again(self, table: str) -> None:
        """Note the time at which another copy of a table was scheduled."""
        self.copied_again_at[table] = time.time()

    def count_repaired(self, table: str) -> None:
        """Count a repair of this table because rows moved with a partition."""
        self.repaired[table] = self.repaired.get(table, 0) + 1


class CommitInfo(NamedTuple):
    """A durable commit of the store."""

    #: Position up to which PostgreSQL's changes are durable.
    position: int
    #: The newest commit time up to that position, microseconds since 1970.
    time_us: int
    #: Ids of the incarnations that the commit changed.
    tables: frozenset[int]
