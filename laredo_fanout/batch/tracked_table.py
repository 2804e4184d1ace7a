"""A configured table: the incarnation that takes its changes, and the routes that decode them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from laredo_fanout.decode import row_decoder
from laredo_fanout.decode.row_scan import Route
from laredo_fanout.pg_catalog import shape as shape_
from laredo_fanout.pg_catalog.requirements import TransactionFilter
from laredo_fanout.postgres.connections import ReplicationStreamBroken

if TYPE_CHECKING:
    from laredo_fanout.errors import TableRefused
    from laredo_fanout.pg_catalog.shape import Shape
    from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
    from laredo_fanout.pg_catalog.table_definitions import SourceTable, Version
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.table import TableRecord


@dataclass(eq=False)
class TrackedTable:
    """One configured table in a session, and the incarnation of it that takes changes, if any."""

    #: The table's configuration.
    options: SourceTableOptions
    #: The table's definition in the catalog.
    source: SourceTable | None = None
    #: The reason if the table can't be replicated.
    problem: TableRefused | None = None
    #: The incarnation that takes changes.
    table_id: int | None = None
    #: The shape that its changes must have.
    shape: Shape | None = None
    #: The marks by which silent DDL is noticed.
    version: Version | None = None
    #: The transactions that an append-only table takes; None for other tables.
    transaction_filter: TransactionFilter | None = None
    #: The incarnation of a re-copy, which an operator requested, or which repairs rows.
    recopy_id: int | None = None
    #: The reason if its incarnation must be closed.
    closing: str | None = None
    #: The CheckRequest that must be answered before another incarnation begins.
    wanted_check: int = 0
    #: True if the stream showed its new definition, perhaps before the catalog did.
    closed_by_stream: bool = False
    #: Pids that held a lock for DDL on it in the last catalog snapshot; a prepared transaction
    #: is 0.
    altered_by: frozenset[int] = frozenset()
    #: Number of failed copies.
    retries: int = 0
    #: Time of the next attempt (monotonic).
    retry_at: float = 0.0
    #: True if the last catalog snapshot that was passed accounts for its partitions.
    partitions_judged: bool = False
    #: Number of repairs that were begun.
    repair_retries: int = 0
    #: Earliest time of the next repair (monotonic).
    repair_at: float = 0.0

    def may_have_been_partition(self, source: SourceTable) -> bool:
        """True if its changes may have come as another table's since the known version."""
        assert self.version is not None
        return source.is_partition or source.version.attributes != self.version.attributes

    def resume(self, record: TableRecord, snapshot: CatalogSnapshot) -> None:
        """Take up the store's incarnation; ``closing`` is set if it can't go on."""
        source = self.source = snapshot.tables.get(record.qualified)
        kept = shape_.from_json(record.copy)
        self.table_id = record.id
        if kept is None:
            self.closing = "the store has no definition of it"
            return
        self.shape, self.version = kept
        if self.options.append_only:
            self.transaction_filter = TransactionFilter(live=record.live)
        if source is None:
            self.closing = "it doesn't exist any more"
            return
        if source.published is not None and source.published.filter_locked:
            # A check after the lock compares the filter; until then nothing is verified.
            known = source.published._replace(row_filter=self.shape.row_filter)
            source = self.source = replace(source, published=known)
        if (now := shape_.of_table(source)) != self.shape:
            self.closing = self.shape.difference(now)
        elif self.transaction_filter is not None and not record.live and "splits" in record.copy:
            self.closing = "its copy was interrupted, and with it its snapshot"
        elif record.live and self.transaction_filter is None:
            # Rows that moved with partitions are repaired by a re-copy.
            self.closing = source.rewritten_since(self.version)
        else:
            self.closing = source.changed_since(self.version)


def of(tracked: TrackedTable, xid: Callable[[], int]) -> Route:
    """The route of the incarnation that takes changes; ``xid`` returns the transaction's."""
    source, transaction_filter = tracked.source, tracked.transaction_filter
    assert source is not None
    route = Route(tracked.table_id)
    decoder = row_decoder.row_decoder(
        [column.name for column in source.columns],
        [column.type_info for column in source.columns],
        source.key,
        route.changes,
    )
    if transaction_filter is not None:
        route.takes = lambda: transaction_filter.takes(xid())
        route.numbered = True
        if not transaction_filter.live:
            decoder = decoder._replace(put=_only_if(route.takes, decoder.put), plain=None)
    route.decode_by(decoder)
    return route


def surprised(table_id: int | None) -> Route:
    """A route whose changes are an error."""

    def put(message: bytes, action: int) -> None:
        raise ReplicationStreamBroken("a change arrived in a form older than the catalog's")

    def delete(message: bytes) -> None:
        put(message, 0)

    route = Route(table_id)
    route.decode_by(row_decoder.RowDecoder(put, delete))
    return route


def _only_if(
    takes: Callable[[], bool], put: Callable[[bytes, int], None]
) -> Callable[[bytes, int], None]:
    def put_if(message: bytes, action: int) -> None:
        if takes():
            put(message, action)

    return put_if
