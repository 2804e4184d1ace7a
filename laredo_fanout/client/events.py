"""What a stream brings, whatever wire form it took.

Keys and lines are bytes, as everywhere. A position is the end of a
transaction's commit record; all changes of one transaction share it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

from laredo_model.change import Action
from laredo_model.column import Column
from laredo_model.history import History
from laredo_model.position import Position


class Mode(IntEnum):
    """How the server lets this client catch up; the numbers are the wire's."""

    FULL_SNAPSHOT = 1
    DELTA = 2
    DELTA_FROM_SNAPSHOT = 3
    REPLAY_ARCHIVE = 4


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first event of every stream.

    What a consumer holds of a transaction or a snapshot that wasn't finished
    belongs to the stream before: it must drop it, it is sent again from its
    start. ``position`` and ``sequence`` are the server's own at this moment, not yet
    this stream's; ``position`` and ``history`` are None when the server doesn't
    tell them. ``batches``: whether many rows travel in one message. ``boundary``: see
    :class:`Heartbeat`.
    """

    mode: Mode
    position: Position | None
    history: History | None
    columns: tuple[Column, ...]
    sequence: int
    oldest_sequence: int
    resume_from_sequence: int
    snapshot_id: str
    batches: bool
    boundary: Position | None = None

    @property
    def snapshot_follows(self) -> bool:
        """Whether a snapshot comes before the first change."""
        return self.mode is Mode.FULL_SNAPSHOT


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    """The rows that follow, up to SnapshotEnd, replace all that is known of the table.

    ``reason``: why the server sends it to a client that would have gone on; empty where it
    doesn't tell, or none asked to.
    """

    snapshot_id: str
    position: Position | None
    sequence: int
    row_count: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Some rows of a snapshot: ``lines[i]`` has the key ``keys[i]``."""

    keys: list[bytes]
    lines: list[bytes]


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """The snapshot is whole.

    ``rows`` and ``state_checksum`` (32 hex digits) are the whole table's at
    ``position``, whatever the filters; None when the server doesn't tell them.
    ``boundary``: see :class:`Heartbeat`.
    """

    position: Position | None
    sequence: int
    rows_sent: int
    rows: int | None
    state_checksum: str | None
    boundary: Position | None = None


class TransactionPart(NamedTuple):
    """The changes ``start <= i < stop`` of a batch: one transaction, or a part of one.

    ``time_us`` is its commit time in microseconds since 1970. ``last``: no change of it
    comes after these.
    """

    position: Position
    time_us: int
    start: int
    stop: int
    last: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes in commit order, column by column.

    The per-change columns are ``actions`` (one byte each, an
    :class:`~laredo_model.change.Action`), ``keys`` (empty for TRUNCATE),
    ``lines`` (the new row; empty for DELETE and TRUNCATE) and ``old_lines`` (empty
    where there was none; None unless they were asked for). The per-transaction
    columns are ``counts`` (how many of this batch's changes), ``positions``
    and ``times_us``. ``open``: the last transaction goes on in the next batch, which may bring
    nothing but its end (a count of 0).

    ``since``: where given, the first transaction stands for all that were committed after this
    position, up to its own. No state of a position in between can be made of what was sent.
    """

    first_sequence: int
    actions: bytes
    keys: list[bytes]
    lines: list[bytes]
    old_lines: list[bytes] | None
    counts: Sequence[int]
    positions: Sequence[int]
    times_us: Sequence[int]
    open: bool
    sequences: Sequence[int] | None = None
    since: Position | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last change; one less than the first's where there is none."""
        if self.sequences:
            return self.sequences[-1]
        return self.first_sequence + len(self.actions) - 1

    def sequence(self, index: int) -> int:
        """The sequence of change ``index``."""
        return self.sequences[index] if self.sequences else self.first_sequence + index

    def transactions(self) -> Iterator[TransactionPart]:
        """The transactions in it, in order; only the last can be unfinished."""
        start, final = 0, len(self.counts) - 1
        for number, count in enumerate(self.counts):
            yield TransactionPart(
                Position(self.positions[number]),
                self.times_us[number],
                start,
                start + count,
                not (self.open and number == final),
            )
            start += count

    def beyond(self, position: int) -> "Changes | None":
        """Those of later transactions only; None when nothing is left."""
        if not self.positions or self.positions[0] > position:
            return self
        if self.positions[-1] <= position:
            return None
        transactions = sum(1 for known in self.positions if known <= position)
        changes = sum(self.counts[:transactions])
        return Changes(
            self.sequence(changes),
            self.actions[changes:],
            self.keys[changes:],
            self.lines[changes:],
            None if self.old_lines is None else self.old_lines[changes:],
            self.counts[transactions:],
            self.positions[transactions:],
            self.times_us[transactions:],
            self.open,
            self.sequences[changes:] if self.sequences else None,
        )

    def __len__(self) -> int:
        return len(self.actions)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """The table's columns changed; a snapshot follows in the same stream."""

    old: tuple[Column, ...]
    new: tuple[Column, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Everything up to ``position`` was sent before it, whole transactions only.

    ``boundary``: up to there a look at PostgreSQL's catalog has shown that no statement rewrote
    values without a trace in the stream, so that what is kept of the table may end there. It
    is told when asked for (``SyncOptions.boundaries``) and by a server that knows it, else None.
    What it says holds for the rows before the next SnapshotBegin.
    """

    position: Position | None
    sequence: int
    server_time: datetime | None
    boundary: Position | None = None


@dataclass(frozen=True, slots=True)
class GoAway:
    """The server will close the stream; ``deadline`` is in UTC, None when it isn't told."""

    reason: str
    deadline: datetime | None


Event = (
    Handshake
    | SnapshotBegin
    | SnapshotRows
    | SnapshotEnd
    | Changes
    | SchemaChange
    | Heartbeat
    | GoAway
)

__all__ = [
    "Action",
    "Changes",
    "Event",
    "GoAway",
    "Handshake",
    "Heartbeat",
    "Mode",
    "SchemaChange",
    "SnapshotBegin",
    "SnapshotEnd",
    "SnapshotRows",
    "TransactionPart",
]
