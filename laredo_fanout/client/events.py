"""Events of a stream, whatever its wire form, and filters that the server applies to it.

Keys and lines are bytes: a line is a row as JSON. A position is the end of a
transaction's commit record; all changes of one transaction share it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

from google.protobuf import struct_pb2

from laredo_fanout.client.errors import BadField
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.column import Column
from laredo_model.position import Ancestor, History, Lineage, Position


class Mode(IntEnum):
    """The server's way of catching this client up; the numbers are those of the wire."""

    FULL_SNAPSHOT = 1
    DELTA = 2
    DELTA_FROM_SNAPSHOT = 3
    REPLAY_ARCHIVE = 4


@dataclass(frozen=True, slots=True)
class HolderState:
    """State of the holder that a standby needs to go on from the slot; JSON of the server."""

    #: The table's incarnation, a number of the server's own.
    incarnation: int
    definition: bytes
    source: bytes


@dataclass(frozen=True, slots=True)
class HistoryOrigin:
    """Origin of a server's history, for a relay that follows the server."""

    #: The histories that it goes on from, oldest first.
    ancestors: tuple[Ancestor, ...]
    #: Why a new history was begun; empty for the first one.
    because: str
    #: The position at which the history was begun.
    since: Position


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first event of every stream.

    A consumer must drop an unfinished transaction or snapshot of the stream before: it is sent
    again from its start.
    """

    #: The server's way of catching this client up.
    mode: Mode
    #: The server's position at this moment, which this stream may still have to reach; None: it
    #: didn't send one.
    position: Position | None
    #: The history of the server's positions; None: it didn't send one.
    history: History | None
    columns: tuple[Column, ...]
    #: The server's sequence at this moment, which this stream may still have to reach.
    sequence: int
    #: The oldest entry of its journal.
    oldest_sequence: int
    #: The first entry that will be sent.
    resume_from_sequence: int
    snapshot_id: str
    #: Whether many rows travel in one message.
    batches: bool
    #: The table's verified position; see :class:`Heartbeat`.
    boundary: Position | None = None
    #: On request (``SyncOptions.relay``); None: the server doesn't know relays.
    origin: HistoryOrigin | None = None
    #: On request (``SyncOptions.standby``).
    holder: HolderState | None = None

    @property
    def snapshot_follows(self) -> bool:
        """True if a snapshot comes before the first change."""
        return self.mode is Mode.FULL_SNAPSHOT

    def holds(self, history: History | None, position: int) -> bool:
        """True if ``position`` of ``history`` means the same in the server's history."""
        if history is None or self.history is None:
            return False
        ancestors = self.origin.ancestors if self.origin is not None else ()
        return Lineage(self.history, ancestors).holds(history, position)


