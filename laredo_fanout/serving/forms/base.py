"""The base wire form: one message a row or change, values as google.protobuf.Struct."""

from __future__ import annotations

from collections.abc import Sequence

from laredo_fanout.serving.filters.row_filter import RowFilter
from laredo_fanout.serving.filters.selection import entries
from laredo_fanout.serving.forms.form import timestamp
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.serving.struct_rows import Encoder, StructRows
from laredo_fanout.store.journal.record import Record
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.protobuf import delimited, length, tag, varint
from laredo_model import position as position_
from laredo_model.line import Action

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
        TRUNCATE. So each one that may come again follows an UPDATE of its row to what it was, which
        changes nothing for whoever has the row.
        """
        again = b"%d again:" % repeated_through if repeated_through else b""
        self.signature = b"base" + again + (row_filter.signature if row_filter else b"")
        self._filter = row_filter
        self._structs = structs
        self._repeated_through = repeated_through

    def rows(self, keys: Sequence[bytes], lines: Sequence[bytes]) -> Sliced[list[bytes]]:
        """One SnapshotRow a row."""
        encoder, messages = Encoder(self._structs), []
        for line in lines:
            row = encoder.encode(line) or (yield from encoder.encode_next(line))
            messages.append(row_message(_SNAPSHOT_ROW, row))
        return messages

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


def row_message(response_tag: bytes, row: bytes) -> bytes:
    """A response that holds a SnapshotRow, from the row's Struct."""
    return delimited(response_tag, delimited(_ROW, row))


def _row_again(deleted_by: int, head: bytes, row: bytes) -> bytes:
    """The row, as an UPDATE to what it was, numbered as the entry before its DELETE: a client that
    leaves between the two is sent the DELETE."""
    pieces = (
        _SEQUENCE, varint(deleted_by - 1), head, _ACTIONS[Action.UPDATE],
        delimited(_OLD_VALUES, row), delimited(_NEW_VALUES, row),
    )  # fmt: skip
    return delimited(_JOURNAL_ENTRY, b"".join(pieces))


def _transaction_head(position: int, time_us: int) -> bytes:
    return delimited(_POSITION, position_.text(position).encode()) + delimited(
        _TIMESTAMP, timestamp(time_us).SerializeToString()
    )
