"""The translation of wire messages to events: every part is checked, in both wire forms.

In the base form a message is one row or one change, and nothing marks the end of a transaction.
Changes are passed on at once, marked unfinished; the end follows when a change of a later position
or a heartbeat proves that it was reached.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TypeVar

import orjson
from google.protobuf import struct_pb2, timestamp_pb2

from laredo_fanout.client.errors import ProtocolViolation
from laredo_fanout.client.events import (
    Changes,
    Event,
    GoAway,
    Handshake,
    Heartbeat,
    HistoryOrigin,
    HolderState,
    Mode,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
)
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import key as key_
from laredo_model import position as position_
from laredo_model.column import Column, key_columns
from laredo_model.errors import BadLine, BadMessage, BadTime, ModelError
from laredo_model.line import Action
from laredo_model.position import Ancestor, History, Position

V = TypeVar("V")

_VALUES_A_PART = 500

Parts = Generator[None, None, list[V]]


def values(column: Sequence[V]) -> Parts[V]:
    """The list of the column's values; yields before each part of a long one."""
    if len(column) <= _VALUES_A_PART:
        return list(column)
    found: list[V] = []
    for start in range(0, len(column), _VALUES_A_PART):
        yield
        found += column[start : start + _VALUES_A_PART]
    return found


# Rows of the base wire form: converts a Struct back to a row's key and line.
#
# A line made here equals the table's own, except for what Struct loses (a number inside json is a
# double): columns in the table's order, numbers as PostgreSQL prints them, integers beyond 2^53
# from the strings that carry them.

_INTEGERS = frozenset({"int2", "int4", "int8", "oid", "smallint", "integer", "bigint"})
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")


class BaseRows:
    """Converts one table's Structs to keys and lines."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [
            (
                column.name,
                orjson.dumps(column.name) + b":",
                column.type.removeprefix("_") in _INTEGERS,
            )
            for column in columns
        ]
        self._key_names = [column.name for column in key_columns(columns)]

    def key_and_line(self, row: struct_pb2.Struct) -> tuple[bytes, bytes]:
        """The row's key (its whole line where the table has no key) and its line."""
        fields = row.fields
        found: dict[str, bytes] = {}
        pieces: list[bytes] = []
        for name, prefix, integer in self._columns:
            if name in fields:
                found[name] = fragment = _fragment(fields[name], integer=integer)
                pieces.append(prefix + fragment)
        if len(found) < len(fields):  # columns that the handshake didn't have
            for name in sorted(set(fields) - found.keys()):
                found[name] = fragment = _fragment(fields[name], integer=False)
                pieces.append(orjson.dumps(name) + b":" + fragment)
        line = b"{" + b",".join(pieces) + b"}"
        if not self._key_names:
            return line, line
        return key_.of_fragments([found.get(name, b"null") for name in self._key_names]), line


def _fragment(value: struct_pb2.Value, *, integer: bool) -> bytes:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        text = value.string_value
        return text.encode() if integer and _DIGITS.match(text) else orjson.dumps(text)
    if kind == "number_value":
        if not isfinite(value.number_value):
            raise BadLine(f"the number {value.number_value} isn't JSON")
        is_whole = integer and value.number_value.is_integer()
        return b"%d" % int(value.number_value) if is_whole else number_text(value.number_value)
    if kind == "bool_value":
        return b"true" if value.bool_value else b"false"
    if kind == "struct_value":
        members = value.struct_value.fields
        return (
            b"{"
            + b",".join(
                orjson.dumps(name) + b":" + _fragment(members[name], integer=False)
                for name in members
            )
            + b"}"
        )
    if kind == "list_value":
        items = value.list_value.values
        return b"[" + b",".join(_fragment(item, integer=integer) for item in items) + b"]"
    return b"null"


def number_text(number: float) -> bytes:
    """A double as PostgreSQL prints it: shortest digits, an exponent from 1e15 on."""
    text = repr(number)
    if 1e15 <= abs(number) < 1e16:
        sign, digits = "-" if number < 0 else "", text.lstrip("-").replace(".", "")
        rest = digits[1:].rstrip("0")
        return f"{sign}{digits[0]}{'.' + rest if rest else ''}e+15".encode()
    return text.removesuffix(".0").encode()


