"""What the ingest tells of itself: plain values, made anew for each look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.slot.health import SlotWarning, SlotWatch
from laredo_fanout.slot.slot import Slot
from laredo_model.change import Action

if TYPE_CHECKING:
    from laredo_fanout.store.meta import LastRecopy


class CopyProgress(NamedTuple):
    """How far a copy is. ``rows`` were read (again ones included), of about ``estimated_rows``
    (None: unknown), at ``rows_per_second`` since this run began to read; ``seconds_left`` is None
    while nothing tells it."""

    phase: str
    rows: int
    estimated_rows: int | None
    ranges: int
    ranges_done: int
    waiting_for: tuple[int, ...]
    rows_per_second: float
    seconds_left: float | None

    @property
    def fraction(self) -> float:
        """How much of it is done, 0 to 1."""
        if self.estimated_rows:
            return min(1.0, self.rows / self.estimated_rows)
        return self.ranges_done / self.ranges if self.ranges else 0.0


@dataclass(frozen=True)
class TableStatus:
    """One table. ``phase`` says what is being done for it, in a word or two.

    ``copied_rows`` counts rows read by copies, again ones included;
    ``estimated_rows`` is PostgreSQL's estimate (None: unknown); ``waiting_for``
    are the pids whose transactions must end before the copy can begin;
    ``ranges_done`` of ``ranges`` are finished. ``copy`` is how its copy, or the re-copy
    that was asked for, gets on; ``recopying`` says that it is the latter.
    """

    phase: str = "waiting"
    error: str | None = None
    copied_rows: int = 0
    estimated_rows: int | None = None
    ranges: int = 0
    ranges_done: int = 0
    waiting_for: tuple[int, ...] = ()
    copy: CopyProgress | None = None
    recopying: bool = False
    last_recopy: LastRecopy | None = None
    recopied_rows: int = 0
    """Rows that re-copies found to differ."""
    repaired: int = 0
    """How often partitions had moved rows without a change in the stream."""
    altered_by: tuple[int, ...] = ()
    """Pids of whoever the last look saw that may be changing it (0: a prepared transaction): what
    is kept of it doesn't end beyond where it is verified until they are done."""


@dataclass(frozen=True)
class IngestStatus:
    """The source as a whole; sizes in bytes, times in seconds.

    ``lag_bytes`` is what the server has written beyond the durable position,
    ``lag_seconds`` how long ago the newest durable commit was made, 0 when
    nothing newer is known; while the stream isn't followed it grows. ``changes`` counts by
    action, ``recopies`` tables copied anew, ``reconnects`` streams that were cut,
    ``slot_losses`` slots that had to be made anew, ``senders_ended`` walsenders that an
    earlier connection of ours had left. ``slot`` is as it was at ``slot_seen_at`` (Unix time).
    """

    connected: bool = False
    phase: str = "starting"
    error: str | None = None
    position: int = 0
    lag_bytes: int = 0
    lag_seconds: float = 0.0
    wal_status: str | None = None
    safe_wal_bytes: int | None = None
    retained_bytes: int | None = None
    slot: Slot | None = None
    slot_seen_at: float | None = None
    slot_warnings: tuple[SlotWarning, ...] = ()
    slot_losses: int = 0
    senders_ended: int = 0
    strange_messages: int = 0
    """Messages in the WAL that have our prefix and that nobody awaited."""
    reconnects: int = 0
    recopies: int = 0
    changes: Mapping[str, int] = field(default_factory=dict)
    asked_recopies: Mapping[tuple[str, str], int] = field(default_factory=dict)
    copy_connections: int = 0
    copy_bytes: int = 0
    """Of copied rows that were read and aren't written yet."""
    tables: Mapping[str, TableStatus] = field(default_factory=dict)


@dataclass
class Counters:
    """What is counted over all sessions of the stream; the ingest thread alone adds."""

    changes: dict[Action, int] = field(default_factory=lambda: dict.fromkeys(Action, 0))
    copied_rows: dict[str, int] = field(default_factory=dict)
    last_recopies: dict[str, LastRecopy] = field(default_factory=dict)
    """How they ended, by table; the store keeps them too."""
    asked_recopies: dict[tuple[str, str], int] = field(default_factory=dict)
    """Re-copies that were asked for and have ended, by table and outcome (done, given_up)."""
    recopied_rows: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    """How often a table had to be put right, as partitions had moved rows."""
    recopies: int = 0
    reconnects: int = 0
    slot_losses: int = 0
    senders_ended: int = 0
    strange_messages: int = 0
    slot: SlotWatch = field(default_factory=SlotWatch)

    def count_strange_message(self) -> None:
        """A message in the WAL has our prefix, and nobody awaits it."""
        self.strange_messages += 1

    def count_recopy(self) -> None:
        """A table is copied anew."""
        self.recopies += 1

    def count_repaired(self, table: str) -> None:
        """Rows moved with a partition of this table."""
        self.repaired[table] = self.repaired.get(table, 0) + 1


class CommitInfo(NamedTuple):
    """A commit that is durable: everything up to ``position``; ``tables`` are the ids changed."""

    position: int
    time_us: int
    tables: frozenset[int]
