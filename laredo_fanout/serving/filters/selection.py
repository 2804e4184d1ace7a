"""Filtering a journal record: its changes, one by one, as the session's filter passes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from laredo_fanout.serving.filters.row_filter import RowFilter
from laredo_fanout.serving.slices import Slice
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action


class Entry(NamedTuple):
    """A change of one row or a TRUNCATE."""

    sequence: int
    action: int
    key: bytes
    line: bytes
    old: bytes
    #: Its index in the batch's per-transaction columns.
    transaction: int


def entries(batch: wire.ChangeBatch, row_filter: RowFilter | None) -> Iterator[Entry | None]:
    """The changes of a batch that pass the filter; None after each slice of it.

    The old row is left out of what becomes an INSERT, the new row of what becomes a DELETE.
    """
    transactions = [number for number, count in enumerate(batch.counts) for _ in range(count)]
    columns = zip(
        range(batch.first_sequence, batch.first_sequence + len(batch.actions)),
        batch.actions,
        batch.keys,
        batch.lines,
        batch.old_lines,
        transactions,
        strict=True,
    )
    slice_ = Slice()
    for entry in map(Entry._make, columns):
        seen = entry if row_filter is None else _seen(entry, row_filter)
        if seen is not None:
            yield seen
        if slice_.done_with(len(entry.line) + len(entry.old)):
            yield None


def _seen(entry: Entry, row_filter: RowFilter) -> Entry | None:
    action = row_filter.action(entry.action, entry.old, entry.line)
    if action is None:
        return None
    old = entry.old
    if not row_filter.knows_before:
        old = row_filter.old_of_unknown(action, entry.old, entry.line)
    return entry._replace(
        action=action,
        line=b"" if action == Action.DELETE else entry.line,
        old=b"" if action == Action.INSERT else old,
    )