# Parts of wire messages, each checked against the contract before it is used.

_EVERY_ACTION = bytes(Action)
_WITH_LINE = bytes((Action.INSERT, Action.UPDATE))
_HAS_LINE = bytes(action not in (Action.DELETE, Action.TRUNCATE) for action in range(256))
CHECKSUM = re.compile(r"[0-9a-f]{32}\Z")
_MOST = 1 << 62
"""Limit of sequences and numbers of rows, so that sums stay within 64 bits."""
LATEST_US = 253_402_300_799_999_999
"""9999-12-31, where datetime ends; no transaction was committed before 1970."""


def check_lengths(batch: wire.ChangeBatch, *, want_old: bool) -> None:
    """:raises BadMessage: if the columns of a batch don't fit each other."""
    many = len(batch.actions)
    if (
        len(batch.keys) != many
        or len(batch.lines) != many
        or (want_old and len(batch.old_lines) != many)
        or len(batch.sequences) not in {0, many}
        or not len(batch.counts) == len(batch.positions) == len(batch.times_us)
        or sum(batch.counts) != many
    ):
        raise BadMessage(
            f"the columns of the change batch at sequence {batch.first_sequence} differ in length"
        )


def check_rows(actions: bytes, keys: list[bytes], lines: list[bytes]) -> None:
    """Check each change's key and line; an empty key is allowed, as that of an empty text.

    :raises BadMessage: if an action is unknown, lacks its line, or has a key or line too many.
    """
    if actions.translate(None, _EVERY_ACTION):
        raise BadMessage("a change has an unknown action")
    if not actions.strip(_WITH_LINE) and all(lines):
        return
    if any(key for action, key in zip(actions, keys, strict=True) if action == Action.TRUNCATE):
        raise BadMessage("a TRUNCATE has a key")
    if bytes(map(bool, lines)) != actions.translate(_HAS_LINE):
        raise BadMessage("a change has no line, or a DELETE or TRUNCATE has one")


def check_sequences(first: int, sequences: list[int]) -> None:
    """:raises BadMessage: if they don't ascend, or leave no room for later ones."""
    for number in (first, *sequences[:1], *sequences[-1:]):
        count(number, "a change's sequence")
    if sequences != sorted(set(sequences)):
        raise BadMessage(f"the sequences of the change batch at {first} don't ascend")


def checked_columns(
    sent: Iterable[wire.ColumnDefinition], *, described: bool
) -> tuple[Column, ...]:
    """A table's columns; ``described`` is False for the base form, whose columns may be incomplete.

    :raises BadMessage: if they can't be one table's.
    """
    found = _columns(sent)
    if described:
        names = {column.name for column in found}
        ordinals = sorted(each.key_ordinal for each in found if each.key_ordinal is not None)
        if not found or "" in names or len(names) != len(found):
            raise BadMessage("a table's columns have no names, or one name twice")
        if ordinals != list(range(1, len(ordinals) + 1)):
            raise BadMessage(f"a key's columns have the numbers {ordinals}")
    return found


def count(number: int, name: str) -> int:
    """The number.

    :raises BadMessage: if it is negative, or too large.
    """
    if not 0 <= number < _MOST:
        raise BadMessage(f"{name} is {number}")
    return number


def _columns(definitions: Iterable[wire.ColumnDefinition]) -> tuple[Column, ...]:
    return tuple(
        Column(
            column.column_name,
            column.data_type,
            column.type_modifier,
            not column.not_null,
            column.ordinal_position,
            column.primary_key_ordinal or 1 if column.is_primary_key else None,
        )
        for column in sorted(definitions, key=lambda column: column.ordinal_position)
    )


def origin(sent: wire.SyncHandshake) -> HistoryOrigin:
    """Origin of a history, for a relay."""
    return HistoryOrigin(
        tuple(
            Ancestor(position_.parse_history(each.history), position_.parse(each.until))
            for each in sent.ancestors
        ),
        sent.history_reason,
        checked_position(sent.history_since) or position_.ZERO,
    )


