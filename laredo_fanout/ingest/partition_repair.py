"""Repair of tables whose rows came or went with partitions, without a change in the stream.

Partitioned tables are repaired after ATTACH and DETACH, other tables after they were a partition
for a while. The differences enter the journal, while readers go on.

When the stream passes a catalog snapshot's message, the snapshot is compared with the table's
record. If rows may have moved (pg_catalog/partitions.py), a suspect range begins at the last
verified position, and a re-copy begins (recopy.py). At its barrier the differences enter the
journal as ordinary changes, and the range ends. No position in between ever counts as verified.

The range is kept with the table's record: a re-copy that ended without a result, or with the
server, is restarted. If rows move during a re-copy, it goes on to its end and repairs what it can,
and another one follows: otherwise partitions that move often would never let one end.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import structlog

from laredo_fanout.errors import RecopyRefused
from laredo_fanout.pg_catalog import partitions, shape
from laredo_fanout.pg_catalog.partitions import AnnouncedLeaves
from laredo_fanout.store.table import Status
from laredo_model import position as position_
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from laredo_fanout.batch.status import Counters
    from laredo_fanout.batch.tracked_table import TrackedTable
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.copy.copier import TableCopies
    from laredo_fanout.copy.recopy import Recopies
    from laredo_fanout.pg_catalog.partitions import Account
    from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.store.table import Leaf, TableRecord
    from laredo_fanout.store.transaction import Transaction

_log = structlog.get_logger()

_RETRY = Backoff(initial=1.0, maximum=60.0)
_CHECK_AGAIN_S = 0.1
_NEW_FILE = "it was truncated or rewritten while it was a partition"


class PartitionVerdict(NamedTuple):
    """Verdict of a catalog snapshot on a table's partitions."""

    closing: str | None = None
    """Reason why the table must be copied again."""
    keeps: bool = False
    """True if the table's record keeps its former partitions."""
    settled: bool = True
    """True if all partitions that brought rows up to the snapshot are accounted for."""


_SETTLED = PartitionVerdict()
_UNSETTLED = PartitionVerdict(keeps=True, settled=False)


