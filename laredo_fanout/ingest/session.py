"""One session of the stream: connections opened, everything followed until one breaks or we stop.

Whatever isn't committed when it ends is forgotten; the next session goes on from the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catalog import append_only
from laredo_fanout.catalog.side_connection import (
    LOCK_TIMEOUT,
    ConnectionReady,
    Crashed,
    Prepared,
    PrepareFailed,
    Report,
    SideConnection,
    SoonRequest,
    Trouble,
    Waiting,
)
from laredo_fanout.catalog.snapshot import CatalogSnapshot
from laredo_fanout.copy.copier import Copier
from laredo_fanout.copy.recopy import RecopyAsked
from laredo_fanout.copy.table_copies import TableCopies
from laredo_fanout.decode.stream_decoder import ResyncRequired, StreamDecoder
from laredo_fanout.errors import CopyFailed, TableRefused
from laredo_fanout.ingest.catalog_checks import CatalogChecks
from laredo_fanout.ingest.keepalive import Keepalive, StoppedWithin
from laredo_fanout.ingest.loop import IngestLoop
from laredo_fanout.ingest.mailbox import Mailbox
from laredo_fanout.ingest.startup import Preparation
from laredo_fanout.ingest.tracked_tables import TrackedTables
from laredo_fanout.postgres import connections, wal_message
from laredo_fanout.postgres.errors import SourceUnavailable
from laredo_fanout.postgres.replication_stream import ReplicationStream
from laredo_fanout.store.errors import StoreFull
from laredo_fanout.store.meta import Marker
from laredo_fanout.tables.write_batch import OnCommit, WriteBatch
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.ingest.change_source import ChangeSource, Feed
    from laredo_fanout.postgres.errors import SourceError
    from laredo_fanout.source_options import SourceOptions, TableOptions
    from laredo_fanout.store.writer import Store
    from laredo_fanout.tables.status import Counters

_log = structlog.get_logger()

_STREAMS_KEPT = 20
_LIFE_AT_LEAST_S = 60.0
"""Before a large message that has passed ends it: they may come again and again."""


class IngestSession:
    """``run`` returns when :meth:`stop` was called, and raises when something broke."""

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[TableOptions],
        store: Store,
        *,
        on_commit: OnCommit,
        counters: Counters,
        stopping: threading.Event,
        change_source: ChangeSource | None = None,
    ) -> None:
        self._began_at = time.monotonic()
        self._options = options = replace(options, run=wal_message.new_token())
        self._awaited = wal_message.Awaited(options.slot_name, counters.count_strange_message)
        self._name = connections.application_name(options, "stream")
        self._store = store
        self._stopping = stopping
        self._change_source = change_source
        self._counters = counters
        self._mail: Mailbox[Report | RecopyAsked] = Mailbox()
        self.batch = WriteBatch(store, on_commit, options.commits, counters)
        self._side_connection = SideConnection(options, tables, self._awaited, self._mail.put)
        self._checks = CatalogChecks(self._side_connection.request)
        self._keepalive = Keepalive(store, options, self._side_connection, stopping)
        self.tracked = TrackedTables(tables, self.batch, self._checks.ask, counters)
        request = self._side_connection.request
        self.copies = TableCopies(
            options.slot_name,
            self.batch,
            request,
            request_snapshot=self._checks.ask,
            failed=self._copy_failed,
        )
        self.copier = Copier(options, self.batch, self.copies, request, counters)
        self._preparation = Preparation(
            options, tables, store, counters=counters, tell=self._waits, stopping=stopping
        )
        self._stream: Feed | None = None
        self._decoder: StreamDecoder | None = None
        self._side: connections.Connection | None = None
        self._following: IngestLoop | None = None
        self.connected = False
        self.was_connected = False
        self.phase = "connecting"
        self.trouble: SourceError | None = None

    def stop(self) -> None:
        """Have ``run`` end soon; from any thread, after ``stopping`` was set."""
        self._mail.ring()
        side = self._side
        if side is not None and not self.connected:
            connections.cancel(side)

    def check_catalog_soon(self) -> None:
        """Have the catalog looked at; from any thread."""
        self._side_connection.request(SoonRequest())

    def recopy(self, asked: RecopyAsked) -> None:
        """Have a table copied again beside its readers; from any thread."""
        self._mail.put(asked)

    @property
    def wal_end(self) -> int:
        """How far the server's WAL is known to reach."""
        decoded = self._decoder.wal_end if self._decoder is not None else 0
        slot = self._counters.slot.slot
        return max(decoded, (slot and slot.wal_position) or 0)

    @property
    def busy(self) -> bool:
        """Whether the stream brings more than is taken at once."""
        return self._following is not None and self._following.busy

    def _waits(self, why: str) -> None:
        """What the preparation waits for, as /status shows it."""
        self.phase = why

    def run(self) -> None:
        """Connect, and follow the stream.

        :raises SourceError: if PostgreSQL isn't there or not fit, or the stream was cut.
        :raises StoreError: if the store can't be written.
        """
        try:
            self._live()
        except StoreFull as full:
            self.tracked.give_up_recopies(self._store, str(full))
            raise
        finally:
            self.connected = False
            self._close()

    def _live(self) -> None:
        try:
            self._following = following = self._open()
            while not self._stopping.is_set() and not self._is_over(following):
                following.turn()
            following.commit_rest()
        except StoppedWithin:
            # What is applied of it is forgotten; it comes again.
            self.batch.abandon()
        except ResyncRequired as found:
            self.batch.abandon()
            self.tracked.close_durably(found, self._store)
        except Exception as error:
            self.batch.abandon(error)
            raise

    # ------------------------------------------------------------ begin and end

    def _open(self) -> IngestLoop:
        side, stream, snapshot = self._prepare()
        self._decoder = decoder = StreamDecoder(
            self.tracked.routes,
            self._awaited.meet,
            self._store.path,
            self._store.position,
            between_pieces=self._keepalive.within_step,
        )
        self.tracked.routes.follow(decoder)
        feed = self._start(side, stream, decoder)
        if self._change_source is not None:
            self._side_connection.every(self._change_source.interval, self._change_source.measure)
        self._counters.slot.update(snapshot.slot)
        self._side = None
        self._side_connection.start(side)
        self._keepalive.begin(feed)
        self.connected = self.was_connected = True
        self.phase = "streaming" if feed is stream else "catching up"
        position = position_.text(self._store.position)
        _log.info(self.phase, slot=self._options.slot_name, position=position)
        return IngestLoop(
            feed,
            decoder,
            batch=self.batch,
            copies=self.copies,
            copier=self.copier,
            store=self._store,
            keepalive=self._keepalive,
            mail=self._mail.fileno(),
            take_reports=self._take_reports,
            handle_events=self._handle_events,
        )

    def _prepare(self) -> tuple[connections.Connection, ReplicationStream, CatalogSnapshot]:
        """Connect, and have slot, publication and the store's tables as they must be."""
        self._side = side = connections.connect(self._options, role="side")
        with self._store.transaction() as transaction:
            transaction.set_streams((*self._store.streams, self._name)[-_STREAMS_KEPT:])
        self._stream = stream = ReplicationStream.open(self._options)
        self.phase = "preparing slot and publication"
        with connections.translated("prepare slot and publication"):
            side.execute(LOCK_TIMEOUT)
            snapshot = self._preparation.run(side, stream)
        source = self._store.source
        if source is not None:
            # A slot's stream begins with it.
            made = wal_message.made_payload(self._options.slot_name, source.token, source.since)
            self._awaited.add(made)
        position = self._store.position
        self.tracked.resume(self._store.tables, snapshot, self.batch.transaction, position)
        self.batch.commit(position, 0)
        return side, stream, snapshot

    def _start(
        self, side: connections.Connection, stream: ReplicationStream, decoder: StreamDecoder
    ) -> Feed:
        """Have the changes come: from the slot, or another way."""
        appends = append_only.streamed(self._options, self._store.tables.values())
        change_source = (
            None if self._change_source is None else self._change_source.open(side, self.batch)
        )
        self.tracked.carries_appends = appends is not None
        self.tracked.may_begin_anew = change_source is None
        if change_source is not None:
            stream.close()
            self._stream = change_source
            return change_source
        stream.start(
            self._options.slot_name,
            self._options.publication.name,
            self._store.position,
            appends=appends,
            in_parts=True,
        )
        # Whoever held the slot before us doesn't any more.
        self.batch.transaction.set_streams((self._name,))
        return stream

    def _close(self) -> None:
        self.batch.abandon()
        if self._following is not None:
            self._following.close()
        self._side_connection.stop()
        self.copier.close()
        if self._side is not None:
            self._side.close()
        if self._stream is not None:
            self._stream.close()
        if self._decoder is not None:
            self._decoder.close()
        for report in self._mail.take():
            if isinstance(report, ConnectionReady):
                report.connection.close()
            elif isinstance(report, RecopyAsked) and report.is_awaited():
                report.answer.set_exception(SourceUnavailable("the stream has just ended"))
        self._mail.close()

    def _is_over(self, following: IngestLoop) -> bool:
        """Whether another session must follow, with another connection or change source."""
        if self._is_swollen() and not self.batch.is_open:
            _log.info("somebody's large message has passed; another connection frees its memory")
            return True
        if self.tracked.must_begin_anew and not self.batch.is_open:
            return True
        return self._change_source is not None and self._change_source.is_over(following.level)

    def _is_swollen(self) -> bool:
        """Whether libpq's buffer, which never gets smaller, had to hold somebody's large message.

        Where the message would come again nothing is gained, and no copy is disturbed for it.
        """
        decoder = self._decoder
        return (
            decoder is not None
            and 0 < decoder.swollen_at <= self._store.position
            and not self.copies.under_way
            and time.monotonic() - self._began_at > _LIFE_AT_LEAST_S
        )

    # ------------------------------------------------------------ events and reports

    def _handle_events(self) -> None:
        """A transaction ended that holds one of our messages, or closes a table."""
        decoder, following = self._decoder, self._following
        assert decoder is not None and following is not None
        following.apply_pending()
        self.tracked.keep_leaves(self.batch.transaction, xid=decoder.xid, position=decoder.position)
        self.tracked.close_marked(self.batch.transaction, decoder.position_before, self.copies)
        for content in decoder.take_events():
            snapshot = self._checks.passed(content)
            if snapshot is not None:
                self._passed(snapshot, decoder)
                continue
            done = self.copies.barrier_arrived(
                content.decode(), decoder.position, decoder.time_us, self._keepalive.within_step
            )
            if done is not None:
                self.tracked.copied(*done)

    def _passed(self, snapshot: CatalogSnapshot, decoder: StreamDecoder) -> None:
        self.batch.transaction.set_marker(Marker(decoder.position, snapshot.message))
        # What the look shows was so before its message: a closed table was right before it.
        self.tracked.reconcile(
            snapshot, self.batch.transaction, decoder.position_before, self.copies
        )
        self.tracked.verify(snapshot, passed=True)

    def _take_reports(self) -> None:
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
                case PrepareFailed(table_id, problem):
                    copy = self.copies.get(table_id)
                    if copy is not None:
                        name = copy.table.qualified
                        self._copy_failed(
                            table_id, CopyFailed(name, problem, "see the server's log")
                        )
                case Waiting():
                    self.copies.waiting(report)
                case RecopyAsked():
                    self.tracked.recopy(report, self.batch.transaction, self.copies)
                case ConnectionReady(connection):
                    self.copier.connected(connection)
                case Crashed(error):
                    raise error
                case Trouble(error):
                    if self.trouble is None:
                        _log.warning("side connection failed; it is tried again", error=str(error))
                    self.trouble = error

    def _copy_failed(self, table_id: int, failed: TableRefused) -> None:
        self.tracked.copy_failed(table_id, failed, self.batch.transaction, self.copies)
