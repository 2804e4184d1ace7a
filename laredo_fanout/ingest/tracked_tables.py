"""The tables that are to be replicated: which incarnation takes the stream's changes, and when
another one must begin.

What may begin, end or change is decided only where the stream has passed a
look's message: then every change of an earlier form has been seen, and every
later one is in the form of that look.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from laredo_fanout.catalog import shape
from laredo_fanout.catalog.append_only import Intake
from laredo_fanout.copy.recopy import BESIDE, Recopies
from laredo_fanout.copy.table_copy import TableCopy
from laredo_fanout.decode.change_buffer import IGNORED, Route
from laredo_fanout.errors import RecopyRefused, SelectDenied, TableRefused
from laredo_fanout.ingest.partition_repair import Judged, PuttingRight
from laredo_fanout.store.table import Status
from laredo_fanout.tables import decoding_route
from laredo_fanout.tables.tracked_table import TrackedTable
from laredo_model.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.catalog.shape import Shape
    from laredo_fanout.catalog.snapshot import Look
    from laredo_fanout.catalog.table_definitions import SourceTable
    from laredo_fanout.copy.recopy import RecopyAsked
    from laredo_fanout.copy.table_copies import TableCopies
    from laredo_fanout.decode.stream_decoder import ResyncRequired, StreamDecoder
    from laredo_fanout.postgres.pgoutput import Relation
    from laredo_fanout.source_options import TableOptions
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.transaction import Transaction
    from laredo_fanout.store.writer import Store
    from laredo_fanout.tables.status import Counters
    from laredo_fanout.tables.write_batch import WriteBatch

_log = structlog.get_logger()

_RETRY = Backoff(initial=10.0, maximum=600.0)
_ALTERED_PAUSE_S = 0.1


class LookNow(Protocol):
    """Asks for a look in ``after_s``; gives the number that it will answer."""

    def __call__(self, after_s: float = 0.0) -> int: ...


class Tracking:
    """All of them. It is what the decoder asks for routes."""

    def __init__(
        self,
        tables: Sequence[TableOptions],
        batch: WriteBatch,
        request_look: LookNow,
        counters: Counters,
    ) -> None:
        self._counters = counters
        self._batch = batch
        self._request_look = request_look
        self._tables = {table.qualified: TrackedTable(table) for table in tables}
        self._decoder: StreamDecoder | None = None
        self.recopies = Recopies(batch, counters)
        self._putting_right = PuttingRight(batch, self.recopies, request_look, counters)
        self._hinted = self._answered = 0
        self.carries_appends = False
        """Whether the stream has the publication of append-only tables."""
        self.may_begin_anew = True
        """Whether the stream can be ended for one that has it."""
        self.must_begin_anew = False
        """An append-only table waits for such a stream."""

    @property
    def tables(self) -> Mapping[str, TrackedTable]:
        """By qualified name."""
        return self._tables

    def follow(self, decoder: StreamDecoder) -> None:
        """From now on ``decoder`` asks, and is told."""
        self._decoder = decoder

    def resume(
        self,
        records: Mapping[int, TableRecord],
        look: Look,
        transaction: Transaction,
        position: int,
    ) -> None:
        """Take up the store's incarnations; what doesn't fit the catalog any more is closed.

        Changes of an older form can't be decoded without the types that they had.
        """
        for name, tracked in self._tables.items():
            tracked.problem = look.problems.get(name)
        for record in sorted(records.values(), key=lambda record: record.id):
            known = self._tables.get(record.qualified)
            if known is None:
                _log.info("table is no longer configured; it is dropped", table=record.qualified)
                transaction.drop_table(record.id)
                transaction.set_last_recopy(record.qualified, None)
            elif BESIDE in record.copy:
                self.recopies.resume(known, record, transaction)
            elif record.status in (Status.LIVE, Status.COPYING):
                known.resume(record, look)
                if known.closing is not None:
                    self._close(known, transaction, position)
                elif record.verified > position:
                    # WAL beyond what is durable here may be gone by now, after a failover.
                    transaction.set_verified(record.id, position)

    # ------------------------------------------------------------ the decoder asks

    def route(self, relation: Relation) -> Route:
        """Where the changes of a relation that was just announced go."""
        tracked = self._by_oid(relation.oid)
        if tracked is None or tracked.table_id is None or tracked.closing is not None:
            return IGNORED
        if tracked.shape is None or not tracked.shape.fits(relation):
            self._must_close(tracked, "the stream announces it in another form")
            return IGNORED
        return self._decoding(tracked)

    def announced_again(self, relation: Relation) -> None:
        """Have a look soon: a statement that rewrites values says no more than this."""
        tracked = self._by_oid(relation.oid)
        if tracked is not None and self._hinted <= self._answered:
            self._hinted = self._request_look()

    def announced_behind(self, root: int, leaf: int) -> None:
        """A relation was announced right behind another one: it may be a partition of that."""
        if self._by_oid(leaf) is None:
            assert self._decoder is not None
            self._putting_right.shown.announced(root, leaf)
            self._decoder.stop()

    def truncated(self, oids: Sequence[int]) -> None:
        """Those of one TRUNCATE are announced one behind the other."""
        self._putting_right.shown.truncated(oids)

    def broken(self, route: Route, error: Exception) -> None:
        """A row of ``route`` can't be decoded: its table is closed and copied anew."""
        for tracked in self._tables.values():
            if tracked.table_id is not None and tracked.table_id == route.table_id:
                self._must_close(tracked, f"a change of it can't be used: {error}")
                return

    def apply(self, routes: list[Route]) -> None:
        """Take a part of a giant transaction."""
        self._batch.apply(routes)

    def _by_oid(self, oid: int) -> TrackedTable | None:
        for tracked in self._tables.values():
            if tracked.shape is not None and tracked.shape.oid == oid:
                return tracked
        return None

    def _decoding(self, tracked: TrackedTable) -> Route:
        """A route that decodes the tracked table's rows."""
        stream = self._decoder
        assert stream is not None
        return decoding_route.of(tracked, lambda: stream.xid)

    def _must_close(self, tracked: TrackedTable, reason: str) -> None:
        """Close it where this transaction began; the decoder stops at the transaction's end."""
        assert self._decoder is not None
        tracked.closing = reason
        self._decoder.forget(tracked.table_id, reason)

    # ------------------------------------------------------------ at a transaction's end

    def keep_leaves(self, transaction: Transaction) -> None:
        """The transaction that just ended may have rows of partitions that aren't known yet."""
        stream = self._decoder
        assert stream is not None
        tables = {
            tracked.shape.oid: tracked
            for tracked in self._tables.values()
            if tracked.shape is not None
        }
        self._putting_right.transaction_ended(
            tables,
            transaction,
            xid=stream.xid,
            position=stream.position,
        )

    def close_marked(self, transaction: Transaction, position: int, copies: TableCopies) -> None:
        """Close what ``route`` or ``broken`` found, at the last position before it."""
        for tracked in self._tables.values():
            if tracked.closing is not None and tracked.table_id is not None:
                copies.remove(tracked.table_id)
                self._close(tracked, transaction, position)
                # A look from before what the stream has just shown may still be on its way.
                tracked.wanted_look = self._request_look()
                tracked.closed_by_stream = True

    def reconcile(
        self, look: Look, transaction: Transaction, position: int, copies: TableCopies
    ) -> None:
        """The stream has passed this look's message: begin, close or refuse tables as it says.

        ``position``: the last one before the message.
        """
        self._answered = look.answers
        source_identity = transaction.head.source
        published = look.publication or (source_identity and source_identity.publication)
        if source_identity is not None and published and source_identity.publication != published:
            # Made again; every table has another membership, so each is copied anew.
            time_us = transaction.time_us
            transaction.set_source(replace(source_identity, publication=published))
            transaction.set_position(position, time_us)
        for name, tracked in self._tables.items():
            problem = look.problems.get(name)
            source = look.tables.get(name)
            tracked.problem = problem
            tracked.partitions_judged = False
            if problem is not None or source is None:
                if problem is not None:
                    self._refuse(tracked, problem, transaction, copies)
                continue
            tracked.source = source
            now = shape.of_table(source)
            if tracked.table_id is not None and tracked.shape is not None:
                assert tracked.version is not None
                judged = Judged()
                if now != tracked.shape:
                    tracked.closing = tracked.shape.difference(now)
                elif (rewritten := source.rewritten_since(tracked.version)) is not None:
                    tracked.closing = rewritten
                else:
                    judged = self._putting_right.judge(tracked, source, look, transaction, copies)
                    tracked.partitions_judged = judged.settled
                    tracked.closing = judged.closing
                if tracked.closing is None:
                    self._keep(tracked, source, judged, transaction, copies)
                    continue
                copies.remove(tracked.table_id)
                self._close(tracked, transaction, position)
            if look.answers < tracked.wanted_look or time.monotonic() < tracked.retry_at:
                continue
            if tracked.closed_by_stream and not look.altering.exclusive.isdisjoint(source.oids):
                tracked.wanted_look = self._request_look(_ALTERED_PAUSE_S)
                continue
            if tracked.options.append_only and not self._carried(look):
                continue
            begun = self._begin(tracked, source, now, transaction, copies)
            self._putting_right.begun(begun, look, transaction)

    def verify(self, look: Look, *, passed: bool) -> None:
        """Up to where this look shows that no value was rewritten in silence; see silent_ddl.py.

        Also before the stream has ``passed`` its message: behind a backlog that is long after. But
        of a partitioned table only the rows until there say which partitions brought any.
        """
        for name, tracked in self._tables.items():
            source = look.tables.get(name)
            if source is None or not self._is_as_known(tracked, source, look.problems.get(name)):
                continue
            tracked.altered_by = look.altering.of(source)
            if source.partitioned and not (passed and tracked.partitions_judged):
                continue
            assert tracked.table_id is not None
            if not tracked.altered_by:
                self._batch.verified(tracked.table_id, look.altering.reach)

    def _is_as_known(
        self, tracked: TrackedTable, source: SourceTable, problem: TableRefused | None
    ) -> bool:
        """Whether nothing happened to the incarnation that takes changes."""
        if tracked.table_id is None or tracked.closing is not None or tracked.version is None:
            return False
        if problem is not None and not isinstance(problem, SelectDenied):
            return False
        unchanged = shape.of_table(source) == tracked.shape
        return unchanged and source.changed_since(tracked.version) is None

    def _carried(self, look: Look) -> bool:
        """Whether the stream, or the one that is begun as soon as this is durable, has an
        append-only table's changes from here on."""
        if not self.carries_appends and look.appends_may_stream and self.may_begin_anew:
            self.must_begin_anew = True
        return self.carries_appends or self.must_begin_anew

    def copy_failed(
        self, table_id: int, failed: TableRefused, transaction: Transaction, copies: TableCopies
    ) -> None:
        """The copy gave up: the table is failed, and tried again after a while.

        A re-copy that was asked for isn't: the table stays as it is.
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
                self._refuse(tracked, failed, transaction, copies)
                _log.error("copy failed", error=str(failed), retry_after_s=round(pause, 1))

    def recopy(self, asked: RecopyAsked, transaction: Transaction, copies: TableCopies) -> None:
        """Begin a re-copy beside the live table; it is answered when that is durable."""
        if not asked.is_awaited():
            return
        try:
            self.recopies.begin(self._tables[asked.table], transaction, copies)
        except RecopyRefused as refused:
            asked.answer.set_exception(refused)
        else:
            self._batch.when_durable(lambda: asked.answer.set_result(None))

    def copied(self, table_id: int, differing: int) -> None:
        """The table is live; or its re-copy found so many rows ``differing``."""
        for tracked in self._tables.values():
            if tracked.recopy_id == table_id:
                self.recopies.done(tracked, self._batch.transaction, differing)
            if tracked.table_id == table_id:
                tracked.retries = 0
                tracked.retry_at = 0.0
                if tracked.intake is not None and tracked.shape is not None:
                    tracked.intake.go_live()
                    self._connect(tracked, tracked.shape)

    def give_up_recopies(self, store: Store, reason: str) -> None:
        """There is no room for rows twice: those that readers have come first.

        :raises StoreFull: if there is none even to say so.
        """
        for tracked in self._tables.values():
            if tracked.recopy_id is not None:
                with store.transaction() as transaction:
                    self.recopies.drop(tracked, transaction, reason)

    def close_durably(self, found: ResyncRequired, store: Store) -> None:
        """Close one table at the durable position; the next session copies it anew."""
        for tracked in self._tables.values():
            if tracked.table_id == found.table_id:
                tracked.closing = found.reason
                with store.transaction() as transaction:
                    self._close(tracked, transaction, store.position)

    def _begin(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        now: Shape,
        transaction: Transaction,
        copies: TableCopies,
    ) -> TableRecord:
        """A new incarnation, which takes every change from here on."""
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
        tracked.intake = Intake(live=False) if source.append_only else None
        tracked.closed_by_stream = False
        self._connect(tracked, now)
        if not self.must_begin_anew:
            copies.add(TableCopy(record.id, tracked.options, source, record.copy, tracked.intake))
        _log.info("table is to be copied", table=source.qualified, incarnation=record.incarnation)
        return record

    def _connect(self, tracked: TrackedTable, now: Shape) -> None:
        """Send the relation's changes to the new incarnation, if it was announced already.

        An announcement of an older form stays in force for the server until it
        sends the next; changes under it would be a surprise.
        """
        assert self._decoder is not None
        relation = self._decoder.relations.get(now.oid)
        if relation is None:
            return
        fits = now.fits(relation)
        route = self._decoding(tracked) if fits else decoding_route.surprised(tracked.table_id)
        self._decoder.set_route(now.oid, route)

    def _keep(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        judged: Judged,
        transaction: Transaction,
        copies: TableCopies,
    ) -> None:
        """Nothing changed; a copy that an earlier run began goes on."""
        assert tracked.table_id is not None and tracked.shape is not None
        self.recopies.keep(tracked, source, transaction, copies)
        record = transaction.tables[tracked.table_id]
        if record.status is Status.COPYING:
            if copies.get(record.id) is None:
                copies.add(
                    TableCopy(record.id, tracked.options, source, record.copy, tracked.intake)
                )
            return
        assert tracked.version is not None
        version = source.version
        if judged.keeps:
            version = version._replace(partitions=tracked.version.partitions)
        if version != tracked.version:
            tracked.version = version
            transaction.put_table(replace(record, copy=shape.to_json(tracked.shape, version)))

    def _refuse(
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
        self.recopies.drop(tracked, transaction, str(problem))
        self._disconnect(tracked)
        transaction.put_table(replace(record, status=Status.FAILED, error=str(problem), copy={}))
        self._batch.touch(record.id)
        _log.error("table can't be replicated any more", error=str(problem))

    def _close(self, tracked: TrackedTable, transaction: Transaction, position: int) -> None:
        """End the incarnation: a live one is shown as it is until the next one is published."""
        assert tracked.table_id is not None
        record = transaction.tables[tracked.table_id]
        _log.warning(
            "table closed; it is copied anew", table=record.qualified, reason=tracked.closing
        )
        self.recopies.drop(tracked, transaction, f"the table is copied anew: {tracked.closing}")
        self._disconnect(tracked)
        if record.status is Status.LIVE:
            closed = replace(record, status=Status.CLOSED, closed_at=position)
            transaction.put_table(closed)
            self._batch.touch(record.id)
        else:
            transaction.drop_table(record.id)
        tracked.closing = None

    def _disconnect(self, tracked: TrackedTable) -> None:
        if self._decoder is not None and tracked.shape is not None:
            self._decoder.set_route(tracked.shape.oid, None)
        tracked.table_id = tracked.shape = tracked.version = tracked.intake = None
