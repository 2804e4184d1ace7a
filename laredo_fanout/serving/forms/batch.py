"""The batch wire form: a journal record goes out as it is stored; snapshot rows by the thousand."""

from __future__ import annotations

from collections.abc import Sequence

from laredo_fanout.serving.filters.row_filter import RowFilter
from laredo_fanout.serving.filters.selection import Entry, entries
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.store.journal.record import Record
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire.protobuf import RepeatedBytes, delimited, tag, varint

_RESPONSE = wire.SyncResponse.DESCRIPTOR.fields_by_name
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
        # The first and the last transaction stay even when empty: the client has to learn that
        # one it saw the beginning of has ended.
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
