"""The interface of a wire form, and the messages without rows, which both forms share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from laredo_fanout.serving.calls.request import BATCH, BOUNDARY, RELAY
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.store.journal.record import Record
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from laredo_model.column import Column


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
    ) -> bytes:
        """The handshake: the catch-up mode, and the server's position; ``source`` for a relay."""
        message = wire.SyncHandshake(
            mode=mode,
            server_current_sequence=sequence,
            journal_oldest_sequence=oldest_sequence,
            resume_from_sequence=resume_from,
            columns=column_definitions(columns, extended=self._extended),
            snapshot_id=snapshot_id,
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
        self, *, snapshot_id: str, sequence: int, rows: int, position: int, reason: str
    ) -> bytes:
        """The beginning of a snapshot, whose rows replace all that the client has."""
        message = wire.SnapshotBegin(snapshot_id=snapshot_id, sequence=sequence, row_count=rows)
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
        """The notice to reconnect elsewhere until the deadline."""
        message = wire.GoAway(reason=reason, drain_deadline_unix_ms=deadline_unix_ms)
        return wire.SyncResponse(go_away=message).SerializeToString()


def _add_lineage(message: wire.SyncHandshake, source: SourceIdentity) -> None:
    message.capabilities.append(RELAY)
    for ancestor in source.ancestors:
        until = position_.text(ancestor.until)
        message.ancestors.add(history=str(ancestor.history), until=until)
    message.history_reason = source.because
    message.history_since = position_.text(source.since)
