"""Tracked tables: the configured tables, their incarnations, and the routes of their relations.

An incarnation begins, ends or changes only when the stream has passed a catalog
snapshot's message: then every change of an earlier form has arrived, and every later
one is in the form of that snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from laredo_fanout.batch import tracked_table
from laredo_fanout.batch.tracked_table import TrackedTable
from laredo_fanout.copy.recopy import Recopies
from laredo_fanout.copy.table_copy import RECOPY_OF, TableCopy
from laredo_fanout.decode.row_scan import IGNORED, Route
from laredo_fanout.decode.stream_decoder import ResyncRequired
from laredo_fanout.errors import RecopyRefused, SelectDenied, TableLocked, TableRefused
from laredo_fanout.ingest.partition_repair import PartitionRepair, PartitionVerdict
from laredo_fanout.pg_catalog import shape
from laredo_fanout.pg_catalog.requirements import TransactionFilter
from laredo_fanout.store.table import Status
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.copy.copier import TableCopies
    from laredo_fanout.copy.recopy import RecopyAsked
    from laredo_fanout.decode.stream_decoder import StreamRelations
    from laredo_fanout.pg_catalog.partitions import AnnouncedLeaves
    from laredo_fanout.pg_catalog.shape import Shape
    from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.pgoutput import Relation
    from laredo_fanout.source_options import SourceTableOptions
    from laredo_fanout.store.errors import Damage
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.transaction import Transaction
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()


class Incarnations:
    """Begin, keep, refuse or close incarnations of a session's tables, in the ingest thread."""

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
        """Begin a new incarnation, which takes every change from here on.

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
            # Counted once it is durable: if the session is cut before, nothing was begun.
            self._batch.when_durable(partial(self._counters.count_recopy, source.qualified))
        tracked.table_id, tracked.shape, tracked.version = record.id, now, source.version
        tracked.transaction_filter = TransactionFilter(live=False) if source.append_only else None
        tracked.closed_by_stream = False
        self._routes.connect(tracked, now)
        if copies is not None:
            copies.add(_copy_of(tracked, source, record))
        _log.info("table copy scheduled", table=source.qualified, incarnation=record.incarnation)
        return record

    def keep(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        judged: PartitionVerdict,
        transaction: Transaction,
        copies: TableCopies,
    ) -> None:
        """Keep an unchanged incarnation; a copy that an earlier session began goes on."""
        assert tracked.table_id is not None and tracked.shape is not None
        self._recopies.keep(tracked, source, transaction, copies)
        record = transaction.tables[tracked.table_id]
        if record.status is Status.COPYING:
            if copies.get(record.id) is None:
                copies.add(_copy_of(tracked, source, record))
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
        """Fail the incarnation of a table that can't be replicated."""
        if tracked.table_id is None or isinstance(problem, TableLocked):
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
        """End the incarnation; clients can read a live one unchanged until the next is live."""
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


def _copy_of(tracked: TrackedTable, source: SourceTable, record: TableRecord) -> TableCopy:
    return TableCopy(record.id, tracked.options, source, record.copy, tracked.transaction_filter)


class RequestSnapshot(Protocol):
    """Function that requests a catalog snapshot in ``after_s``; returns the request's number."""

    def __call__(self, after_s: float = 0.0) -> int: ...


