"""Lag of each table's slowest client, in transactions: the unit of its limit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from laredo_fanout.serving.journal.backlog import transactions_of
from laredo_fanout.serving.ports import ClientState
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import TableRecord

_READ_BYTES = 256 << 10
_TURN_S = 0.0005
"""A pause between two reads, in which the ingest's thread gets the interpreter."""
_PATIENCE_S = 1.0


class BufferFigures(NamedTuple):
    """Transactions: how many the slowest client is behind, and how many it may be."""

    depth: int
    limit: int


def measured(
    reader: StoreReader,
    tables: Mapping[str, TableRecord],
    clients: Mapping[str, Sequence[ClientState]],
    limits: Mapping[str, int],
) -> dict[str, BufferFigures]:
    """The buffers of the tables that have a limit; it reads the journal, so not on an event loop.

    Sequences count changes, so the transactions behind a client are counted: until they are more
    than the limit, or a second is over.
    """
    deadline = time.monotonic() + _PATIENCE_S
    found = {}
    for name, limit in limits.items():
        late = [client.sequence for client in clients.get(name, ()) if client.depth]
        depth = 0
        if late and name in tables:
            depth = _behind(reader, tables[name], min(late), limit, deadline)
        found[name] = BufferFigures(depth, limit)
    return found


def families(found: Mapping[str, BufferFigures]) -> Iterator[Metric]:
    """The buffers as metrics."""
    depth = GaugeMetricFamily(
        "laredo_fanout_client_buffer_depth",
        "Transactions that the slowest client lags by, counted up to the limit",
        labels=["table"],
    )
    limit = GaugeMetricFamily(
        "laredo_fanout_client_buffer_limit",
        "client_buffer.max_size: most transactions that a live client may lag by",
        labels=["table"],
    )
    for table, buffer in found.items():
        depth.add_metric([table], buffer.depth)
        limit.add_metric([table], buffer.limit)
    yield from (depth, limit)


def _behind(
    reader: StoreReader, table: TableRecord, after: int, limit: int, deadline: float
) -> int:
    transactions = 0
    while transactions <= limit and time.monotonic() < deadline:
        try:
            records = reader.journal(table.id, after, _READ_BYTES, with_old=False)
        except StoreError:
            # Pruned, or the table is copied again: the client is about to get a snapshot.
            break
        records = [record for record in records if record.first_sequence <= table.sequence]
        if not records:
            break
        transactions += sum(map(transactions_of, records))
        after = records[-1].last_sequence
        time.sleep(_TURN_S)
    return transactions