def holder_state(sent: wire.SyncHandshake | wire.SnapshotBegin) -> HolderState | None:
    """State of the holder, for a standby; None where it was not sent."""
    if not sent.HasField("holder"):
        return None
    state = sent.holder
    return HolderState(count(state.incarnation, "incarnation"), state.definition, state.source)


def checked_position(text: str) -> Position | None:
    """A position; None where none was sent."""
    return position_.parse(text) if text else None


def history(text: str) -> History | None:
    """A history; None where none was sent."""
    return position_.parse_history(text) if text else None


def time(stamp: timestamp_pb2.Timestamp) -> datetime:
    """A time.

    :raises BadTime: if it is out of range.
    """
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError) as wrong:
        raise BadTime(str(wrong)) from wrong


def microseconds(stamp: timestamp_pb2.Timestamp) -> int:
    """A commit time in microseconds since 1970.

    :raises BadTime: if it is out of range.
    """
    microseconds = stamp.seconds * 1_000_000 + stamp.nanos // 1000
    if not 0 <= microseconds <= LATEST_US:
        raise BadTime(f"{stamp.seconds} s and {stamp.nanos} ns after 1970 is no time")
    return microseconds


BATCH_CAPABILITY = "batch/json.v1"
BOUNDARY_CAPABILITY = "boundary.v1"
RELAY_CAPABILITY = "relay.v1"
STANDBY_CAPABILITY = "standby.v1"

_BASE_ROWS_AT_ONCE = 500
_MODES = frozenset(int(mode) for mode in Mode)
_ACTIONS = {action.name: action for action in Action}