@dataclass(frozen=True, slots=True)
class SnapshotBegin:
    """The beginning of a snapshot: its rows, up to SnapshotEnd, replace all that the client has."""

    snapshot_id: str
    position: Position | None
    sequence: int
    row_count: int
    #: Reason for a snapshot to a client that asked to resume; empty if the server sent none, or the
    #: client didn't ask to resume.
    reason: str = ""
    #: On request (``SyncOptions.standby``): of these rows.
    holder: HolderState | None = None


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Some rows of a snapshot."""

    keys: list[bytes]
    #: ``lines[i]`` is the row with the key ``keys[i]``.
    lines: list[bytes]


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """The end of a snapshot: all its rows were sent."""

    position: Position | None
    sequence: int
    rows_sent: int
    #: Number of the whole table's rows at ``position``, whatever the filters; None: the server
    #: didn't send it.
    rows: int | None
    #: Checksum of the whole table at ``position``, 32 hex digits; None: the server didn't send it.
    state_checksum: str | None
    #: The table's verified position; see :class:`Heartbeat`.
    boundary: Position | None = None


class TransactionPart(NamedTuple):
    """A transaction, or a part of one, in a batch of changes."""

    position: Position
    #: The commit time in microseconds since 1970.
    time_us: int
    #: The index of its first change in the batch.
    start: int
    #: The index after its last change.
    stop: int
    #: Whether the transaction ends here.
    last: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """A batch of changes in commit order, column by column."""

    #: The journal sequence of the first change.
    first_sequence: int
    #: One byte for each change: an :class:`~laredo_model.line.Action`.
    actions: bytes
    #: The key of each change; empty for TRUNCATE.
    keys: list[bytes]
    #: The new rows; empty for DELETE and TRUNCATE.
    lines: list[bytes]
    #: The old rows, empty where there was none; None unless they were asked for.
    old_lines: list[bytes] | None
    #: For each transaction, the number of its changes in this batch.
    counts: Sequence[int]
    #: The position of each transaction.
    positions: Sequence[int]
    #: The commit time of each transaction, in microseconds since 1970.
    times_us: Sequence[int]
    #: Whether the last transaction continues in the next batch, which may contain nothing but its
    #: end (a count of 0).
    open: bool
    #: The sequence of each change, where they aren't consecutive.
    sequences: Sequence[int] | None = None
    #: If given, the first transaction replaces all that were committed after this position, up to
    #: its own. No state at a position in between can be computed from it.
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
        """The batch's transactions, in order; only the last can be unfinished."""
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
        """The changes of transactions after ``position`` only; None when nothing is left."""
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
    """A change of the table's columns; a snapshot follows in the same stream."""

    old: tuple[Column, ...]
    new: tuple[Column, ...]
    sequence: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The position of the stream: everything up to it was sent before, whole transactions only."""

    position: Position | None
    sequence: int
    server_time: datetime | None
    #: The table's verified position, on request (``SyncOptions.boundaries``): up to there no silent
    #: DDL has changed rows, so an artifact may end there. It is valid for the rows before the next
    #: SnapshotBegin. None: the server didn't send one.
    boundary: Position | None = None


@dataclass(frozen=True, slots=True)
class GoAway:
    """The server is shutting down: it will close the stream, and the client should reconnect."""

    reason: str
    #: The time in UTC at which the server closes the stream; None: it didn't send one.
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

# Filters: conditions on rows that the server applies before it sends.
#
# The conditions of a client are ANDed; NULL never matches; a number written in digits equals the
# same number as a string. A row that an update moves into or out of the filter arrives as INSERT or
# DELETE.

Scalar = str | int | float | bool

_EXACT_IN_DOUBLE = 2**53


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one column; make it with :func:`equals`, :func:`prefix` or :func:`is_in`."""

    field: str
    kind: str
    values: tuple[Scalar, ...]

    def to_wire(self) -> wire.FieldPredicate:
        """The condition as SyncRequest carries it."""
        if self.kind == "prefix":
            return wire.FieldPredicate(field=self.field, prefix=str(self.values[0]))
        values = [_to_value(value) for value in self.values]
        if self.kind == "equals":
            return wire.FieldPredicate(field=self.field, equals=values[0])
        # "in" is a keyword, so the field has no attribute of that name.
        predicate = wire.FieldPredicate(field=self.field)
        getattr(predicate, "in").values.extend(values)
        getattr(predicate, "in").SetInParent()
        return predicate

    def to_json(self) -> list[object]:
        """The condition as the local snapshot records it, to notice other filters."""
        return [self.field, self.kind, [_as_text(value) for value in self.values]]


def equals(field: str, value: Scalar) -> Filter:
    """Rows whose ``field`` is ``value``."""
    return Filter(_name(field), "equals", (_scalar(field, value),))


def prefix(field: str, value: str) -> Filter:
    """Rows whose ``field``, a string, starts with ``value``."""
    if not isinstance(value, str):
        raise BadField(f"the prefix for column {field!r} must be a string, not {value!r}")
    return Filter(_name(field), "prefix", (value,))


def is_in(field: str, values: Iterable[Scalar]) -> Filter:
    """Rows whose ``field`` is one of ``values``; an empty list matches nothing."""
    if isinstance(values, str):
        raise BadField(f"is_in({field!r}, ...) wants a list of values, not the string {values!r}")
    return Filter(_name(field), "in", tuple(_scalar(field, value) for value in values))


def _name(field: str) -> str:
    if not isinstance(field, str) or not field:
        raise BadField(f"a filter needs a column's name, not {field!r}")
    return field


def _scalar(field: str, value: Scalar) -> Scalar:
    if not isinstance(value, str | int | float | bool):
        raise BadField(
            f"a filter on column {field!r} compares with a string, number or boolean, not {value!r}"
        )
    return value


def _to_value(value: Scalar) -> struct_pb2.Value:
    if isinstance(value, bool):
        return struct_pb2.Value(bool_value=value)
    if isinstance(value, str):
        return struct_pb2.Value(string_value=value)
    if isinstance(value, int) and abs(value) > _EXACT_IN_DOUBLE:
        return struct_pb2.Value(string_value=str(value))
    return struct_pb2.Value(number_value=value)


def _as_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
