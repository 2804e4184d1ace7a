"""One session of the replication stream, from its connections to their end, and stream faults.

Changes that aren't committed when it ends are forgotten; the next session goes on from the store.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.batch.status import FaultStatus
from laredo_fanout.batch.write_batch import OnCommit, WriteBatch
from laredo_fanout.copy.recopy import RecopyAsked
from laredo_fanout.decode.stream_decoder import ResyncRequired, StreamDecoder, StreamRelations
from laredo_fanout.ingest.loop import IngestLoop, StopRequested
from laredo_fanout.ingest.session_tables import Mailbox, SessionTables
from laredo_fanout.ingest.startup import Preparation
from laredo_fanout.pg_catalog import requirements
from laredo_fanout.pg_catalog.side_connection import (
    CheckSoonRequest,
    Report,
    SideConnection,
)
from laredo_fanout.pg_catalog.snapshot import LOCK_TIMEOUT
from laredo_fanout.postgres import connections, pgoutput
from laredo_fanout.postgres.connections import DecodingFailed, StreamFault
from laredo_fanout.postgres.replication_stream import ReplicationStream
from laredo_fanout.store.errors import Damage, StoreFull
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.ingest.change_source import ChangeSource, MessageFeed
    from laredo_fanout.pg_catalog.publication import TableDiscovery
    from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
    from laredo_fanout.slot.sharing import SlotSharing
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

_STREAMS_KEPT = 20
_SESSION_AT_LEAST_S = 60.0
"""Shortest session that ends because of a large message: such messages may come repeatedly."""


class IngestSession:
    """One session of the stream: ``run`` returns after :meth:`stop`, and raises any error."""

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        *,
        on_commit: OnCommit,
        prune: Callable[[], None],
        counters: Counters,
        stopping: threading.Event,
        faults: StreamFaults,
        change_source: ChangeSource | None = None,
        discovery: TableDiscovery | None = None,
        connected: Callable[[], None] | None = None,
        sharing: SlotSharing | None = None,
    ) -> None:
        """``connected`` is called when the stream begins; with ``sharing`` other servers may hold
        the slot too, one at a time."""
        self._claim = claim = None if sharing is None else sharing.claim(options.slot_name)
        self._on_connected = connected
        self._discovery = discovery
        self._began_at = time.monotonic()
        self._options = options = replace(options, run=pgoutput.new_token())
        self._store = store
        self._prune = prune
        self._stopping = stopping
        self._change_source = change_source
        self._faults = faults
        self._counters = counters
        self._awaited = pgoutput.ExpectedMessages(
            options.slot_name,
            counters.count_strange_message,
            None if claim is None else claim.is_for_us,
        )
        self._mail: Mailbox[Report | RecopyAsked | Damage] = Mailbox()
        self._side_connection = SideConnection(options, tables, self._awaited, self._mail.put)
        self._batch = WriteBatch(store, on_commit, options.commits, counters)
        self._relations = StreamRelations()
        self.tables = SessionTables(
            options,
            tables,
            batch=self._batch,
            relations=self._relations,
            side_connection=self._side_connection,
            mail=self._mail,
            counters=counters,
            claim=claim,
        )
        self._preparation = Preparation(
            options,
            tables,
            store,
            counters=counters,
            waits_for=self._set_phase,
            stopping=stopping,
            claim=claim,
        )
        self._preparing: connections.Connection | None = None
        """The side connection, while the ingest's thread itself uses it."""
        self._loop: IngestLoop | None = None
        self._makes_way = False
        self.connected = False
        self.was_connected = False
        self.phase = "connecting"

    def stop(self) -> None:
        """Make ``run`` end soon, after ``stopping`` was set; may be called from any thread."""
        self._mail.notify()
        preparing = self._preparing
        if preparing is not None and not self.connected:
            connections.cancel(preparing)

    def make_way(self) -> None:
        """End between two commits for a session with other tables; may be called from any thread.

        A session that takes the segments of a split backlog goes on.
        """
        self._makes_way = True
        self._mail.notify()

    def check_catalog_soon(self) -> None:
        """Request a catalog check; may be called from any thread."""
        self._side_connection.request(CheckSoonRequest())

    def recopy(self, asked: RecopyAsked) -> None:
        """Request a re-copy of a table; may be called from any thread."""
        if not self._mail.put(asked):
            asked.refuse_ended()

    def repair(self, found: Damage) -> None:
        """Request the repair of damage in the store; may be called from any thread."""
        self._mail.put(found)

    @property
    def wal_end(self) -> int:
        """Highest known end of the server's WAL."""
        slot = self._counters.slot.slot
        return max(self.brought_to, (slot and slot.wal_position) or 0)

    @property
    def brought_to(self) -> int:
        """Position up to which the stream had brought changes, committed or not."""
        return self._loop.wal_end if self._loop is not None else 0

    @property
    def busy(self) -> bool:
        """True if the last turn of the loop left messages."""
        return self._loop is not None and self._loop.busy

    def run(self) -> None:
        """Connect, take changes, close.

        :raises SourceError: if PostgreSQL can't be reached or used, or the stream was cut.
        :raises StoreError: if the store can't be written.
        """
        with ExitStack() as opened:
            opened.callback(self._mail.close)
            opened.callback(self.tables.close)
            opened.callback(self._side_connection.stop)
            opened.callback(self._batch.abandon)
            try:
                self._take_changes(opened)
            except StoreFull as full:
                self.tables.tracked.give_up_recopies(self._store, str(full))
                raise
            finally:
                self.connected = False

    def _take_changes(self, opened: ExitStack) -> None:
        try:
            self._loop = loop = self._open(opened)
            while not self._stopping.is_set() and not self._is_over(loop):
                loop.turn()
            loop.commit_rest()
        except StopRequested:
            # The applied part is forgotten; the transaction comes again.
            self._batch.abandon()
        except ResyncRequired as found:
            self._batch.abandon()
            self.tables.tracked.close_durably(found, self._store)
        except Exception as error:
            self._batch.abandon(error)
            raise

    # ------------------------------------------------------------ begin and end

    def _open(self, opened: ExitStack) -> IngestLoop:
        self._preparing = side = connections.connect(self._options, role="side")
        opened.callback(self._close_preparing)
        stream = self._open_stream(opened)
        snapshot = self._prepare(side, stream)
        decoder = StreamDecoder(
            self.tables.tracked.routes,
            self._relations,
            self._awaited.meet,
            self._store.path,
            self._store.position,
        )
        opened.callback(decoder.close)
        feed = self._start(side, stream, opened)
        if self._claim is not None:
            with connections.translated("claim the slot"):
                self._claim.begin(side)
            if self._claim.takes_over:
                self.tables.tracked.suspect_partitions(self._batch.transaction)
        self._counters.slot.update(snapshot.slot)
        self._preparing = None
        if self._discovery is not None:
            # Only now, so that it finds tables of the history that is followed.
            discovery = self._discovery
            self._side_connection.every(discovery.interval, discovery.check, at_once=True)
        self._side_connection.start(side)
        self.tables.begin()
        self.connected = self.was_connected = True
        self.phase = "streaming" if feed is stream else "catching up"
        position = position_.text(self._store.position)
        if self._on_connected is not None:
            self._on_connected()
        _log.info(
            "stream started", phase=self.phase, slot=self._options.slot_name, position=position
        )
        loop = IngestLoop(
            feed,
            decoder,
            batch=self._batch,
            tables=self.tables,
            store=self._store,
            prune=self._prune,
            mail=self._mail.fileno(),
            patience=self._options.receive_timeout,
            stopping=self._stopping,
            confirmable=None if self._claim is None else self._claim.confirmable,
        )
        opened.callback(loop.close)
        return loop

    def _open_stream(self, opened: ExitStack) -> ReplicationStream:
        name = connections.application_name(self._options, "stream")
        with self._store.transaction() as transaction:
            transaction.set_streams((*self._store.streams, name)[-_STREAMS_KEPT:])
        stream = ReplicationStream.open(self._options)
        opened.callback(stream.close)
        return stream

    def _prepare(self, side: connections.Connection, stream: ReplicationStream) -> CatalogSnapshot:
        """Prepare slot and publication, and take up the store's tables."""
        self.phase = "preparing slot and publication"
        with connections.translated("prepare slot and publication"):
            side.execute(LOCK_TIMEOUT)
            snapshot = self._preparation.run(side, stream)
        source = self._store.source
        if source is not None:
            # A slot's stream begins with this message.
            made = pgoutput.made_payload(self._options.slot_name, source.token, source.since)
            self._awaited.add(made)
        position = self._store.position
        self.tables.tracked.resume(self._store.tables, snapshot, self._batch.transaction, position)
        self._batch.ahead = {
            each.id: each.position for each in self._store.tables.values() if each.position
        }
        self._batch.commit(position, 0)
        return snapshot

    def _start(
        self, side: connections.Connection, stream: ReplicationStream, opened: ExitStack
    ) -> MessageFeed:
        """Start the feed of changes: the slot's stream, or the change source."""
        appends = requirements.streamed(self._options, self._store.tables.values())
        source = self._change_source
        feed = None if source is None else source.open(side, self._batch)
        if source is not None:
            self._side_connection.every(source.interval, source.measure)
        tracked = self.tables.tracked
        tracked.carries_appends = appends is not None
        tracked.may_restart = feed is None
        if feed is not None:
            opened.callback(feed.close)
            stream.close()
            return feed
        stream.start(
            self._options.slot_name,
            self._options.publication.name,
            self._store.position,
            appends=appends,
            in_parts=self._faults.in_parts,
        )
        # No earlier connection holds the slot any more.
        name = connections.application_name(self._options, "stream")
        self._batch.transaction.set_streams((name,))
        return stream

    def _is_over(self, loop: IngestLoop) -> bool:
        """True if another session must follow, with another connection or change source."""
        if self._is_swollen(loop) and not self._batch.is_open:
            _log.info("connection replaced to free memory")
            return True
        if self._faults.current is not None:
            self._faults.passed(loop.caught_up_to)
        tracked = self.tables.tracked
        if (
            self._faults.is_left_behind
            and tracked.may_restart
            and not self._batch.is_open
            and not self.tables.copies.under_way
        ):
            return True
        is_to_end = tracked.must_restart or (self._makes_way and tracked.may_restart)
        if is_to_end and not self._batch.is_open:
            return True
        source = self._change_source
        return source is not None and source.is_over(loop.caught_up_to)

    def _is_swollen(self, loop: IngestLoop) -> bool:
        """True if libpq's buffer, which never shrinks, grew for a large message or in a long step.

        That must have been confirmed, or the next connection would get it again. Copies aren't
        interrupted for this.
        """
        return (
            0 < loop.oversized_at <= self._store.position
            and not self.tables.copies.under_way
            and time.monotonic() - self._began_at > _SESSION_AT_LEAST_S
        )

    def _close_preparing(self) -> None:
        if self._preparing is not None:
            self._preparing.close()

    def _set_phase(self, phase: str) -> None:
        self.phase = phase