class PartitionRepair:
    """Repairs of one session's partitioned tables; used by the ingest thread."""

    def __init__(
        self,
        batch: WriteBatch,
        recopies: Recopies,
        request_check: Callable[[float], int],
        counters: Counters,
    ) -> None:
        self._batch = batch
        self._recopies = recopies
        self._request_check = request_check
        self._counters = counters
        self.shown = AnnouncedLeaves()

    # ------------------------------------------------------------ the stream shows partitions

    def transaction_ended(
        self,
        tables: dict[int, TrackedTable],
        transaction: Transaction,
        *,
        xid: int,
        position: int,
    ) -> None:
        """Record the partitions that brought rows, in the store transaction that has the rows.

        ``tables`` are the followed tables, by oid.
        """
        shown = self.shown.ended(xid, position)
        if not shown:
            return
        for oid, tracked in tables.items():
            if tracked.table_id is None or tracked.version is None:
                continue
            known = {each.oid for each in tracked.version.partitions}
            new = [leaf for leaf in shown.get(oid, {}).values() if leaf.oid not in known]
            new += partitions.as_other_roots(oid, {oid, *known}, shown)
            if new:
                record = transaction.tables[tracked.table_id]
                transaction.set_leaves(record.id, partitions.merged(record.leaves, new))
                self._request_check(0.0)

    # ------------------------------------------------------------ a catalog snapshot is passed

    def begun(
        self, record: TableRecord, snapshot: CatalogSnapshot, transaction: Transaction
    ) -> None:
        """Record the announced partitions of a table that is copied again.

        The stream announces a partition once: without this, one that was announced already but
        isn't in the ``snapshot`` would bring rows unnoticed.
        """
        source = snapshot.tables[record.qualified]
        own = self.shown.elsewhere(source.oid, source.oids)
        left = _account((*self.shown.of(source.oid), *own), source, snapshot).undecided
        transaction.set_leaves(record.id, left)
        self.shown.settled(source.oid, left)

    def reconciled(self) -> None:
        """Forget partitions that no table needs, after all were reconciled with a snapshot."""
        self.shown.reconciled()

    def judge(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        snapshot: CatalogSnapshot,
        transaction: Transaction,
        copies: TableCopies,
    ) -> PartitionVerdict:
        """Judge the table's partitions by this snapshot; begin a repair if one is needed."""
        assert tracked.table_id is not None and tracked.version is not None
        known = {each.oid for each in tracked.version.partitions}
        new = [each.known.oid for each in source.partitions if each.known.oid not in known]
        if own := self.shown.elsewhere(source.oid, new):
            record = transaction.tables[tracked.table_id]
            transaction.set_leaves(record.id, partitions.merged(record.leaves, own))
        record = transaction.tables[tracked.table_id]
        moved = partitions.moved(tracked.version.partitions, source.partitions)
        if source.is_partition and source.version.file != tracked.version.file:
            moved = moved or _NEW_FILE
        because = moved or _account(record.leaves, source, snapshot).lost
        live = record.status is Status.LIVE
        if tracked.transaction_filter is not None or not live:
            if because is not None and (moved or live):
                return PartitionVerdict(because)
            if not live:
                # Until it is live its record keeps the first partitions; then it is repaired.
                return PartitionVerdict(keeps=True, settled=because is None)
        elif because is not None or record.suspect_range is not None:
            return self._repair(tracked, source, snapshot, transaction, copies, because=because)
        left = self._settle(tracked, source, snapshot, transaction)
        # A partition that is gone, and brought rows since, may have had other rows before.
        return PartitionVerdict(settled=not left)

    def _settle(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        snapshot: CatalogSnapshot,
        transaction: Transaction,
    ) -> tuple[Leaf, ...]:
        """Forget partitions that are accounted for; returns those that came since the snapshot."""
        assert tracked.table_id is not None
        record = transaction.tables[tracked.table_id]
        shown = partitions.merged(record.leaves, self.shown.of(source.oid))
        left = _account(shown, source, snapshot).undecided
        if left:
            self._request_check(_CHECK_AGAIN_S)
        if left != record.leaves:
            transaction.set_leaves(record.id, left)
        self.shown.settled(source.oid, left)
        return left

    def _repair(
        self,
        tracked: TrackedTable,
        source: SourceTable,
        snapshot: CatalogSnapshot,
        transaction: Transaction,
        copies: TableCopies,
        *,
        because: str | None,
    ) -> PartitionVerdict:
        """Begin the re-copy that repairs moved rows, unless one is running."""
        assert tracked.table_id is not None and tracked.shape is not None
        record = transaction.tables[tracked.table_id]
        under_way = tracked.recopy_id is not None
        if because is not None:
            if record.suspect_range is None or (under_way and not record.suspect_range.again):
                self._suspect(tracked, because, transaction, again=under_way)
        elif under_way:
            self._settle(tracked, source, snapshot, transaction)
            return _SETTLED
        if under_way or time.monotonic() < tracked.repair_at:
            return _UNSETTLED
        # The copy and later snapshots are compared with this snapshot.
        self._settle(tracked, source, snapshot, transaction)
        tracked.version = source.version
        kept = shape.to_json(tracked.shape, source.version)
        transaction.put_table(replace(transaction.tables[record.id], copy=kept))
        self.begin(tracked, transaction, copies)
        return _SETTLED

    def _suspect(
        self, tracked: TrackedTable, because: str, transaction: Transaction, *, again: bool
    ) -> None:
        assert tracked.table_id is not None
        name = tracked.options.qualified
        suspect_range = transaction.begin_suspect_range(
            tracked.table_id, because, again=again
        ).suspect_range
        assert suspect_range is not None
        tracked.repair_retries, tracked.repair_at = 0, 0.0
        self._batch.touch(tracked.table_id)
        self._counters.count_repaired(name)
        _log.warning(
            "repair scheduled: rows moved with a partition",
            table=name,
            reason=because,
            from_position=position_.text(suspect_range.start),
        )

    def begin(self, tracked: TrackedTable, transaction: Transaction, copies: TableCopies) -> None:
        """Begin a repair's re-copy; if it is refused, another attempt is due after a pause."""
        tracked.repair_retries += 1
        pause = _RETRY.delay(tracked.repair_retries)
        tracked.repair_at = time.monotonic() + pause
        try:
            self._recopies.begin(tracked, transaction, copies)
        except RecopyRefused as refused:
            _log.warning(
                "repair failed; retry scheduled",
                table=tracked.options.qualified,
                error=str(refused),
                retry_after_s=round(pause, 1),
            )


def _account(leaves: Iterable[Leaf], source: SourceTable, snapshot: CatalogSnapshot) -> Account:
    altered = bool(snapshot.ddl_locks.of(source))
    reach = snapshot.ddl_locks.reach
    return partitions.account(leaves, source.partitions, reach, altered=altered, table=source.oid)
