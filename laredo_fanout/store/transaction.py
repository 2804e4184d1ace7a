"""One durable step of the store: rows, journal, position and definitions, all or nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog

from laredo_fanout.store import environment, journal
from laredo_fanout.store import table as table_
from laredo_fanout.store.barrier import Barrier, CopyComparison
from laredo_fanout.store.disk import DiskSpace
from laredo_fanout.store.environment import (
    Databases,
    LastRecopy,
    Marker,
    Ownership,
    SourceIdentity,
    StoreHead,
    WriteContext,
)
from laredo_fanout.store.errors import (
    ChunkStale,
    JournalDamaged,
    PositionWentBack,
    RowsDamaged,
    TableClosed,
    TableUnknown,
    TransactionOpen,
)
from laredo_fanout.store.journal import PRUNE_RECORDS, Journal
from laredo_fanout.store.rows import Applier, Spaces, TableChanges
from laredo_fanout.store.table import Leaf, Status, TableRecord
from laredo_model import position as position_
from laredo_model.column import Column

_log = structlog.get_logger()


class Transaction:
    """A write transaction of ``Store.transaction()``; used by one thread.

    Everything in it becomes durable and visible together. It contains only whole
    PostgreSQL transactions; a giant one may be applied in pieces.
    """

    def __init__(
        self,
        transaction: Any,
        databases: Databases,
        disk: DiskSpace,
        *,
        head: StoreHead,
        position: tuple[int, int],
        tables: dict[int, TableRecord],
        catchup_plan: bytes | None,
        ownership: Ownership | None,
        next_sequence: Callable[[], int],
    ) -> None:
        self._context = WriteContext(transaction, databases, disk, head, dict(tables))
        self._before = tables
        self._head_before = head
        self._position_before = position
        self._catchup_plan_before = catchup_plan
        self._ownership_before = ownership
        self._next_sequence = next_sequence
        self._spaces = Spaces(self._context)
        self._journal = Journal(self._context)
        self._applying = Applier(self._context, self._spaces, self._journal)
        self.tables = self._context.tables
        self.position, self.time_us = position
        self.catchup_plan = catchup_plan
        self.ownership = ownership

    @property
    def head(self) -> StoreHead:
        """Head of the store within this transaction."""
        return self._context.head

    @property
    def left_garbage(self) -> bool:
        """True if rows or journal records must be removed later."""
        return self._context.left_garbage

    # ------------------------------------------------------------------ tables

    def add_table(
        self,
        schema: str,
        name: str,
        oid: int,
        columns: Sequence[Column],
        *,
        identity: str = "",
        copy: dict[str, Any] | None = None,
    ) -> TableRecord:
        """Add a new incarnation of a table, COPYING; other incarnations of its name stay."""
        table_id, self._context.head = self.head.take_table()
        space = self._context.take_space()
        before = [
            each for each in self.tables.values() if (each.schema, each.name) == (schema, name)
        ]
        first = self._next_sequence()
        record = TableRecord(
            id=table_id,
            incarnation=1 + max((each.incarnation for each in before), default=0),
            schema=schema,
            name=name,
            oid=oid,
            columns=tuple(columns),
            identity=identity,
            copy=copy or {},
            sequence=first,
            oldest_sequence=first + 1,
            space=space,
        )
        self.tables[table_id] = record
        return record

    def put_table(self, record: TableRecord) -> None:
        """Change a record's status, error, columns, identity, copy or closed_at.

        The store's own figures are unchanged.
        """
        current = self._record(record.id)
        self.tables[record.id] = replace(
            record,
            sequence=current.sequence,
            oldest_sequence=current.oldest_sequence,
            oldest_time_us=current.oldest_time_us,
            floor=current.floor,
            rows=current.rows,
            generation=current.generation,
            space=current.space,
            checksum=current.checksum,
            verified=current.verified,
            position=current.position,
            leaves=current.leaves,
            suspect_ranges=current.suspect_ranges,
        )

    def set_verified(self, table_id: int, position: int) -> None:
        """Record that silent DDL has rewritten none of the table's values up to ``position``."""
        self.tables[table_id] = replace(self._record(table_id), verified=position)

    def set_table_position(self, table_id: int, position: int) -> None:
        """Set a table's own position, in a relay, whose tables come in streams of their own.

        :raises PositionWentBack: if the table is already after it.
        """
        record = self._record(table_id)
        if position < record.position:
            raise PositionWentBack(record.position, position)
        self.tables[table_id] = replace(record, position=position)

    def share_position(self, table_ids: Iterable[int]) -> None:
        """Make the store's position that of these tables from here on."""
        for table_id in table_ids:
            self.tables[table_id] = replace(self._record(table_id), position=0)

    def set_sequence(self, table_id: int, sequence: int) -> None:
        """Set the newest entry's sequence, in a standby; the journal begins after it.

        The transaction also publishes the table: readers never see its sequence go down.
        """
        record = self._record(table_id)
        self.tables[table_id] = replace(record, sequence=sequence, oldest_sequence=sequence + 1)

    def set_leaves(self, table_id: int, leaves: Sequence[Leaf]) -> None:
        """Set the partitions whose rows the table has and no catalog snapshot has accounted for."""
        self.tables[table_id] = replace(self._record(table_id), leaves=tuple(leaves))

    def begin_suspect_range(
        self, table_id: int, because: str, *, again: bool = False, unseen: bool = False
    ) -> TableRecord:
        """Begin a suspect range: rows may be wrong since the verified position, until a re-copy.

        ``again``: until the re-copy after the one that is running. ``unseen``: the next changes
        replace all transactions since the table's position.
        """
        record = self._record(table_id)
        if record.suspect_range is None:
            position = record.position or self.position
            record = table_.begun(
                record,
                min(record.boundary, position),
                because,
                unseen_after=position if unseen else 0,
            )
        if again:
            record = table_.once_more(record, because)
        self.tables[table_id] = record
        return record

    def drop_table(self, table_id: int) -> None:
        """Forget a table; its rows and journal are removed later, in small steps."""
        record = self._record(table_id)
        self._context.discard(environment.GARBAGE_SPACE, record.space)
        self._context.discard(environment.GARBAGE_JOURNAL, record.id)
        del self.tables[table_id]
        self._applying.forget(table_id)

    def set_source(self, source: SourceIdentity) -> None:
        """Set the source of later changes; another history or slot starts at position 0."""
        if source != self.head.source:
            self._context.head = replace(self.head, source=source)
            self.position = self.time_us = 0

    def set_streams(self, names: tuple[str, ...]) -> None:
        """Set the names of replication connections that PostgreSQL may have for this store."""
        self._context.head = replace(self.head, streams=names)

    def set_last_recopy(self, table: str, ended: LastRecopy | None) -> None:
        """Set the result of this table's last re-copy; None forgets it."""
        others = {name: last for name, last in self.head.last_recopies.items() if name != table}
        kept = others if ended is None else {**others, table: ended}
        self._context.head = replace(self.head, last_recopies=kept)

    def set_marker(self, marker: Marker | None) -> None:
        """Set the last message of ours in the stream; None if this history has none yet."""
        self._context.head = replace(self.head, marker=marker)

    def set_position(self, position: int, time_us: int) -> None:
        """Set the position up to which the store has all of PostgreSQL's changes to its tables.

        :raises PositionWentBack: if the store is already after it.
        """
        if position < self.position:
            raise PositionWentBack(self.position, position)
        self.position = position
        self.time_us = max(self.time_us, time_us)

    def set_upstream_path(self, path: bytes) -> None:
        """Set the servers between PostgreSQL and this one, in a relay."""
        self._context.disk.reserve(1, len(path))
        context = self._context
        environment.put(
            context.transaction, context.databases.meta, environment.UPSTREAM_PATH_KEY, path
        )

    def set_catchup_plan(self, plan: bytes | None) -> None:
        """Set the plan of a split backlog; None if no backlog is split."""
        self.catchup_plan = plan

    # ------------------------------------------------------------------ rows

    def apply(self, table_id: int, changes: TableChanges) -> None:
        """Apply the stream's changes to the rows, and to the journal if the table is live.

        After an open piece, an empty piece that isn't open ends the transaction.

        :raises TableClosed: if the table is neither COPYING nor LIVE.
        :raises RowIncomplete: if a live table's row would lack columns.
        :raises StoreFull: if there is no room; the transaction must be given up.
        """
        for _ in self.apply_in_pieces(table_id, changes):
            pass

    def apply_in_pieces(
        self, table_id: int, changes: TableChanges, expected: int = 0
    ) -> Iterator[None]:
        """Apply changes in bounded pieces of half a millisecond; iterate to the end.

        ``expected`` is about the number of bytes of changes that are still to come in this
        transaction, these included, for the message of DiskFull.
        """
        return self._applying.take(self._record(table_id), changes, expected)

    def take_lacking(self, table_id: int) -> bool:
        """True if the live table has lacked the row of a change since the last call."""
        lacking = table_id in self._applying.lacking
        self._applying.lacking.discard(table_id)
        return lacking

    def fill(
        self, table_id: int, keys: list[bytes], lines: list[bytes], generation: int | None = None
    ) -> int:
        """Write copied rows where no row is yet, and columns where they are missing.

        ``generation`` is the table's when the reading of the rows began. Returns the
        number of rows that were added.

        :raises ChunkStale: if the table was truncated since.
        :raises TableClosed: if the table isn't COPYING.
        """
        record = self._record(table_id)
        if record.status is not Status.COPYING:
            raise TableClosed(record.qualified, record.status, "copied rows")
        if generation is not None and generation != record.generation:
            raise ChunkStale(record.qualified, generation, record.generation)
        added = self._spaces.rows_of(record).fill(keys, lines)
        self.tables[table_id] = self._spaces.count(record, added)
        return added

    def numbered(self, table_id: int, digests: Sequence[bytes]) -> list[bytes]:
        """Keys for rows that are added to a table without a key, as in ``Rows.numbered``."""
        return self._spaces.rows_of(self._record(table_id)).numbered(digests)

    def partial_keys(self, table_id: int) -> Iterator[bytes]:
        """Keys of rows that still lack columns; they must be read again before the barrier."""
        return self._spaces.rows_of(self._record(table_id)).partial_keys()

    # ------------------------------------------------------------------ barrier

    def barrier(self) -> Barrier:
        """The end of a table's copy, within this transaction."""
        return Barrier(self._context, self._spaces)

    def publish(self, table_id: int, position: int, time_us: int) -> TableRecord:
        """Make the table live at its barrier's ``position``, which is the journal's floor.

        ``time_us`` is the barrier's commit time. Older incarnations of the same name
        are dropped; the sequence goes on after theirs, but skips one number for the
        schema change itself.

        :raises RowIncomplete: if rows still lack columns.
        :raises TableClosed: if the table isn't COPYING.
        """
        record = self.barrier().publish(self._copying(table_id), position)
        others = self._others(record)
        if others:
            sequence = max(each.sequence for each in others) + 1
            record = replace(record, sequence=sequence, oldest_sequence=sequence + 1)
        for each in others:
            self.drop_table(each.id)
        self.tables[table_id] = record
        self.time_us = max(self.time_us, time_us)
        return record

    def publish_differences(
        self,
        table_id: int,
        position: int,
        time_us: int,
        keep_alive: Callable[[], None] | None = None,
    ) -> int:
        """Write the differences of a re-copy, at its barrier, to the live incarnation.

        Rows that differ enter the live table's journal at the barrier's position as
        ordinary changes; rows that were damaged on disk are repaired without a change
        (see CopyComparison). Then the copy is dropped. Returns the number of rows that
        differed. ``keep_alive`` is called after every thousand rows, because PostgreSQL
        ends a connection that is silent for long; if it raises an error, the transaction
        must be given up.

        :raises TableUnknown: if there is no live incarnation.
        :raises RowsDamaged: if nobody knows which rows the readers have.
        """
        comparison = CopyComparison(self, self._copying(table_id).id, position)
        notice = keep_alive or (lambda: None)
        while comparison.compare_block(self):
            notice()
        while comparison.prove_block(self):
            notice()
        if not comparison.is_proven:
            live = self.tables[comparison.live_id]
            why = "and its readers may have other rows than PostgreSQL"
            raise RowsDamaged(live.id, live.qualified, why, live.space)
        for _ in comparison.publish(self, time_us):
            notice()
        return comparison.differing

    def take_rows(self, live_id: int, copy_id: int) -> None:
        """Give the live incarnation the rows of its copy, without a change in its journal.

        The copy is dropped, and with it the former rows.
        """
        live, copied = self._record(live_id), self._record(copy_id)
        self.tables[copy_id] = replace(copied, space=live.space)
        self.tables[live_id] = replace(live, space=copied.space)
        self.drop_table(copy_id)

    def drop_damaged_journal(self, table_id: int, after: int) -> bool:
        """Drop the part of the journal with the damaged record after the entry ``after``.

        Returns False if nothing is dropped: the part was dropped already, or the table's last
        transaction goes on, of which a reader at the new floor would miss the first part.
        """
        if table_id in self._applying.unfinished:
            return False
        record = self._record(table_id)
        position = record.position or self.position
        self.tables[table_id] = kept = self._journal.drop_damaged(record, after, position)
        if kept is record:
            return False
        _log.error(
            "damaged journal dropped", table=kept.qualified, up_to=position_.text(kept.floor)
        )
        return True

    def end_suspect_range(self, table_id: int, position: int, time_us: int) -> TableRecord:
        """End the table's suspect range at ``position``, where its rows are right."""
        record = self._record(table_id)
        suspect_range = record.suspect_range
        assert suspect_range is not None
        first = self._first_from(table_id, suspect_range.start + 1)
        record = table_.ended(self._record(table_id), first, position, time_us)
        self.tables[table_id] = record
        return record

    def _first_from(self, table_id: int, lowest: int) -> int:
        """The first entry at or after ``lowest``, once damaged parts of the journal are dropped."""
        context, is_cleared = self._context, False
        while True:
            record = self._record(table_id)
            try:
                return journal.first_from(context.transaction, context.databases, record, lowest)
            except JournalDamaged as damaged:
                after = damaged.damage.after
                assert after is not None, "it is the journal's"
                if not self.drop_damaged_journal(table_id, after):
                    if is_cleared:
                        raise
                    is_cleared = True

    def prune(
        self,
        table_id: int,
        max_entries: int,
        max_age_s: float,
        now_us: int,
        pinned_sequence: int | None = None,
        *,
        records: int = PRUNE_RECORDS,
    ) -> int:
        """Do one step of pruning (see ``Store.prune``); returns the number of entries dropped."""
        record = self._record(table_id)
        older = now_us - int(max_age_s * 1_000_000)
        pruned = self._journal.prune(record, max_entries, older, pinned_sequence, records)
        if pruned.suspect_ranges:
            pruned = table_.pruned(pruned)
        self.tables[table_id] = pruned
        return record.entries - pruned.entries

    # ------------------------------------------------------------------ end

    def finish(self) -> None:
        """Write the changed definitions, position and head; the caller commits.

        :raises TransactionOpen: in the middle of a PostgreSQL transaction.
        """
        for table_id in self._applying.unfinished:
            raise TransactionOpen(self.tables[table_id].qualified)
        context, database = self._context, self._context.databases.meta
        for record in self.tables.values():
            before = self._before.get(record.id)
            if record != before:
                environment.put_table(
                    context.transaction, database, context.disk.reserve, record, before
                )
        for gone in self._before.keys() - self.tables.keys():
            environment.delete_table(context.transaction, database, gone)
        if self.head != self._head_before:
            stored = self.head.to_bytes()
            context.disk.reserve(1, len(stored))
            context.transaction.put(environment.STORE_KEY, stored, db=database)
        position = self.position, self.time_us
        if position != self._position_before:
            stored = environment.position_to_bytes(*position)
            environment.put(context.transaction, database, environment.POSITION_KEY, stored)
        if self.catchup_plan != self._catchup_plan_before:
            self._put_catchup_plan()
        if self.ownership is not None and self.ownership != self._ownership_before:
            stored = self.ownership.to_bytes()
            context.disk.reserve(1, len(stored))
            environment.put(context.transaction, database, environment.OWNERSHIP_KEY, stored)

    def _put_catchup_plan(self) -> None:
        context, plan = self._context, self.catchup_plan
        if plan is None:
            context.transaction.delete(environment.CATCHUP_KEY, db=context.databases.meta)
        else:
            context.disk.reserve(1, len(plan))
            environment.put(
                context.transaction, context.databases.meta, environment.CATCHUP_KEY, plan
            )

    def _record(self, table_id: int) -> TableRecord:
        try:
            return self.tables[table_id]
        except KeyError:
            raise TableUnknown(table_id) from None

    def _copying(self, table_id: int) -> TableRecord:
        record = self._record(table_id)
        if record.status is not Status.COPYING:
            raise TableClosed(record.qualified, record.status, "a barrier")
        return record

    def _others(self, record: TableRecord) -> list[TableRecord]:
        return [
            each
            for each in self.tables.values()
            if each.qualified == record.qualified and each.id != record.id
        ]