class Translator:
    """Translates one stream's messages to events, in order."""

    def __init__(self, server: str, *, want_old: bool) -> None:
        self._server = server
        self._want_old = want_old
        self._batches = False
        self._awaits_snapshot = False
        self._rows = 0
        self._open_position: int | None = None
        self._handshaken = False
        self._base = BaseRows(())
        self._keys: list[bytes] = []
        self._lines: list[bytes] = []
        self._unfinished: Changes | None = None
        self._in_snapshot = False
        self._by_kind: dict[str, Callable[[Any], Iterable[Event | None]]] = {
            "snapshot_batch": self._snapshot_batch,
            "change_batch": self._change_batch,
            "handshake": self._handshake,
            "snapshot_begin": self._snapshot_begin,
            "snapshot_row": self._snapshot_row,
            "snapshot_end": self._snapshot_end,
            "journal_entry": self._journal_entry,
            "schema_change": self._schema_change,
            "heartbeat": self._heartbeat,
            "go_away": self._go_away,
        }

    def events(self, message: wire.SyncResponse) -> Iterator[Event | None]:
        """The events of ``message``; none for a kind of message that this client doesn't know.
        None between two events: other tasks may run.

        :raises ProtocolViolation: if it breaks the wire contract.
        """
        kind = message.WhichOneof("message")
        if kind is None:
            return
        if not self._handshaken and kind != "handshake":
            raise self._violation(f"sent {kind} before the handshake")
        try:
            yield from self._by_kind[kind](getattr(message, kind))
        except ModelError as wrong:
            raise self._violation(f"in {kind}: {wrong}") from wrong

    def _snapshot_batch(self, batch: wire.SnapshotBatch) -> Iterator[Event | None]:
        self._within_snapshot("rows")
        if len(batch.keys) != len(batch.lines):
            raise self._violation(
                f"a snapshot batch has {len(batch.keys)} keys and {len(batch.lines)} lines"
            )
        keys = yield from values(batch.keys)
        lines = yield from values(batch.lines)
        if not all(lines):
            raise self._violation("a snapshot has a row without line")
        self._rows += len(keys)
        yield SnapshotRows(keys, lines)

    def _change_batch(self, batch: wire.ChangeBatch) -> Iterator[Event | None]:
        self._between_snapshots()
        check_lengths(batch, want_old=self._want_old)
        keys = yield from values(batch.keys)
        lines = yield from values(batch.lines)
        old_lines = (yield from values(batch.old_lines)) if self._want_old else None
        counts = yield from values(batch.counts)
        positions = yield from values(batch.positions)
        times_us = yield from values(batch.times_us)
        sequences = yield from values(batch.sequences)
        check_rows(batch.actions, keys, lines)
        self._check_transactions(batch, positions, times_us)
        check_sequences(batch.first_sequence, sequences)
        since = Position(batch.since_position) if batch.since_position else None
        yield Changes(
            batch.first_sequence,
            batch.actions,
            keys,
            lines,
            old_lines,
            counts,
            positions,
            times_us,
            batch.open,
            sequences or None,
            since,
        )

    def _within_snapshot(self, what: str) -> None:
        if not self._in_snapshot:
            raise self._violation(f"{what} of a snapshot that hasn't begun")

    def _between_snapshots(self) -> None:
        if self._in_snapshot or self._awaits_snapshot:
            raise self._violation("changes before the end of the snapshot")

    def _check_transactions(
        self, batch: wire.ChangeBatch, positions: list[int], times_us: list[int]
    ) -> None:
        """:raises ProtocolViolation: if they can't follow one another, or the batch before."""
        first = batch.first_sequence
        if batch.open and not positions:
            raise self._violation(f"the change batch at {first} continues no transaction")
        if positions and self._open_position not in (None, positions[0]):
            raise self._violation(f"another transaction begins at {first} within one that is open")
        if positions != sorted(positions):
            raise self._violation(f"the positions of the change batch at {first} aren't in order")
        if positions and batch.since_position >= max(1, positions[0]):
            raise self._violation(f"the change batch at {first} replaces nothing before it")
        if times_us and not 0 <= min(times_us) <= max(times_us) <= LATEST_US:
            raise self._violation(f"a commit time of the change batch at {first} is no time")
        if positions:
            self._open_position = positions[-1] if batch.open else None

    def _violation(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(self._server, what)

    def _handshake(self, sent: wire.SyncHandshake) -> Iterable[Event]:
        if self._handshaken:
            raise self._violation("sent a second handshake")
        if sent.mode not in _MODES:
            raise self._violation(f"offers sync mode {sent.mode}, unknown here")
        mode = Mode(sent.mode)
        self._handshaken = True
        self._batches = BATCH_CAPABILITY in sent.capabilities
        self._awaits_snapshot = self._batches and mode is Mode.FULL_SNAPSHOT
        columns = checked_columns(sent.columns, described=self._batches)
        self._base = BaseRows(columns)
        return (
            Handshake(
                mode,
                checked_position(sent.source_position),
                history(sent.history),
                columns,
                count(sent.server_current_sequence, "server_current_sequence"),
                count(sent.journal_oldest_sequence, "journal_oldest_sequence"),
                count(sent.resume_from_sequence, "resume_from_sequence"),
                sent.snapshot_id,
                self._batches,
                checked_position(sent.boundary_position),
                origin(sent) if RELAY_CAPABILITY in sent.capabilities else None,
                holder_state(sent),
            ),
        )

    def _snapshot_begin(self, begin: wire.SnapshotBegin) -> Iterable[Event]:
        self._unfinished = None
        self._open_position = None
        self._in_snapshot = True
        self._rows = 0
        self._keys, self._lines = [], []
        return (
            SnapshotBegin(
                begin.snapshot_id,
                checked_position(begin.source_position),
                count(begin.sequence, "sequence"),
                count(begin.row_count, "row_count"),
                begin.reason,
                holder_state(begin),
            ),
        )

    def _snapshot_row(self, row: wire.SnapshotRow) -> Iterable[Event]:
        self._within_snapshot("a row")
        key, line = self._base.key_and_line(row.row)
        self._keys.append(key)
        self._lines.append(line)
        return self._gathered_rows() if len(self._keys) >= _BASE_ROWS_AT_ONCE else ()

    def _gathered_rows(self) -> list[Event]:
        if not self._keys:
            return []
        rows = SnapshotRows(self._keys, self._lines)
        self._keys, self._lines = [], []
        return [rows]

    def _snapshot_end(self, end: wire.SnapshotEnd) -> Iterable[Event]:
        is_extended = bool(end.state_checksum)
        sequence = count(end.sequence, "sequence")
        if not (self._in_snapshot or self._awaits_snapshot or is_extended):
            # The end of a catch-up in which nothing was missed.
            return (Heartbeat(None, sequence, None, None),)
        self._within_snapshot("the end")
        if is_extended and not CHECKSUM.match(end.state_checksum):
            raise self._violation(f"a snapshot has the checksum {end.state_checksum[:80]!r}")
        if self._batches and (not end.source_position or end.rows_sent != self._rows):
            raise self._violation(
                f"a snapshot of {end.rows_sent} rows at {end.source_position or 'no position'}, of"
                f" which {self._rows} came"
            )
        self._in_snapshot = self._awaits_snapshot = False
        return [
            *self._gathered_rows(),
            SnapshotEnd(
                checked_position(end.source_position),
                sequence,
                count(end.rows_sent, "rows_sent"),
                count(end.rows, "rows") if is_extended else None,
                end.state_checksum if is_extended else None,
                checked_position(end.boundary_position),
            ),
        ]

    def _journal_entry(self, entry: wire.ReplicationJournalEntry) -> Iterable[Event]:
        if entry.action not in _ACTIONS:
            raise self._violation(f"entry {entry.sequence} has the action {entry.action!r}")
        self._between_snapshots()
        action = _ACTIONS[entry.action]
        position = checked_position(entry.source_position) or position_.ZERO
        ended: list[Event] = []
        if self._unfinished is not None and self._unfinished.positions[0] != position:
            ended = self._end_of_transaction()
        change = self._one_change(entry, action, position)
        self._unfinished = change
        return [*ended, change]

    def _one_change(
        self, entry: wire.ReplicationJournalEntry, action: Action, position: Position
    ) -> Changes:
        key = new = old = b""
        if entry.HasField("old_values"):
            key, old = self._base.key_and_line(entry.old_values)
        if action in (Action.INSERT, Action.UPDATE):
            key, new = self._base.key_and_line(entry.new_values)
        if action is Action.TRUNCATE:
            key = old = b""
        return Changes(
            count(entry.sequence, "sequence"),
            bytes((action,)),
            [key],
            [new],
            [old] if self._want_old else None,
            [1],
            [position],
            [microseconds(entry.timestamp)],
            True,
        )

    def _end_of_transaction(self) -> list[Event]:
        ended = self._unfinished
        if ended is None:
            return []
        self._unfinished = None
        no_old: list[bytes] | None = [] if self._want_old else None
        return [
            Changes(
                ended.first_sequence + 1,
                b"",
                [],
                [],
                no_old,
                [0],
                ended.positions,
                ended.times_us,
                False,
            )
        ]

    def _schema_change(self, change: wire.SchemaChangeNotification) -> Iterable[Event]:
        new = checked_columns(change.new_columns, described=self._batches)
        self._base = BaseRows(new)
        self._awaits_snapshot = self._batches
        return [
            *self._end_of_transaction(),
            SchemaChange(
                checked_columns(change.old_columns, described=self._batches),
                new,
                count(change.sequence, "sequence"),
            ),
        ]

    def _heartbeat(self, beat: wire.Heartbeat) -> Iterable[Event]:
        ended: list[Event] = []
        position = checked_position(beat.source_position)
        unfinished = self._unfinished
        # A base server may send the sequence of its journal, which may be ahead of this stream.
        if unfinished is not None and beat.current_sequence <= unfinished.first_sequence:
            ended = self._end_of_transaction()
        server_time = time(beat.server_time) if beat.HasField("server_time") else None
        boundary = checked_position(beat.boundary_position)
        return [
            *ended,
            Heartbeat(
                position,
                count(beat.current_sequence, "current_sequence"),
                server_time,
                boundary,
            ),
        ]

    def _go_away(self, notice: wire.GoAway) -> Iterable[Event]:
        milliseconds = notice.drain_deadline_unix_ms
        if milliseconds > LATEST_US // 1000:
            raise BadTime(f"{milliseconds} ms after 1970 is no time")
        deadline = datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None
        return (GoAway(notice.reason, deadline),)
