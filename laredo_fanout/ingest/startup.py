"""Preparation of publication, slot and store, so that the stream goes on without a gap.

The order is publication, slot, START_REPLICATION, copy: if a publication doesn't
exist at the position that is decoded, PostgreSQL up to 16 ends the stream with an
error, and PostgreSQL 18 skips its tables' changes without one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.pg_catalog import publication, requirements
from laredo_fanout.pg_catalog import snapshot as snapshot_
from laredo_fanout.postgres import connections, pgoutput
from laredo_fanout.postgres.connections import SlotLost
from laredo_fanout.slot import ownership, slot, timeline
from laredo_fanout.slot.timeline import differs_at
from laredo_fanout.source_options import OnSlotLost
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.table import Status
from laredo_model import position as position_
from laredo_model.position import History, Lineage

if TYPE_CHECKING:
    import threading

    from laredo_fanout.batch.status import Counters
    from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.postgres.replication_stream import ReplicationStream
    from laredo_fanout.slot.sharing import SlotClaim
    from laredo_fanout.slot.slot import Slot
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()


class Preparation:
    """Checks and creation of publication and slot for a stream from the store's position.

    ``waits_for`` is called with a description of each long wait. The name of the replication
    connection must have been stored.
    """

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        store: Store,
        *,
        counters: Counters,
        waits_for: Callable[[str], None],
        stopping: threading.Event,
        claim: SlotClaim | None = None,
    ) -> None:
        self._claim = claim
        self._options = options
        self._tables = tables
        self._store = store
        self._counters = counters
        self._waits_for = waits_for
        self._stopping = stopping
        self._patience: connections.TimeLimit

    def run(self, connection: Connection, stream: ReplicationStream) -> CatalogSnapshot:
        """Prepare publication, slot and store; returns a first catalog snapshot.

        A connection that doesn't answer is cut after ``receive_timeout``.

        :raises SourceUnfit: if a setting or the publication prevents replication.
        :raises RightsMissing: if the role lacks a right.
        :raises SlotLost: if changes are gone and ``on_slot_lost`` is fail.
        :raises SlotForeign: if a slot would have to be replaced that isn't provably ours.
        :raises SlotInUse: if another program streams from the slot.
        """
        with connections.TimeLimit(connection, self._options.receive_timeout) as self._patience:
            return self._prepare(connection, stream)

    def _prepare(self, connection: Connection, stream: ReplicationStream) -> CatalogSnapshot:
        options, store = self._options, self._store
        for problem in requirements.server_problems(connection):
            raise problem
        published = publication.ensure(connection, options.publication).identity
        snapshot = snapshot_.take(connection, options, self._tables, 0)
        server = _server(connection, stream)
        if slot.free(connection, options.slot_name, store.streams):
            self._counters.senders_ended += 1
        known = store.source
        found = slot.read(connection, options.slot_name)
        if known is None or store.position == 0:
            self._check_owned(connection, server, found)
            lineage, because = timeline.first(server), ""
            if known is not None:
                # An earlier attempt recorded the history and got no slot. After a restored backup
                # only its mark distinguishes the history from the one that was lost.
                lineage = timeline.judge(known, 0, server, int(time.time())).lineage
                because = known.because
            self._begin(connection, found, published, lineage, because)
            return snapshot._replace(slot=slot.read(connection, options.slot_name))
        self._counters.slot.update(found)
        if self._claim is not None:
            self._claim.check(found)
        verdict = self._judge(connection, server, known, found)
        lost = verdict.broken or slot.gap(
            slot.StoredSlot(known.slot, known.publication, store.position),
            found,
            slot_name=options.slot_name,
            publication=published,
        )
        if lost is not None:
            if self._claim is not None:
                self._claim.check_loss(lost)
            self._refuse_loss(lost)
            self._check_owned(connection, server, found)
            _log.error("changes lost; every table copied again", reason=lost)
            former = self._let_go(known, comparable=verdict.broken is None)
            if known.slot != options.slot_name:
                self._drop_former(connection, server, known.slot)
            self._begin(connection, found, published, verdict.lineage, lost, former_reach=former)
            self._counters.slot_losses += 1
            return snapshot._replace(slot=slot.read(connection, options.slot_name))
        self._go_on(known, verdict.lineage)
        return snapshot

    def _judge(
        self,
        connection: Connection,
        server: timeline.Server,
        known: SourceIdentity,
        found: Slot | None,
    ) -> timeline.HistoryVerdict:
        """Judge by all known marks whether the server's WAL continues from the store's position."""
        options, store = self._options, self._store
        now_s = int(time.time())
        verdict = timeline.judge(known, store.position, server, now_s)
        marker = store.marker
        if (
            verdict.broken is not None
            or marker is None
            or found is None
            or found.wal_status == "lost"
            or found.confirmed is None
            # A slot that has confirmed the marker's position had it in its stream.
            or found.confirmed >= marker.position
        ):
            return verdict
        self._waits_for("comparing the server's WAL with the WAL that the store followed")
        with self._patience.suspended():
            other = differs_at(marker, options, connection, self._stopping)
        return verdict if other is None else timeline.another(known, server, now_s, other)

    def _go_on(self, known: SourceIdentity, lineage: Lineage) -> None:
        """Continue in the same history, or in one that descends from it."""
        store = self._store
        now = replace(known, history=lineage.now, ancestors=lineage.ancestors)
        if now == known:
            return
        if known.history != now.history:
            _log.warning(
                "failover detected; stream continued",
                history=str(now.history),
                switch=position_.text(now.ancestors[-1].until),
                position=position_.text(store.position),
            )
        position, time_us = store.position, store.time_us
        with store.transaction() as transaction:
            transaction.set_source(now)
            transaction.set_position(position, time_us)

    def _begin(
        self,
        connection: Connection,
        found: Slot | None,
        published: str,
        lineage: Lineage,
        because: str,
        *,
        former_reach: int = 0,
    ) -> None:
        """Create a new slot for a store without a position, or with one of a lost history.

        The slot ``found`` under its name is ours, one that was created since isn't. It is dropped
        while the store still shows that. The intention is stored before the new slot is created:
        its token identifies a slot that a crash left.
        """
        options, store = self._options, self._store
        name, known = options.slot_name, store.source
        identity = SourceIdentity(
            history=lineage.now,
            slot=name,
            publication=published,
            token=pgoutput.new_secret(),
            ancestors=lineage.ancestors,
            because=because,
            former_reach=known.former_reach if known is not None else 0,
            former_sequences=known.former_sequences if known is not None else 0,
        )
        if former_reach:
            # Tables begin again, and their sequences with the time in microseconds.
            now_us = time.time_ns() // 1000
            identity = replace(identity, former_reach=former_reach, former_sequences=now_us)
        if found is not None:
            slot.drop(connection, found)
        with store.transaction() as transaction:
            transaction.set_source(identity)
            transaction.set_marker(None)
        with (
            self._patience.suspended(),
            slot.waits_reported(options, connection, self._waits_for, self._stopping),
        ):
            start = slot.create(connection, name, identity.token)
        with store.transaction() as transaction:
            transaction.set_source(replace(identity, since=start))
            transaction.set_position(start, 0)

    def _check_owned(
        self, connection: Connection, server: timeline.Server, found: Slot | None
    ) -> None:
        """Refuse to replace a slot that isn't provably ours."""
        known = self._store.source
        if found is None or ownership.is_used_by(
            self._store, server.history.system_identifier, found
        ):
            return
        if known is not None:
            self._waits_for("checking whether the slot was created for this store")
            with self._patience.suspended():
                if ownership.is_made_for(known, found, self._options, connection, self._stopping):
                    return
        raise ownership.foreign(found)

    def _drop_former(self, connection: Connection, server: timeline.Server, name: str) -> None:
        """Drop a slot of ours that is no longer used, because it would keep WAL for ever."""
        found = slot.read(connection, name)
        if found is not None and ownership.is_used_by(
            self._store, server.history.system_identifier, found
        ):
            slot.drop(connection, found)

    def _refuse_loss(self, lost: str) -> None:
        if self._options.on_slot_lost is OnSlotLost.FAIL:
            raise SlotLost(
                f"{lost}; changes after {position_.text(self._store.position)} are lost. Set"
                " on_slot_lost = recreate to copy every table again"
            )

    def _let_go(self, known: SourceIdentity, *, comparable: bool) -> int:
        """Close the tables after a loss; returns the highest position of a lost history, or 0.

        Clients can read a closed table unchanged until it is copied again; but if positions of the
        new history can't be compared (not ``comparable``), the tables are dropped.
        """
        store = self._store
        position = store.position
        with store.transaction() as transaction:
            for record in list(transaction.tables.values()):
                # A table that is dropped here leaves no trace that it was copied before.
                self._counters.note_copied_again(record.qualified)
                if record.status is Status.LIVE and comparable:
                    closed = replace(record, status=Status.CLOSED, closed_at=position)
                    transaction.put_table(closed)
                elif record.status is not Status.CLOSED or not comparable:
                    transaction.drop_table(record.id)
        return 0 if comparable else max(position, known.former_reach)


def _server(connection: Connection, stream: ReplicationStream) -> timeline.Server:
    server = stream.identify()
    database = ownership.database(connection)
    history = History(server.system_identifier, server.timeline, database)
    return timeline.Server(history, server.position, stream.switches(server.timeline))