# Faults of the stream at one place of the WAL, and the way around them.
#
# PostgreSQL can't decode a transaction, or sends a message that the protocol doesn't allow: the
# next session meets the fault again. PostgreSQL decodes a transaction in two ways: in parts while
# it runs (protocol version 2), or whole at its commit. If one way fails, the other often works, so
# each attempt takes the other way than the last one. After a fault in parts, transactions come
# whole until the slot's restart_lsn has passed the fault: each session decodes everything from
# there.


class StreamFaults:
    """The fault that isn't passed yet, and the way in which transactions are sent.

    Any thread may read ``current``; the ingest's thread does everything else. ``current`` stays
    while attempts connect and fail, because a connection alone is no cure.
    """

    def __init__(self, store: Store, counters: Counters) -> None:
        self._store = store
        self._counters = counters
        self._ways: frozenset[bool] = frozenset()
        """Ways in which the current fault was met: True for transactions in parts."""
        self._until = 0
        """End of the WAL when the fault was met last; the fault is before it."""
        self._slot = ""
        """Token of the slot in whose stream the fault was met."""
        self.in_parts = True
        self.current: FaultStatus | None = None

    def begin(self) -> None:
        """Choose the way for a session that begins.

        Transactions come in parts if the fault was a former slot's, or won't be decoded again.
        """
        if self.is_left_behind or self._slot != self._token():
            if not self.in_parts:
                _log.info("streaming of large transactions resumed")
            self.in_parts = True
            self.passed(self._until)

    def met(self, error: StreamFault, wal_end: int) -> StreamFault:
        """Record the fault that ended a session; returns it with its place and the next attempt.

        ``wal_end`` is the end of the server's WAL at that time.
        """
        before, at = self.current, self._store.position
        is_known = before is not None and before.position == at and self._slot == self._token()
        self._ways = (self._ways if is_known else frozenset()) | {self.in_parts}
        self._until, self._slot = wal_end, self._token()
        kind = "decoding" if isinstance(error, DecodingFailed) else "protocol"
        self.in_parts = not self.in_parts
        text = self._text(error, at)
        since = before.since if before is not None else time.time()
        attempts = before.attempts + 1 if is_known and before is not None else 1
        self.current = FaultStatus(kind, text, at, attempts, since)
        self._counters.stream_faults[kind] += 1
        return StreamFault(text)

    def passed(self, level: int) -> None:
        """Clear a fault before ``level``, the position up to which nothing is missing."""
        if self.current is not None and (level >= self._until or self._slot != self._token()):
            _log.info("stream fault passed", position=position_.text(self._store.position))
            self.current = None

    @property
    def is_left_behind(self) -> bool:
        """True if transactions come whole, and the fault's part of the WAL isn't decoded again."""
        if self.in_parts or self.current is not None:
            return False
        slot = self._counters.slot.slot
        restart = 0 if slot is None else slot.restart or 0
        return restart >= self._until or self._slot != self._token()

    def _token(self) -> str:
        return "" if self._store.source is None else self._store.source.token

    def _text(self, error: StreamFault, at: int) -> str:
        if isinstance(error, DecodingFailed):
            what = f"PostgreSQL can't decode a transaction after {position_.text(at)}"
            what, why = f"{what} ({error.sqlstate})", error.text
        else:
            what, why = f"the stream after {position_.text(at)} breaks the protocol", str(error)
        if len(self._ways) == 1:
            way, other = ("whole", "in parts") if self.in_parts else ("in parts", "whole")
            return f"{what}, {way}: {why}; the next attempt decodes {other}"
        slot = "" if self._store.source is None else self._store.source.slot
        cure = "check the network between the server and PostgreSQL"
        if isinstance(error, DecodingFailed):
            cure = "a larger logical_decoding_work_mem of the role may help"
        return (
            f"{what}, neither in parts nor whole: {why}; attempts go on, {cure}. If nothing"
            f" helps, SELECT pg_drop_replication_slot('{slot}'): with on_slot_lost = recreate"
            " every table is copied again"
        )
