"""Translates wire messages to events, for both wire forms.

In the base form a message is one row or one change and nothing marks the end of a transaction.
Changes are passed on at once, marked unfinished; the end follows when a change of a later position
or a heartbeat proves it.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from laredo_fanout.client.errors import ProtocolViolation
from laredo_fanout.client.events import (
    Changes,
    Event,
    GoAway,
    Handshake,
    Heartbeat,
    Mode,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
)
from laredo_fanout.client.stream import message_parts as parts
from laredo_fanout.client.stream.base_form import BaseRows
from laredo_fanout.client.stream.columns import values
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.errors import BadTime, ModelError
from laredo_model.line import Action
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
        parts.check_lengths(batch, want_old=self._want_old)
        keys = yield from values(batch.keys)
        lines = yield from values(batch.lines)
        old_lines = (yield from values(batch.old_lines)) if self._want_old else None
        counts = yield from values(batch.counts)
        positions = yield from values(batch.positions)
        times_us = yield from values(batch.times_us)
        sequences = yield from values(batch.sequences)
        parts.check_rows(batch.actions, keys, lines)
        self._check_transactions(batch, positions, times_us)
        parts.check_sequences(batch.first_sequence, sequences)
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
        """:raises ProtocolViolation: if they can't follow one another, or what was sent before."""
        first = batch.first_sequence
        if batch.open and not positions:
            raise self._violation(f"the change batch at {first} continues no transaction")
        if positions and self._open_position not in (None, positions[0]):
            raise self._violation(f"another transaction begins at {first} within one that is open")
        if positions != sorted(positions):
            raise self._violation(f"the positions of the change batch at {first} aren't in order")
        if positions and batch.since_position >= max(1, positions[0]):
            raise self._violation(f"the change batch at {first} replaces nothing before it")
        if times_us and not 0 <= min(times_us) <= max(times_us) <= parts.LATEST_US:
            raise self._violation(f"a commit time of the change batch at {first} is no time")
        if positions:
            self._open_position = positions[-1] if batch.open else None

    def _violation(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(self._server, what)

    def _handshake(self, sent: wire.SyncHandshake) -> Iterable[Event]:
        if self._handshaken:
            raise ProtocolViolation(self._server, "sent a second handshake")
        if sent.mode not in _MODES:
            raise ProtocolViolation(self._server, f"offers sync mode {sent.mode}, unknown here")
        mode = Mode(sent.mode)
        self._handshaken = True
        self._batches = BATCH_CAPABILITY in sent.capabilities
        self._awaits_snapshot = self._batches and mode is Mode.FULL_SNAPSHOT
        columns = parts.columns(sent.columns, described=self._batches)
        self._base = BaseRows(columns)
        return (
            Handshake(
                mode,
                parts.position(sent.source_position),
                parts.history(sent.history),
                columns,
                parts.count(sent.server_current_sequence, "server_current_sequence"),
                parts.count(sent.journal_oldest_sequence, "journal_oldest_sequence"),
                parts.count(sent.resume_from_sequence, "resume_from_sequence"),
                sent.snapshot_id,
                self._batches,
                parts.position(sent.boundary_position),
                parts.origin(sent) if RELAY_CAPABILITY in sent.capabilities else None,
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
                parts.position(begin.source_position),
                parts.count(begin.sequence, "sequence"),
                parts.count(begin.row_count, "row_count"),
                begin.reason,
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
        sequence = parts.count(end.sequence, "sequence")
        if not (self._in_snapshot or self._awaits_snapshot or is_extended):
            # The end of a catch-up in which nothing was missed.
            return (Heartbeat(None, sequence, None, None),)
        self._within_snapshot("the end")
        if is_extended and not parts.CHECKSUM.match(end.state_checksum):
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
                parts.position(end.source_position),
                sequence,
                parts.count(end.rows_sent, "rows_sent"),
                parts.count(end.rows, "rows") if is_extended else None,
                end.state_checksum if is_extended else None,
                parts.position(end.boundary_position),
            ),
        ]

    def _journal_entry(self, entry: wire.ReplicationJournalEntry) -> Iterable[Event]:
        if entry.action not in _ACTIONS:
            raise ProtocolViolation(
                self._server, f"entry {entry.sequence} has the action {entry.action!r}"
            )
        self._between_snapshots()
        action = _ACTIONS[entry.action]
        position = parts.position(entry.source_position) or position_.ZERO
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
            parts.count(entry.sequence, "sequence"),
            bytes((action,)),
            [key],
            [new],
            [old] if self._want_old else None,
            [1],
            [position],
            [parts.microseconds(entry.timestamp)],
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
        new = parts.columns(change.new_columns, described=self._batches)
        self._base = BaseRows(new)
        self._awaits_snapshot = self._batches
        return [
            *self._end_of_transaction(),
            SchemaChange(
                parts.columns(change.old_columns, described=self._batches),
                new,
                parts.count(change.sequence, "sequence"),
            ),
        ]

    def _heartbeat(self, beat: wire.Heartbeat) -> Iterable[Event]:
        ended: list[Event] = []
        position = parts.position(beat.source_position)
        unfinished = self._unfinished
        # A base server may send its own sequence, which may be ahead of this stream.
        if unfinished is not None and beat.current_sequence <= unfinished.first_sequence:
            ended = self._end_of_transaction()
        server_time = parts.time(beat.server_time) if beat.HasField("server_time") else None
        boundary = parts.position(beat.boundary_position)
        return [
            *ended,
            Heartbeat(
                position,
                parts.count(beat.current_sequence, "current_sequence"),
                server_time,
                boundary,
            ),
        ]

    def _go_away(self, notice: wire.GoAway) -> Iterable[Event]:
        milliseconds = notice.drain_deadline_unix_ms
        if milliseconds > parts.LATEST_US // 1000:
            raise BadTime(f"{milliseconds} ms after 1970 is no time")
        deadline = datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None
        return (GoAway(notice.reason, deadline),)