class RelationRoutes:
    """Routes of announced relations to the incarnations of their tables.

    ``shown`` collects the announced partitions.
    """

    def __init__(
        self,
        tables: Mapping[str, TrackedTable],
        relations: StreamRelations,
        request_snapshot: RequestSnapshot,
        shown: AnnouncedLeaves,
    ) -> None:
        self._tables = tables
        self._relations = relations
        self._request_snapshot = request_snapshot
        self._shown = shown
        self._hinted = self._answered = 0

    def route(self, relation: Relation) -> Route:
        """Return the route of a relation that was just announced."""
        tracked = self._by_oid(relation.oid)
        if tracked is None or tracked.table_id is None or tracked.closing is not None:
            return IGNORED
        if tracked.shape is None or not tracked.shape.fits(relation):
            self._must_close(tracked, "the stream announced it with another definition")
            return IGNORED
        return self._decoding(tracked)

    def announced_again(self, relation: Relation) -> None:
        """Request a snapshot: a statement that rewrites values may leave no other trace."""
        tracked = self._by_oid(relation.oid)
        if tracked is not None and self._hinted <= self._answered:
            self._hinted = self._request_snapshot()

    def answered(self, number: int) -> None:
        """Note that the stream has passed the catalog snapshot that answers this number."""
        self._answered = number

    def announced_after(self, root: int, leaf: int) -> None:
        """Note that changes of the partition ``leaf`` come as those of ``root``."""
        self._shown.announced(root, leaf)
        self._relations.stop()
        tracked = self._by_oid(root)
        if tracked is None or tracked.table_id is None or tracked.closing is not None:
            return
        known = tracked.source.partitions if tracked.source is not None else ()
        usual = next((each.replica_identity for each in known if each.known.oid == leaf), None)
        partition = self._relations.announced[leaf]
        if tracked.shape is not None and not tracked.shape.identifies(partition, usual):
            # The old row of an update lacks the root's key, which nothing else shows.
            self._must_close(tracked, "the replica identity of a partition lacked its key")
            self.disconnect(tracked)

    def broken(self, route: Route, error: Exception) -> None:
        """Close the table of a route with a row that can't be decoded; it is copied again."""
        for tracked in self._tables.values():
            if tracked.table_id is not None and tracked.table_id == route.table_id:
                self._must_close(tracked, f"a change of it can't be decoded: {error}")
                return

    def connect(self, tracked: TrackedTable, now: Shape) -> None:
        """Route the relation's changes to the new incarnation, if it was announced already.

        The server uses an announcement until it sends the next one. If the announcement
        doesn't fit the catalog, no change may arrive before the next one.
        """
        relation = self._relations.announced.get(now.oid)
        if relation is None:
            return
        fits = now.fits(relation)
        route = self._decoding(tracked) if fits else tracked_table.surprised(tracked.table_id)
        self._relations.set_route(now.oid, route)

    def disconnect(self, tracked: TrackedTable) -> None:
        """Ignore the relation's changes from here on."""
        if tracked.shape is not None:
            self._relations.set_route(tracked.shape.oid, None)

    def _by_oid(self, oid: int) -> TrackedTable | None:
        for tracked in self._tables.values():
            if tracked.shape is not None and tracked.shape.oid == oid:
                return tracked
        return None

    def _decoding(self, tracked: TrackedTable) -> Route:
        """A route that decodes the tracked table's rows."""
        relations = self._relations
        return tracked_table.of(tracked, lambda: relations.xid)

    def _must_close(self, tracked: TrackedTable, reason: str) -> None:
        """Close the table before this transaction, at whose end the decoder stops."""
        tracked.closing = reason
        self._relations.forget(tracked.table_id, reason)


_RETRY = Backoff(initial=10.0, maximum=600.0)
_ALTERED_PAUSE_S = 0.1
_TAKEN_OVER = "a standby took over, and can't know which partitions moved rows"


