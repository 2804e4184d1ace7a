"""Finds the first journal entry at or beyond a WAL position."""

from typing import Any

from laredo_fanout.store import layout
from laredo_fanout.store.environment import Databases
from laredo_fanout.store.journal import record
from laredo_fanout.store.table import TableRecord
from laredo_fanout.wire.replication_pb2 import ChangeBatch


def first_from(transaction: Any, databases: Databases, known: TableRecord, lowest: int) -> int:
    """The first entry at or beyond ``lowest``; the newest sequence + 1 if there is none."""
    cursor = transaction.cursor(db=databases.positions)
    prefix = layout.prefix(known.id)
    if not (
        cursor.set_range(layout.position_key(known.id, lowest))
        and cursor.key()[: layout.PREFIX_BYTES] == prefix
    ):
        return known.sequence + 1
    _, first = layout.positioned(bytes(cursor.key()))
    stored = transaction.get(layout.record_key(known.id, first), db=databases.journal)
    header = record.header_of(stored)
    if header.first_position < lowest:
        batch = ChangeBatch.FromString(bytes(stored[record.HEADER.size :]))
        for count, at in zip(batch.counts, batch.positions, strict=True):
            if at >= lowest:
                break
            first += count
    return max(first, known.oldest_sequence)
