"""The tables in one ingest session: what each message of ours in the stream, and each report of the
side connection, means for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catalog.side_connection import (
    ConnectionReady,
    Prepared,
    PrepareFailed,
    Report,
    SideConnection,
    SideConnectionCrashed,
    SideConnectionDown,
    WaitingForWriters,
)
from laredo_fanout.catalog.snapshot import CatalogSnapshot
from laredo_fanout.copy.copier import Copier
from laredo_fanout.copy.recopy import RecopyAsked
from laredo_fanout.copy.table_copies import TableCopies
from laredo_fanout.errors import TableRefused
from laredo_fanout.ingest.catalog_checks import CatalogChecks
from laredo_fanout.ingest.tracked_tables import TrackedTables
from laredo_fanout.postgres.errors import SourceError
from laredo_fanout.store.meta import Marker

if TYPE_CHECKING:
    from laredo_fanout.decode.stream_decoder import StreamDecoder
    from laredo_fanout.decode.stream_relations import StreamRelations
    from laredo_fanout.ingest.keepalive import Keepalive
    from laredo_fanout.ingest.mailbox import Mailbox
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.tables.status import Counters
    from laredo_fanout.tables.write_batch import WriteBatch

_log = structlog.get_logger()


class SessionTables:
    """Tracked tables and their copies; used by the ingest thread.

    ``mail`` is where reports, and requests of operators, come from other threads.
    """

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        *,
        batch: WriteBatch,
        relations: StreamRelations,
        side_connection: SideConnection,
        keepalive: Keepalive,
        mail: Mailbox[Report | RecopyAsked],
        counters: Counters,
    ) -> None:
        request = side_connection.request
        self._batch = batch
        self._keepalive = keepalive
        self._mail = mail
        self._counters = counters
        self._checks = CatalogChecks(request)
        self.tracked = TrackedTables(tables, batch, relations, self._checks.ask, counters)
        self.copies = TableCopies(
            options.slot_name,
            batch,
            request,
            request_snapshot=self._checks.ask,
            failed=self._copy_failed,
        )
        self.copier = Copier(options, batch, self.copies, request, counters)
        self.trouble: SourceError | None = None
        """Error that keeps the side connection from working at the moment."""

    def transaction_ended(self, decoder: StreamDecoder) -> None:
        """A transaction ended, and is applied, that has one of our messages or closes a table."""
        transaction = self._batch.transaction
        self.tracked.keep_leaves(transaction, decoder.position)
        self.tracked.close_marked(transaction, decoder.position_before, self.copies)
        for content in decoder.take_events():
            snapshot = self._checks.passed(content)
            if snapshot is not None:
                self._snapshot_passed(snapshot, decoder)
                continue
            done = self.copies.barrier_arrived(
                content.decode(), decoder.position, decoder.time_us, self._keepalive.keep_alive
            )
            if done is not None:
                self.tracked.copied(*done)

    def _snapshot_passed(self, snapshot: CatalogSnapshot, decoder: StreamDecoder) -> None:
        transaction = self._batch.transaction
        transaction.set_marker(Marker(decoder.position, snapshot.message))
        # What the snapshot shows was so before its message: a closed table was right until there.
        self.tracked.reconcile(snapshot, transaction, decoder.position_before, self.copies)
        self.tracked.verify(snapshot, passed=True)

    def take_reports(self) -> None:
        """Act on what the side connection has reported, and operators have asked for, since.

        :raises Exception: whatever made the side connection's thread crash.
        """
        for report in self._mail.take():
            match report:
                case CatalogSnapshot():
                    self._checks.keep(report)
                    self._counters.slot.update(report.slot)
                    self.tracked.verify(report, passed=False)
                    self.trouble = None
                    self._keepalive.catalog_checked()
                case Prepared():
                    self.copies.prepared(report)
                case PrepareFailed():
                    self.copies.prepare_failed(report)
                case WaitingForWriters():
                    self.copies.waiting(report)
                case RecopyAsked():
                    self.tracked.recopy(report, self._batch.transaction, self.copies)
                case ConnectionReady(connection):
                    self.copier.connected(connection)
                case SideConnectionCrashed(error):
                    raise error
                case SideConnectionDown(error):
                    if self.trouble is None:
                        _log.warning("side connection failed; retry scheduled", error=str(error))
                    self.trouble = error

    def close(self) -> None:
        """End the copies; answer whoever waits. The side connection has ended before."""
        self.copier.close()
        for report in self._mail.take_last():
            if isinstance(report, ConnectionReady):
                report.connection.close()
            elif isinstance(report, RecopyAsked):
                report.refuse_ended()

    def _copy_failed(self, table_id: int, failed: TableRefused) -> None:
        self.tracked.copy_failed(table_id, failed, self._batch.transaction, self.copies)