class TrackedTables:
    """The configured tables in one session of the stream; used by the ingest thread."""

    def __init__(
        self,
        tables: Sequence[SourceTableOptions],
        batch: WriteBatch,
        relations: StreamRelations,
        request_snapshot: RequestSnapshot,
        counters: Counters,
    ) -> None:
        self._batch = batch
        self._counters = counters
        self._relations = relations
        self._request_snapshot = request_snapshot
        self._tables = {table.qualified: TrackedTable(table) for table in tables}
        self.recopies = Recopies(batch, counters)
        self._repair = PartitionRepair(batch, self.recopies, request_snapshot, counters)
        self.routes = RelationRoutes(self._tables, relations, request_snapshot, self._repair.shown)
        self._incarnations = Incarnations(batch, self.routes, self.recopies, counters)
        self.carries_appends = False
        """True if the stream has the publication of append-only tables."""
        self.may_restart = True
        """True if the session may end for another one: it doesn't read a split backlog."""
        self.must_restart = False
        """True if an append-only table waits for a stream with that publication."""

    @property
    def tables(self) -> Mapping[str, TrackedTable]:
        """The tables by qualified name."""
        return self._tables

    def resume(
        self,
        records: Mapping[int, TableRecord],
        snapshot: CatalogSnapshot,
        transaction: Transaction,
        position: int,
    ) -> None:
        """Take up the store's incarnations; those that don't fit the catalog any more are closed.

        Changes with an older definition can't be decoded, because its types are unknown.
        """
        for name, tracked in self._tables.items():
            tracked.problem = snapshot.problems.get(name)
        for record in sorted(records.values(), key=lambda record: record.id):
            known = self._tables.get(record.qualified)
            if known is None:
                _log.info("table dropped: not configured", table=record.qualified)
                transaction.drop_table(record.id)
                transaction.set_last_recopy(record.qualified, None)
            elif RECOPY_OF in record.copy:
                self.recopies.resume(known, record, transaction)
            elif record.status in (Status.LIVE, Status.COPYING):
                known.resume(record, snapshot)
                if known.closing is not None:
                    self._incarnations.close(known, transaction, position)
                elif record.verified > position:
                    # After a failover, WAL after the durable position may be gone.
                    transaction.set_verified(record.id, position)

    def suspect_partitions(self, transaction: Transaction) -> None:
        """Begin suspect ranges of partitioned tables: only the former holder of the slot knew
        which partitions brought rows."""
        for tracked in self._tables.values():
            record = transaction.tables.get(tracked.table_id or 0)
            version = tracked.version
            if record is not None and record.live and version is not None and version.partitions:
                transaction.begin_suspect_range(record.id, _TAKEN_OVER)

    def keep_leaves(self, transaction: Transaction, position: int) -> None:
        """Record new partitions whose rows may be in the transaction that just ended."""
        tables = {
            tracked.shape.oid: tracked
            for tracked in self._tables.values()
            if tracked.shape is not None
        }
        self._repair.transaction_ended(
            tables, transaction, xid=self._relations.xid, position=position
        )

    def close_marked(self, transaction: Transaction, position: int, copies: TableCopies) -> None:
        """Close the tables that the routes found not to fit, at the position before that."""
        for tracked in self._tables.values():
            if tracked.closing is not None and tracked.table_id is not None:
                copies.remove(tracked.table_id)
                self._incarnations.close(tracked, transaction, position)
                # The next catalog snapshot may still be from before this announcement.
                tracked.wanted_check = self._request_snapshot()
                tracked.closed_by_stream = True

    def reconcile(
        self,
        snapshot: CatalogSnapshot,
        transaction: Transaction,
        position: int,
        copies: TableCopies,
    ) -> None:
        """Begin, close or refuse tables by a snapshot whose message the stream has passed.

        ``position`` is the last one before the message.
        """
        self.routes.answered(snapshot.answers)
        source_identity = transaction.head.source
        published = snapshot.publication or (source_identity and source_identity.publication)
        if source_identity is not None and published and source_identity.publication != published:
            # The publication was created again: every membership differs, so all tables are copied.
            time_us = transaction.time_us
            transaction.set_source(replace(source_identity, publication=published))
            transaction.set_position(position, time_us)
        for name, tracked in self._tables.items():
            problem = snapshot.problems.get(name)
            source = snapshot.tables.get(name)
            goes_on = isinstance(problem, TableLocked) and tracked.table_id is not None
            tracked.problem = None if goes_on else problem
            tracked.partitions_judged = False
            if problem is not None or source is None:
                if problem is not None:
                    self._incarnations.refuse(tracked, problem, transaction, copies)
                continue
            tracked.source = source
            now = shape.of_table(source)
            if tracked.table_id is not None and tracked.shape is not None:
                assert tracked.version is not None
                judged = PartitionVerdict()
                if now != tracked.shape:
                    tracked.closing = tracked.shape.difference(now)
                elif (rewritten := source.rewritten_since(tracked.version)) is not None:
                    tracked.closing = rewritten
                else:
                    judged = self._repair.judge(tracked, source, snapshot, transaction, copies)
                    tracked.partitions_judged = judged.settled
                    tracked.closing = judged.closing
                if tracked.closing is None:
                    self._incarnations.keep(tracked, source, judged, transaction, copies)
                    self._repair_damage(tracked, transaction, copies)
                    continue
                copies.remove(tracked.table_id)
                self._incarnations.close(tracked, transaction, position)
            if snapshot.answers < tracked.wanted_check or time.monotonic() < tracked.retry_at:
                continue
            if tracked.closed_by_stream and not snapshot.ddl_locks.exclusive.isdisjoint(
                source.oids
            ):
                tracked.wanted_check = self._request_snapshot(_ALTERED_PAUSE_S)
                continue
            if tracked.options.append_only and not self._carried(snapshot):
                continue
            begun = self._incarnations.begin(
                tracked, source, now, transaction, None if self.must_restart else copies
            )
            self._repair.begun(begun, snapshot, transaction)
        self._repair.reconciled()

    def verify(self, snapshot: CatalogSnapshot, *, passed: bool) -> None:
        """Advance the verified positions that this snapshot proves; see silent_ddl.py.

        It proves them before the stream has ``passed`` its message, which in a backlog takes long;
        but for a partitioned table only the stream up to the message shows which partitions brought
        rows.
        """
        for name, tracked in self._tables.items():
            source = snapshot.tables.get(name)
            if source is None:
                continue
            tracked.altered_by = snapshot.ddl_locks.of(source)
            if not self._is_as_known(tracked, source, snapshot.problems.get(name)):
                continue
            assert tracked.table_id is not None
            moves = bool(source.partitioned or self._batch.table(tracked.table_id).leaves)
            if moves and not (passed and tracked.partitions_judged):
                continue
            if not passed and tracked.may_have_been_partition(source):
                continue
            if not tracked.altered_by:
                self._batch.verified(tracked.table_id, snapshot.ddl_locks.reach)

    def _is_as_known(
        self, tracked: TrackedTable, source: SourceTable, problem: TableRefused | None
    ) -> bool:
        """True if the incarnation that takes changes is unchanged."""
        if tracked.table_id is None or tracked.closing is not None or tracked.version is None:
            return False
        if problem is not None and not isinstance(problem, SelectDenied):
            return False
        unchanged = shape.of_table(source) == tracked.shape
        return unchanged and source.changed_since(tracked.version) is None

    def _carried(self, snapshot: CatalogSnapshot) -> bool:
        """True if the stream has an append-only table's changes from here on, or soon will.

        If a new stream would have them, it begins as soon as this is durable.
        """
        if not self.carries_appends and snapshot.appends_may_stream and self.may_restart:
            self.must_restart = True
        return self.carries_appends or self.must_restart

    def copy_failed(
        self, table_id: int, failed: TableRefused, transaction: Transaction, copies: TableCopies
    ) -> None:
        """Fail a table whose copy gave up; another copy follows after a pause.

        If a re-copy gave up, the table is unchanged, and no other re-copy follows.
        """
        for tracked in self._tables.values():
            if tracked.recopy_id == table_id:
                copies.remove(table_id)
                self.recopies.drop(tracked, transaction, str(failed))
            if tracked.table_id == table_id:
                tracked.retries += 1
                pause = _RETRY.delay(tracked.retries)
                tracked.retry_at = time.monotonic() + pause
                tracked.problem = failed
                self._incarnations.refuse(tracked, failed, transaction, copies)
                _log.error("copy failed", error=str(failed), retry_after_s=round(pause, 1))

    def recopy(self, asked: RecopyAsked, copies: TableCopies) -> None:
        """Begin a requested re-copy; the request is answered when its beginning is durable."""
        if not asked.is_awaited():
            return
        tracked = self._tables.get(asked.table)
        if tracked is None:
            asked.answer.set_exception(KeyError(asked.table))
            return
        try:
            self.recopies.begin(tracked, self._batch.transaction, copies)
        except RecopyRefused as refused:
            asked.answer.set_exception(refused)
        except BaseException:
            asked.end()
            raise
        else:
            self._batch.when_durable(lambda: asked.answer.set_result(None), asked.end)

    def repair(self, found: Damage, transaction: Transaction, copies: TableCopies) -> None:
        """Repair damage on disk: copy the rows again, or drop that part of the journal."""
        record = transaction.tables.get(found.table_id)
        if record is None or not record.shown:
            return
        if found.after is None and found.space != record.space:
            return  # the rows were replaced since they were read
        if found.after is not None:
            if not transaction.drop_damaged_journal(record.id, found.after):
                return
        elif not record.damage:
            transaction.put_table(replace(record, damage=found.why))
            _log.error("stored rows damaged", table=record.qualified, where=found.why)
            for tracked in self._tables.values():
                if tracked.table_id == record.id:
                    self._repair_damage(tracked, transaction, copies)
        self._counters.count_damage(record.qualified)
        self._batch.touch(record.id)

    def _repair_damage(
        self, tracked: TrackedTable, transaction: Transaction, copies: TableCopies
    ) -> None:
        """Begin the re-copy that repairs a table's damaged rows, if it has any."""
        assert tracked.table_id is not None
        record = transaction.tables[tracked.table_id]
        if not record.damage or tracked.recopy_id is not None:
            return
        if tracked.transaction_filter is not None:
            raise ResyncRequired(record.id, f"its stored rows were damaged: {record.damage}")
        if time.monotonic() >= tracked.repair_at:
            self._repair.begin(tracked, transaction, copies)

    def copied(self, table_id: int, differing: int) -> None:
        """Note the end of a copy, or of a re-copy that found ``differing`` rows."""
        for tracked in self._tables.values():
            if tracked.recopy_id == table_id:
                self.recopies.done(tracked, self._batch.transaction, differing)
            if tracked.table_id == table_id:
                tracked.retries = 0
                tracked.retry_at = 0.0
                if tracked.transaction_filter is not None and tracked.shape is not None:
                    tracked.transaction_filter.go_live()
                    self.routes.connect(tracked, tracked.shape)

    def give_up_recopies(self, store: Store, reason: str) -> None:
        """Give up re-copies in a full store, so that the live rows have room.

        :raises StoreFull: if there is no room even for that.
        """
        for tracked in self._tables.values():
            if tracked.recopy_id is not None:
                with store.transaction() as transaction:
                    self.recopies.drop(tracked, transaction, reason)

    def close_durably(self, found: ResyncRequired, store: Store) -> None:
        """Close one table at the durable position, for the next session to copy; give up a
        re-copy."""
        for tracked in self._tables.values():
            if tracked.recopy_id == found.table_id:
                with store.transaction() as transaction:
                    self.recopies.drop(tracked, transaction, found.reason)
            # The store hasn't an incarnation that began after the last commit.
            if tracked.table_id == found.table_id and found.table_id in store.tables:
                tracked.closing = found.reason
                with store.transaction() as transaction:
                    self._incarnations.close(tracked, transaction, store.position)
