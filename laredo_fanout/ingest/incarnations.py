"""A tracked table's incarnations: one is begun, kept, refused or closed where the stream has passed
the catalog snapshot, or the position, that says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catalog import shape
from laredo_fanout.catalog.append_only import TransactionFilter
from laredo_fanout.copy.table_copy import TableCopy
from laredo_fanout.errors import SelectDenied, TableRefused
from laredo_fanout.store.table import Status

if TYPE_CHECKING:
    from laredo_fanout.catalog.shape import Shape
    from laredo_fanout.catalog.table_definitions import SourceTable
    from laredo_fanout.copy.recopy import Recopies
    from laredo_fanout.copy.table_copies import TableCopies
    from laredo_fanout.ingest.partition_repair import Judged
    from laredo_fanout.ingest.relation_routes import RelationRoutes
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.transaction import Transaction
    from laredo_fanout.tables.status import Counters
    from laredo_fanout.tables.tracked_table import TrackedTable
    from laredo_fanout.tables.write_batch import WriteBatch

_log = structlog.get_logger()


class Incarnations:
    """The incarnations of one session's tables; used by the ingest thread."""

    def __init__(
        self, batch: WriteBatch, routes: RelationRoutes, recopies: Recopies, counters: Counters
    ) -> None:
        self._batch = batch
        self._routes = routes
        self._recopies = recopies
        self._counters = counters

    def begin(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        now: Shape,
        transaction: Transaction,
        copies: TableCopies | None,
    ) -> TableRecord:
        """A new incarnation, which takes every change from here on.

        Without ``copies`` the next session copies its rows.
        """
        former = list(transaction.tables.values())
        record = transaction.add_table(
            source.schema,
            source.name,
            source.oid,
            source.described,
            identity=source.replica_identity,
            copy=shape.to_json(now, source.version),
        )
        for each in former:
            if each.qualified == source.qualified and each.status is Status.FAILED:
                transaction.drop_table(each.id)
        if record.incarnation > 1:
            # Only then: of a session that is cut before that, nothing is left to count.
            self._batch.when_durable(self._counters.count_recopy)
        tracked.table_id, tracked.shape, tracked.version = record.id, now, source.version
        tracked.transaction_filter = TransactionFilter(live=False) if source.append_only else None
        tracked.closed_by_stream = False
        self._routes.connect(tracked, now)
        if copies is not None:
            copies.add(
                TableCopy(
                    record.id, tracked.options, source, record.copy, tracked.transaction_filter
                )
            )
        _log.info("table copy scheduled", table=source.qualified, incarnation=record.incarnation)
        return record

    def keep(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        judged: Judged,
        transaction: Transaction,
        copies: TableCopies,
    ) -> None:
        """Nothing changed; a copy that an earlier run began goes on."""
        assert tracked.table_id is not None and tracked.shape is not None
        self._recopies.keep(tracked, source, transaction, copies)
        record = transaction.tables[tracked.table_id]
        if record.status is Status.COPYING:
            if copies.get(record.id) is None:
                copies.add(
                    TableCopy(
                        record.id, tracked.options, source, record.copy, tracked.transaction_filter
                    )
                )
            return
        assert tracked.version is not None
        version = source.version
        if judged.keeps:
            version = version._replace(partitions=tracked.version.partitions)
        if version != tracked.version:
            tracked.version = version
            transaction.put_table(replace(record, copy=shape.to_json(tracked.shape, version)))

    def refuse(
        self,
        tracked: TrackedTable,
        problem: TableRefused,
        transaction: Transaction,
        copies: TableCopies,
    ) -> None:
        """It can't be replicated as it is."""
        if tracked.table_id is None:
            return
        record = transaction.tables[tracked.table_id]
        if isinstance(problem, SelectDenied) and record.status is Status.LIVE:
            return  # the stream needs no SELECT
        copies.remove(tracked.table_id)
        self._recopies.drop(tracked, transaction, str(problem))
        self._disconnect(tracked)
        transaction.put_table(replace(record, status=Status.FAILED, error=str(problem), copy={}))
        self._batch.touch(record.id)
        _log.error("table closed: it can't be replicated", error=str(problem))

    def close(self, tracked: TrackedTable, transaction: Transaction, position: int) -> None:
        """End the incarnation: a live one is shown as it is until the next one is published."""
        assert tracked.table_id is not None
        record = transaction.tables[tracked.table_id]
        _log.warning("table closed; copy scheduled", table=record.qualified, reason=tracked.closing)
        self._recopies.drop(tracked, transaction, f"the table is copied again: {tracked.closing}")
        self._disconnect(tracked)
        if record.status is Status.LIVE:
            closed = replace(record, status=Status.CLOSED, closed_at=position)
            transaction.put_table(closed)
            self._batch.touch(record.id)
        else:
            transaction.drop_table(record.id)
        tracked.closing = None

    def _disconnect(self, tracked: TrackedTable) -> None:
        self._routes.disconnect(tracked)
        tracked.table_id = tracked.shape = tracked.version = tracked.transaction_filter = None
