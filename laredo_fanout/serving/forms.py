"""Wire forms: base (a message for each row) and batch (a journal record as it is stored)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from laredo_fanout.serving.call import BATCH, BOUNDARY, RELAY
from laredo_fanout.serving.filters import Entry, RowFilter, entries
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.serving.struct_rows import Encoder, StructRows
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.journal import Record
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.protobuf import RepeatedBytes, delimited, length, tag, varint
from laredo_model import position as position_
from laredo_model.column import Column
from laredo_model.line import Action


class Form(Protocol):
    """Encodes a session's rows and changes as SyncResponse bytes.

    `signature` names everything that the bytes of a record depend on, so that sessions with equal
    signatures share them; `extended`: fields from 100 up may be sent; `wants_old` whether the
    journal's old rows are needed; `reads_rows` whether the rows themselves are parsed, or passed on
    as they are stored; `snapshot_rows` how many rows of a snapshot to encode at a time.
    """

    snapshot_rows: int
    signature: bytes
    extended: bool
    wants_old: bool
    reads_rows: bool

    def rows(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> Sliced[list[bytes]]:
        """Messages for these rows of a snapshot (already filtered)."""
        ...

    def changes(self, record: Record) -> Sliced[list[bytes]]:
        """Messages for a journal record; none if the filter lets nothing of it pass."""
        ...


def timestamp(time_us: int) -> Timestamp:
    """Microseconds since 1970 as a Timestamp."""
    return Timestamp(seconds=time_us // 1_000_000, nanos=time_us % 1_000_000 * 1000)


def now_us() -> int:
    """The wall clock, microseconds since 1970."""
    return time.time_ns() // 1000


def column_definitions(columns: Sequence[Column], *, extended: bool) -> list[wire.ColumnDefinition]:
    """The columns as the wire names them."""
    return [
        wire.ColumnDefinition(
            ordinal_position=column.ordinal,
            column_name=column.name,
            data_type=column.type,
            not_null=not column.nullable,
            is_primary_key=column.key_ordinal is not None,
            primary_key_ordinal=column.key_ordinal or 0,
            type_modifier=column.type_modifier if extended else 0,
        )
        for column in columns
    ]


class Messages:
    """The messages of a session that carry no rows; extensions only on request."""

    def __init__(self, *, extended: bool, boundaries: bool = False) -> None:
        """`boundaries`: whether the client asked for them; it then asked for the rest too."""
        self._extended = extended
        self._boundaries = boundaries

    def handshake(
        self,
        *,
        mode: wire.SyncMode,
        sequence: int,
        oldest_sequence: int,
        resume_from: int,
        columns: Sequence[Column],
        snapshot_id: str,
        position: int,
        history: str,
        boundary: int,
        source: SourceIdentity | None = None,
        holder: wire.HolderState | None = None,
    ) -> bytes:
        """The handshake: the catch-up mode, and the server's position; ``source`` for a relay,
        ``holder`` for a standby."""
        message = wire.SyncHandshake(
            mode=mode,
            server_current_sequence=sequence,
            journal_oldest_sequence=oldest_sequence,
            resume_from_sequence=resume_from,
            columns=column_definitions(columns, extended=self._extended),
            snapshot_id=snapshot_id,
            holder=holder,
        )
        if self._extended:
            message.source_position = position_.text(position)
            message.history = history
            message.capabilities.append(BATCH)
        if self._boundaries:
            message.capabilities.append(BOUNDARY)
            message.boundary_position = position_.text(boundary)
        if source is not None:
            _add_lineage(message, source)
        return wire.SyncResponse(handshake=message).SerializeToString()

    def snapshot_begin(
        self,
        *,
        snapshot_id: str,
        sequence: int,
        rows: int,
        position: int,
        reason: str,
        holder: wire.HolderState | None = None,
    ) -> bytes:
        """The beginning of a snapshot, whose rows replace all that the client has."""
        message = wire.SnapshotBegin(
            snapshot_id=snapshot_id, sequence=sequence, row_count=rows, holder=holder
        )
        if self._extended:
            message.source_position = position_.text(position)
            message.reason = reason
        return wire.SyncResponse(snapshot_begin=message).SerializeToString()

    def snapshot_end(
        self,
        *,
        sequence: int,
        rows_sent: int,
        rows: int,
        position: int,
        checksum: str,
        boundary: int,
    ) -> bytes:
        """The end of a snapshot: all its rows were sent."""
        message = wire.SnapshotEnd(sequence=sequence, rows_sent=rows_sent)
        if self._extended:
            message.source_position = position_.text(position)
            message.rows = rows
            message.state_checksum = checksum
        if self._boundaries:
            message.boundary_position = position_.text(boundary)
        return wire.SyncResponse(snapshot_end=message).SerializeToString()

    def caught_up(self, sequence: int) -> bytes:
        """The end of a catch-up without rows, for a base client that was missing nothing."""
        end = wire.SnapshotEnd(sequence=sequence)
        return wire.SyncResponse(snapshot_end=end).SerializeToString()

    def schema_change(self, sequence: int, old: Sequence[Column], new: Sequence[Column]) -> bytes:
        """The notice of changed columns; a snapshot follows."""
        message = wire.SchemaChangeNotification(
            sequence=sequence,
            old_columns=column_definitions(old, extended=self._extended),
            new_columns=column_definitions(new, extended=self._extended),
        )
        return wire.SyncResponse(schema_change=message).SerializeToString()

    def heartbeat(self, *, sequence: int, position: int, boundary: int) -> bytes:
        """A heartbeat: everything up to the position was sent before."""
        message = wire.Heartbeat(current_sequence=sequence, server_time=timestamp(now_us()))
        if self._extended:
            message.source_position = position_.text(position)
        if self._boundaries:
            message.boundary_position = position_.text(boundary)
        return wire.SyncResponse(heartbeat=message).SerializeToString()

    def go_away(self, reason: str, deadline_unix_ms: int) -> bytes:
        """The notice to reconnect elsewhere by the deadline."""
        message = wire.GoAway(reason=reason, drain_deadline_unix_ms=deadline_unix_ms)
        return wire.SyncResponse(go_away=message).SerializeToString()


def _add_lineage(message: wire.SyncHandshake, source: SourceIdentity) -> None:
    message.capabilities.append(RELAY)
    for ancestor in source.ancestors:
        until = position_.text(ancestor.until)
        message.ancestors.add(history=str(ancestor.history), until=until)
    message.history_reason = source.because
    message.history_since = position_.text(source.since)


# The base wire form: one message a row or change, values as google.protobuf.Struct.

_RESPONSE = wire.SyncResponse.DESCRIPTOR.fields_by_name
_ENTRY = wire.ReplicationJournalEntry.DESCRIPTOR.fields_by_name
_SNAPSHOT_ROW = tag(_RESPONSE["snapshot_row"].number)
_JOURNAL_ENTRY = tag(_RESPONSE["journal_entry"].number)
_ROW = tag(wire.SnapshotRow.DESCRIPTOR.fields_by_name["row"].number)
_SEQUENCE = tag(_ENTRY["sequence"].number, 0)
_POSITION = tag(_ENTRY["source_position"].number)
_TIMESTAMP = tag(_ENTRY["timestamp"].number)
_OLD_VALUES = tag(_ENTRY["old_values"].number)
_NEW_VALUES = tag(_ENTRY["new_values"].number)
_ACTIONS: dict[int, bytes] = {
    action: delimited(tag(_ENTRY["action"].number), action.name.encode()) for action in Action
}


class BaseForm:
    """Rows and changes for a client that knows no extension."""

    snapshot_rows = 200
    extended = False
    wants_old = True
    reads_rows = True

    def __init__(
        self, row_filter: RowFilter | None, structs: StructRows, *, repeated_through: int = 0
    ) -> None:
        """`repeated_through`: the last entry that the client may already have.

        A client may take the DELETE of a row that it no longer has for something else, such as a
        TRUNCATE. So each DELETE that may be sent again comes after an UPDATE that sets the row to
        its last values, which changes nothing for a client that has the row.
        """
        again = b"%d again:" % repeated_through if repeated_through else b""
        self.signature = b"base" + again + (row_filter.signature if row_filter else b"")
        self._filter = row_filter
        self._structs = structs
        self._repeated_through = repeated_through

    def rows(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> Sliced[list[bytes]]:
        """One SnapshotRow a row."""
        return (yield from row_messages(Encoder(self._structs), _SNAPSHOT_ROW, lines))

    def changes(self, record: Record) -> Sliced[list[bytes]]:
        """One ReplicationJournalEntry a change."""
        encoder, messages = Encoder(self._structs), []
        transaction, head = -1, b""
        batch = record.decode()
        for entry in entries(batch, self._filter):
            if entry is None:
                yield
                continue
            if entry.transaction != transaction:
                transaction = entry.transaction
                head = _transaction_head(batch.positions[transaction], batch.times_us[transaction])
            pieces = [_SEQUENCE, varint(entry.sequence), head, _ACTIONS[entry.action]]
            if entry.old:
                old = encoder.encode(entry.old) or (yield from encoder.encode_next(entry.old))
                pieces += _OLD_VALUES, length(old), old
                if entry.action == Action.DELETE and entry.sequence <= self._repeated_through:
                    messages.append(_row_again(entry.sequence, head, old))
            if entry.line:
                new = encoder.encode(entry.line) or (yield from encoder.encode_next(entry.line))
                pieces += _NEW_VALUES, length(new), new
            messages.append(delimited(_JOURNAL_ENTRY, b"".join(pieces)))
        return messages


def row_messages(
    encoder: Encoder, response_tag: bytes, lines: Sequence[bytes]
) -> Sliced[list[bytes]]:
    """One response with a SnapshotRow a line."""
    messages = []
    for line in lines:
        row = encoder.encode(line) or (yield from encoder.encode_next(line))
        messages.append(delimited(response_tag, delimited(_ROW, row)))
    return messages


def _row_again(deleted_by: int, head: bytes, row: bytes) -> bytes:
    """An UPDATE of the row to its last values, numbered as the entry before its DELETE: a client
    that leaves between the two is sent the DELETE."""
    pieces = (
        _SEQUENCE, varint(deleted_by - 1), head, _ACTIONS[Action.UPDATE],
        delimited(_OLD_VALUES, row), delimited(_NEW_VALUES, row),
    )  # fmt: skip
    return delimited(_JOURNAL_ENTRY, b"".join(pieces))


def _transaction_head(position: int, time_us: int) -> bytes:
    return delimited(_POSITION, position_.text(position).encode()) + delimited(
        _TIMESTAMP, timestamp(time_us).SerializeToString()
    )


# The batch wire form: a journal record goes out as it is stored; snapshot rows by the thousand.

_SNAPSHOT = wire.SnapshotBatch.DESCRIPTOR.fields_by_name
_SNAPSHOT_BATCH = tag(_RESPONSE["snapshot_batch"].number)
_CHANGE_BATCH = tag(_RESPONSE["change_batch"].number)
_KEYS = RepeatedBytes(_SNAPSHOT["keys"].number)
_LINES = RepeatedBytes(_SNAPSHOT["lines"].number)


class BatchForm:
    """Rows and changes for a client that asked for batch/json.v1."""

    snapshot_rows = 1900
    extended = True

    def __init__(self, *, want_old: bool, row_filter: RowFilter | None) -> None:
        self.signature = (b"old:" if want_old else b"batch") + (
            row_filter.signature if row_filter else b""
        )
        self.wants_old = want_old or row_filter is not None
        self.reads_rows = row_filter is not None
        self._want_old = want_old
        self._filter = row_filter

    def rows(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> Sliced[list[bytes]]:
        """One SnapshotBatch."""
        yield from ()
        if not keys:
            return []
        body = b"".join(_KEYS.pieces(keys) + _LINES.pieces(lines))
        return [delimited(_SNAPSHOT_BATCH, body)]

    def changes(self, record: Record) -> Sliced[list[bytes]]:
        """One ChangeBatch; with a filter its sequences are written out."""
        if self._filter is not None:
            return (yield from self._filtered(record, self._filter))
        size = varint(len(record.body) + len(record.old_body))
        return [b"".join((_CHANGE_BATCH, size, record.body, record.old_body))]

    def _filtered(self, record: Record, row_filter: RowFilter) -> Sliced[list[bytes]]:
        batch = record.decode()
        kept: list[Entry] = []
        for entry in entries(batch, row_filter):
            if entry is None:
                yield
            else:
                kept.append(entry)
        bounds = record.open or record.continues or batch.since_position
        if not kept and not bounds:
            return []
        counts = [0] * len(batch.counts)
        for entry in kept:
            counts[entry.transaction] += 1
        # The first and the last transaction stay even when empty: the client must learn the end of
        # a transaction whose beginning it was sent.
        last = len(counts) - 1
        stay = [number for number, count in enumerate(counts) if count or number in (0, last)]
        filtered = wire.ChangeBatch(
            first_sequence=kept[0].sequence if kept else batch.first_sequence,
            sequences=[entry.sequence for entry in kept],
            actions=bytes(entry.action for entry in kept),
            counts=[counts[number] for number in stay],
            positions=[batch.positions[number] for number in stay],
            times_us=[batch.times_us[number] for number in stay],
            open=batch.open,
            keys=[entry.key for entry in kept],
            lines=[entry.line for entry in kept],
            old_lines=[entry.old for entry in kept] if self._want_old else (),
            since_position=batch.since_position,
        )
        return [delimited(_CHANGE_BATCH, filtered.SerializeToString())]
