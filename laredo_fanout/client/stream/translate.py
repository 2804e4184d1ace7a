"""Translates wire messages to events, for both wire forms.

In the base form a message is one row or one change and nothing says where a
transaction ends. Changes are passed on at once, marked unfinished; the
end follows when a change of a later position or a heartbeat proves it.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from google.protobuf import timestamp_pb2

from laredo_fanout.client.errors import ProtocolViolation
from laredo_fanout.client.events import (
    Changes,
    Event,
    GoAway,
    Handshake,
    Heartbeat,
    HistoryOrigin,
    Mode,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
)
from laredo_fanout.client.stream.base_form import BaseRows
from laredo_fanout.client.stream.columns import values
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import history as history_
from laredo_model import position as position_
from laredo_model.change import Action
from laredo_model.column import Column
from laredo_model.errors import ModelError
from laredo_model.history import Ancestor, History
from laredo_model.position import Position

BATCH_CAPABILITY = "batch/json.v1"
BOUNDARY_CAPABILITY = "boundary.v1"
RELAY_CAPABILITY = "relay.v1"

_BASE_ROWS_AT_ONCE = 500
_MODES = frozenset(int(mode) for mode in Mode)
_ACTIONS = {action.name: action for action in Action}


class Translator:
    """Translates one stream's messages to events, in order."""

    def __init__(self, server: str, *, want_old: bool) -> None:
        self._server = server
        self._want_old = want_old
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
        """The events of ``message``; none for a kind of message that is newer than this client.
        None between them: work was done, and other tasks may run.

        :raises ProtocolViolation: if it breaks the wire contract.
        """
        kind = message.WhichOneof("message")
        if kind is None:
            return
        if not self._handshaken and kind != "handshake":
            raise ProtocolViolation(self._server, f"sent {kind} before the handshake")
        try:
            yield from self._by_kind[kind](getattr(message, kind))
        except ModelError as wrong:
            raise ProtocolViolation(self._server, f"in {kind}: {wrong}") from wrong

    def _snapshot_batch(self, batch: wire.SnapshotBatch) -> Iterator[Event | None]:
        if len(batch.keys) != len(batch.lines):
            raise ProtocolViolation(
                self._server,
                f"a snapshot batch has {len(batch.keys)} keys and {len(batch.lines)} lines",
            )
        keys = yield from values(batch.keys)
        lines = yield from values(batch.lines)
        yield SnapshotRows(keys, lines)

    def _change_batch(self, batch: wire.ChangeBatch) -> Iterator[Event | None]:
        self._check_columns(batch)
        keys = yield from values(batch.keys)
        lines = yield from values(batch.lines)
        old_lines = (yield from values(batch.old_lines)) if self._want_old else None
        counts = yield from values(batch.counts)
        positions = yield from values(batch.positions)
        times_us = yield from values(batch.times_us)
        sequences = yield from values(batch.sequences)
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

    def _check_columns(self, batch: wire.ChangeBatch) -> None:
        many = len(batch.actions)
        if (
            len(batch.keys) != many
            or len(batch.lines) != many
            or (self._want_old and len(batch.old_lines) != many)
            or len(batch.sequences) not in {0, many}
            or not len(batch.counts) == len(batch.positions) == len(batch.times_us)
            or sum(batch.counts) != many
        ):
            raise ProtocolViolation(
                self._server,
                f"the columns of the change batch at sequence {batch.first_sequence} "
                "differ in length",
            )

    def _handshake(self, sent: wire.SyncHandshake) -> Iterable[Event]:
        if self._handshaken:
            raise ProtocolViolation(self._server, "sent a second handshake")
        if sent.mode not in _MODES:
            raise ProtocolViolation(self._server, f"offers sync mode {sent.mode}, unknown here")
        self._handshaken = True
        columns = _columns(sent.columns)
        self._base = BaseRows(columns)
        return (
            Handshake(
                Mode(sent.mode),
                _position(sent.source_position),
                _history(sent.history),
                columns,
                sent.server_current_sequence,
                sent.journal_oldest_sequence,
                sent.resume_from_sequence,
                sent.snapshot_id,
                BATCH_CAPABILITY in sent.capabilities,
                _position(sent.boundary_position),
                _origin(sent) if RELAY_CAPABILITY in sent.capabilities else None,
            ),
        )

    def _snapshot_begin(self, begin: wire.SnapshotBegin) -> Iterable[Event]:
        self._unfinished = None
        self._in_snapshot = True
        self._keys, self._lines = [], []
        return (
            SnapshotBegin(
                begin.snapshot_id,
                _position(begin.source_position),
                begin.sequence,
                begin.row_count,
                begin.reason,
            ),
        )

    def _snapshot_row(self, row: wire.SnapshotRow) -> Iterable[Event]:
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
        if not self._in_snapshot and not is_extended:
            # The end of a catch-up in which nothing was missed.
            return (Heartbeat(None, end.sequence, None, None),)
        self._in_snapshot = False
        return [
            *self._gathered_rows(),
            SnapshotEnd(
                _position(end.source_position),
                end.sequence,
                end.rows_sent,
                end.rows if is_extended else None,
                end.state_checksum if is_extended else None,
                _position(end.boundary_position),
            ),
        ]

    def _journal_entry(self, entry: wire.ReplicationJournalEntry) -> Iterable[Event]:
        if entry.action not in _ACTIONS:
            raise ProtocolViolation(
                self._server, f"entry {entry.sequence} has the action {entry.action!r}"
            )
        action = _ACTIONS[entry.action]
        position = _position(entry.source_position) or position_.ZERO
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
            entry.sequence,
            bytes((action,)),
            [key],
            [new],
            [old] if self._want_old else None,
            [1],
            [position],
            [_microseconds(entry.timestamp)],
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
        new = _columns(change.new_columns)
        self._base = BaseRows(new)
        return [
            *self._end_of_transaction(),
            SchemaChange(_columns(change.old_columns), new, change.sequence),
        ]

    def _heartbeat(self, beat: wire.Heartbeat) -> Iterable[Event]:
        ended: list[Event] = []
        position = _position(beat.source_position)
        unfinished = self._unfinished
        # A base server may send its own sequence, which may be ahead of this stream.
        if unfinished is not None and beat.current_sequence <= unfinished.first_sequence:
            ended = self._end_of_transaction()
        server_time = _time(beat.server_time) if beat.HasField("server_time") else None
        boundary = _position(beat.boundary_position)
        return [
            *ended,
            Heartbeat(position, beat.current_sequence, server_time, boundary),
        ]

    def _go_away(self, notice: wire.GoAway) -> Iterable[Event]:
        milliseconds = notice.drain_deadline_unix_ms
        deadline = datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None
        return (GoAway(notice.reason, deadline),)


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


def _origin(sent: wire.SyncHandshake) -> HistoryOrigin:
    return HistoryOrigin(
        tuple(
            Ancestor(history_.parse(each.history), position_.parse(each.until))
            for each in sent.ancestors
        ),
        sent.history_reason,
        _position(sent.history_since) or position_.ZERO,
    )


def _position(text: str) -> Position | None:
    return position_.parse(text) if text else None


def _history(text: str) -> History | None:
    return history_.parse(text) if text else None


def _time(stamp: timestamp_pb2.Timestamp) -> datetime:
    return stamp.ToDatetime(UTC)


def _microseconds(stamp: timestamp_pb2.Timestamp) -> int:
    return stamp.seconds * 1_000_000 + stamp.nanos // 1000
