"""The ingest's status and counters, as /status and /metrics show them: plain values."""

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

    #: What is being done for it, in a word or two.
    phase: str
    #: Rows read, those that were read again included.
    rows: int
    #: PostgreSQL's estimate of the table's rows; None: unknown.
    estimated_rows: int | None
    #: Key ranges that it is read in.
    ranges: int
    #: Ranges that are finished.
    ranges_done: int
    #: Pids whose transactions must end before the copy can begin.
    waiting_for: tuple[int, ...]
    #: Since this session began to read.
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
    """One table, as /status shows it."""

    #: What is being done for it, in a word or two.
    phase: str = "waiting"
    #: Why it can't be replicated, if it can't.
    error: str | None = None
    #: Rows read by copies, those that were read again included.
    copied_rows: int = 0
    #: PostgreSQL's estimate of the table's rows; None: unknown.
    estimated_rows: int | None = None
    #: Key ranges that its copy is read in.
    ranges: int = 0
    #: Ranges that are finished.
    ranges_done: int = 0
    #: Pids whose transactions must end before the copy can begin.
    waiting_for: tuple[int, ...] = ()
    #: How far its copy, or the re-copy that an operator asked for, is.
    copy: CopyProgress | None = None
    #: Whether that is a re-copy.
    recopying: bool = False
    #: How its last re-copy ended.
    last_recopy: LastRecopy | None = None
    #: Rows that re-copies found to differ.
    recopied_rows: int = 0
    #: How often partitions had moved rows without a change in the stream.
    repaired: int = 0
    #: How often damage on disk was found in its rows or journal.
    damages: int = 0
    #: Pids that held a lock for DDL on it in the last catalog snapshot (0: a prepared
    #: transaction): until they are done the verified position doesn't advance.
    altered_by: tuple[int, ...] = ()


class FaultStatus(NamedTuple):
    """A place of the WAL that the stream doesn't get past."""

    #: decoding or protocol.
    kind: str
    #: The error, with its place and what to do.
    text: str
    #: The store's position: the fault lies after it.
    position: int
    #: Sessions in a row that ended there.
    attempts: int
    #: Unix time of the first.
    since: float

    def shown(self) -> dict[str, object]:
        """The JSON of /status."""
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="seconds")
        return {
            **self._asdict(),
            "position": position_.text(self.position),
            "since": since.replace("+00:00", "Z"),
        }


@dataclass(frozen=True)
class IngestStatus:
    """The source as a whole; sizes in bytes, times in seconds."""

    #: Whether the stream is followed just now.
    connected: bool = False
    #: What is being done, in a few words.
    phase: str = "starting"
    #: Why the stream isn't followed, or the side connection fails.
    error: str | None = None
    #: The store's: everything that PostgreSQL committed up to here is durable.
    position: int = 0
    #: WAL that the server has written beyond ``position``.
    lag_bytes: int = 0
    #: How long ago the newest durable transaction was committed; 0 when nothing newer is known.
    #: It grows while the stream isn't followed.
    lag_seconds: float = 0.0
    #: The slot's, as pg_replication_slots says.
    wal_status: str | None = None
    #: WAL that may be written before the slot is lost; None: without a limit.
    safe_wal_bytes: int | None = None
    #: WAL that the slot keeps.
    retained_bytes: int | None = None
    #: The slot as it was at ``slot_seen_at``.
    slot: Slot | None = None
    #: Unix time.
    slot_seen_at: float | None = None
    #: What an operator should do something about.
    slot_warnings: tuple[SlotWarning, ...] = ()
    #: Slots that had to be created again.
    slot_losses: int = 0
    #: Walsenders that an earlier connection of ours had left.
    senders_ended: int = 0
    #: Messages in the WAL that have our prefix and that nobody awaited.
    strange_messages: int = 0
    #: Sessions that ended with an error.
    reconnects: int = 0
    #: Those of them that will end there again, by kind (decoding, protocol).
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
    #: Of copied rows that were read and aren't written yet.
    copy_bytes: int = 0
    #: By qualified name.
    tables: Mapping[str, ReplicatedTableStatus] = field(default_factory=dict)

    @property
    def known_lag_bytes(self) -> int | None:
        """``lag_bytes``; None while the source can't be asked how far it has written."""
        return self.lag_bytes if self.connected or self.slot is not None else None


@dataclass
class Counters:
    """Counters over all sessions of the stream; only the ingest thread adds to them."""

    #: Changes of the stream, by action.
    changes: dict[Action, int] = field(default_factory=lambda: dict.fromkeys(Action, 0))
    #: Rows read by copies, by table.
    copied_rows: dict[str, int] = field(default_factory=dict)
    #: How they ended, by table; the store keeps them too.
    last_recopies: dict[str, LastRecopy] = field(default_factory=dict)
    #: Re-copies that operators asked for and that have ended, by table and outcome (done,
    #: given_up).
    asked_recopies: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Rows that re-copies found to differ, by table.
    recopied_rows: dict[str, int] = field(default_factory=dict)
    #: How often a table had to be repaired, as partitions had moved rows.
    repaired: dict[str, int] = field(default_factory=dict)
    #: How often damage on disk was found, by table.
    damages: dict[str, int] = field(default_factory=dict)
    #: Tables copied again.
    recopies: int = 0
    #: Unix time at which the last unplanned copy of a table was scheduled, by table.
    copied_again_at: dict[str, float] = field(default_factory=dict)
    #: Sessions that ended with an error.
    reconnects: int = 0
    #: Sessions whose stream ended at a fault of the WAL, by kind.
    stream_faults: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("decoding", "protocol"), 0)
    )
    #: Slots that had to be created again.
    slot_losses: int = 0
    #: Walsenders that an earlier connection of ours had left.
    senders_ended: int = 0
    #: Messages in the WAL that have our prefix and that nobody awaited.
    strange_messages: int = 0
    #: The slot, as catalog checks show it.
    slot: SlotWatch = field(default_factory=SlotWatch)

    def count_strange_message(self) -> None:
        """A message in the WAL has our prefix, and nobody awaits it."""
        self.strange_messages += 1

    def count_damage(self, table: str) -> None:
        """Damage on disk was found in this table's rows or journal."""
        self.damages[table] = self.damages.get(table, 0) + 1

    def count_recopy(self, table: str) -> None:
        """A table is copied again."""
        self.recopies += 1
        self.note_copied_again(table)

    def note_copied_again(self, table: str) -> None:
        """A copy of a table that was copied before is scheduled."""
        self.copied_again_at[table] = time.time()

    def count_repaired(self, table: str) -> None:
        """Rows moved with a partition of this table."""
        self.repaired[table] = self.repaired.get(table, 0) + 1


class CommitInfo(NamedTuple):
    """A commit of the store that is durable."""

    #: Everything that PostgreSQL committed up to here is in it.
    position: int
    #: The newest commit time up to there, microseconds since 1970.
    time_us: int
    #: Ids of the incarnations that it changed.
    tables: frozenset[int]
