"""Readers of the store: tables, journal, and snapshots of rows."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from laredo_fanout.store import environment, seal, table
from laredo_fanout.store import journal as journal_
from laredo_fanout.store.environment import CUT_KEY_BYTES, Databases, SourceIdentity, StoreHead
from laredo_fanout.store.errors import (
    JournalDamaged,
    JournalPruned,
    RowsDamaged,
    SnapshotClosed,
    StoreMissing,
    TableHidden,
    TableUnknown,
)
from laredo_fanout.store.journal import Record
from laredo_fanout.store.shared_spool import Pair, SharedSpool, SharedSpools
from laredo_fanout.store.table import Status, TableRecord
from laredo_model import key as key_
from laredo_model.column import Column


@dataclass(frozen=True, slots=True)
class TableView:
    """A table's record and position at one moment, for a reader of the store."""

    #: The incarnation's record.
    record: TableRecord
    #: The store's position, or in a relay the table's own; of a closed table, its last position.
    position: int
    #: The newest commit time in the store, microseconds since 1970.
    time_us: int

    @property
    def id(self) -> int:
        """The incarnation's id; another one means another schema, or another copy."""
        return self.record.id

    @property
    def name(self) -> str:
        """``schema.name``."""
        return self.record.qualified

    @property
    def status(self) -> Status:
        """State of the incarnation."""
        return self.record.status

    @property
    def shown(self) -> bool:
        """True if clients can read it: LIVE, or CLOSED while its next incarnation is copied."""
        return self.record.shown

    @property
    def live(self) -> bool:
        """True if changes still come."""
        return self.record.live

    @property
    def error(self) -> str:
        """Reason of the table's failure."""
        return self.record.error

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, in the order of the line."""
        return self.record.columns

    @property
    def sequence(self) -> int:
        """Sequence of the newest entry."""
        return self.record.sequence

    @property
    def oldest_sequence(self) -> int:
        """Sequence of the oldest entry; ``sequence + 1`` while there is none."""
        return self.record.oldest_sequence

    @property
    def entries(self) -> int:
        """Number of the journal's entries."""
        return self.record.entries

    @property
    def rows(self) -> int:
        """Number of the table's rows."""
        return self.record.rows

    @property
    def boundary(self) -> int:
        """Last position at which an artifact of the table may end.

        A catalog snapshot has shown that silent DDL rewrote no value up to here. It is never after
        ``position``.
        """
        return min(self.record.boundary, self.position)

    def boundary_at(self, position: int) -> int:
        """Last position at which an artifact may end, for a reader with the rows of ``position``.

        If these rows may differ from the source's for good, it is the last position before that.
        """
        starts = [each.start for each in self.record.suspect_ranges if each.hides(position)]
        return min(self.boundary, *starts) if starts else self.boundary

    def suspect(self, position: int) -> bool:
        """True if the rows at this position may differ from the source's, for good."""
        return any(each.hides(position) for each in self.record.suspect_ranges)

    def leads_on_from(self, position: int) -> bool:
        """True if the journal has every change between ``position`` and the table's position."""
        return self.floor <= position <= self.position and not self.skips(position)

    def skips(self, position: int) -> bool:
        """True if this is a relay that never had the rows at this position."""
        return any(each.skips(position) for each in self.record.suspect_ranges)

    @property
    def floor(self) -> int:
        """Position from which the journal is complete."""
        return self.record.floor


def view_of(record: TableRecord, position: int, time_us: int) -> TableView:
    """The view of a record in a store that is at ``position``."""
    if record.status is Status.CLOSED and record.closed_at:
        # Not the store's position, which may be lower: after a lost slot it begins again.
        position = record.closed_at
    elif record.position:
        position = record.position
    return TableView(record, position, time_us)


def current(records: list[TableRecord]) -> TableRecord | None:
    """The incarnation that represents a table: the shown one, or else the newest."""
    shown = [record for record in records if record.shown]
    return max(shown or records, key=lambda record: record.incarnation, default=None)


def current_of_each(records: Iterable[TableRecord]) -> dict[str, TableRecord]:
    """The :func:`current` record of each table, by its qualified name."""
    incarnations: dict[str, list[TableRecord]] = {}
    for record in records:
        incarnations.setdefault(record.qualified, []).append(record)
    found = ((name, current(each)) for name, each in incarnations.items())
    return {name: record for name, record in found if record is not None}


# A snapshot of one table's rows, within one LMDB read transaction.

_SPOOL_ROWS = 2000

Batch = tuple[list[bytes], list[bytes]]


class _SpillStopped(Exception):
    """The remaining rows aren't needed any more."""


class Snapshot:
    """A table's rows in key order, as of one commit of the store.

    Each row is compared with its seal, and all of them with the table's running checksum: if rows
    were damaged on disk, ``batches`` ends with an error.

    It holds an LMDB read transaction, which keeps the writer from reusing freed
    pages: take the rows quickly, or call ``spill``. Use it from one thread at a
    time.
    """

    def __init__(
        self,
        transaction: Any,
        databases: Databases,
        view: TableView,
        spools: SharedSpools,
    ) -> None:
        self.view = view
        self._transaction: Any = transaction
        self._prefix = environment.prefix(view.record.space)
        self._key_fields = view.record.key_fields
        self._id = (view.record.space, view.id, view.sequence)
        self._spools = spools
        self._spool: SharedSpool | None = None
        self._cursor = transaction.cursor(db=databases.state)
        self._last = b""
        self._pairs = self._from_store()
        self._stopped = self._closed = False
        self._taken_rows = self._taken_sum = 0

    @property
    def position(self) -> int:
        """Position whose changes, and no later ones, are in the rows."""
        return self.view.position

    @property
    def sequence(self) -> int:
        """Sequence of the newest journal entry in the rows."""
        return self.view.sequence

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.view.rows

    @property
    def spooled_by_another(self) -> bool:
        """True if a reader of the same snapshot has already written all remaining rows."""
        return self._spools.holds(self._id, self._last)

    def batches(self, size: int = 1900) -> Iterator[Batch]:
        """Yield the remaining rows, as (keys, lines) of up to ``size`` rows each.

        :raises SnapshotClosed: if the snapshot is closed, or its spill was stopped.
        :raises RowsDamaged: if a row isn't what was written, or rows are missing.
        """
        while pairs := self._take(size):
            keys, lines, total, damaged = seal.opened(pairs)
            if damaged >= 0:
                raise self._damaged(f"first at key {pairs[damaged][0][4:84]!r}")
            self._taken_rows += len(lines)
            self._taken_sum += total
            yield self._row_keys(keys, lines), lines
        record = self.view.record
        if (self._taken_rows, self._taken_sum % seal.MODULUS) != (record.rows, record.checksum):
            raise self._damaged(
                f"{self._taken_rows} of {record.rows} rows, or other ones, were read"
            )

    def _damaged(self, why: str) -> RowsDamaged:
        return RowsDamaged(self.view.id, self.view.name, why, self.view.record.space)

    def spill(self) -> None:
        """Write the remaining rows to a temporary file, and close the LMDB transaction.

        ``batches`` goes on from the file. The call blocks while it writes. If another thread calls
        ``stop_spilling``, it returns early, and the snapshot can only be closed.

        :raises SpoolFailed: if there is no room; the snapshot is unchanged then.
        """
        if self._transaction is None:
            return
        last, spool = self._last, self._spools.borrow(self._id)
        try:
            spool.fill(last, self._rest())
        except _SpillStopped:
            self._spools.give_back(spool)
            self._end_transaction()
            self._closed = True
            return
        except BaseException:
            self._spools.give_back(spool)
            self._last = last
            self._pairs = self._from_store()
            raise
        self._end_transaction()
        self._spool, self._last = spool, last
        self._pairs = spool.read(last)
        self._closed = self._closed or self._stopped

    def _rest(self) -> Iterator[list[Pair]]:
        while pairs := self._take(_SPOOL_ROWS):
            yield pairs
            if self._stopped:
                raise _SpillStopped
        if self._stopped:
            raise _SpillStopped

    def stop_spilling(self) -> None:
        """End a running ``spill`` at its next step: the remaining rows aren't needed any more."""
        self._stopped = True

    def close(self) -> None:
        """Close the LMDB transaction and the spool."""
        self._closed = True
        self._end_transaction()
        if self._spool is not None:
            self._spools.give_back(self._spool)
            self._spool = None

    def __enter__(self) -> "Snapshot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _from_store(self) -> Iterator[Pair]:
        """The rows after the last one that was taken."""
        found = self._cursor.set_range(self._last or self._prefix)
        if found and self._cursor.key() == self._last:
            found = self._cursor.next()
        pairs: Iterator[Pair] = self._cursor.iternext() if found else iter(())
        return pairs

    def _take(self, size: int) -> list[Pair]:
        """Up to ``size`` more rows of this space, by their stored keys."""
        if self._closed:
            raise SnapshotClosed(self.view.name)
        try:
            pairs = list(islice(self._pairs, size))
        except lmdb.Error as failed:
            raise self._damaged(str(failed)) from failed
        if pairs and not pairs[-1][0].startswith(self._prefix):
            pairs = [pair for pair in pairs if pair[0].startswith(self._prefix)]
            self._pairs = iter(())
        if pairs:
            self._last = pairs[-1][0]
        return pairs

    def _row_keys(self, keys: list[bytes], lines: list[bytes]) -> list[bytes]:
        if max(map(len, keys)) == CUT_KEY_BYTES:
            return [
                key_.of_line(line, self._key_fields) if len(key) == CUT_KEY_BYTES else key
                for key, line in zip(keys, lines, strict=True)
            ]
        return keys

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._cursor.close()
            self._transaction.abort()
            self._transaction = None


RECORD_COST = 1500
"""Number of bytes whose copying costs as much as the reading of one record."""


class StoreReader:
    """Reader of the writer's last commit. Calls are cheap, and threads may share it.

    Every process opens its own, and must not use it after a fork.
    """

    def __init__(
        self, directory: Path, opened: Any, databases: Databases, *, owned: bool = True
    ) -> None:
        self.path = directory
        self._environment = opened
        self._databases = databases
        self._owned = owned
        self._definitions: dict[bytes, tuple[bytes, bytes, TableRecord]] = {}

    @classmethod
    def open(cls, path: Path | str) -> "StoreReader":
        """Open the store in this directory, which another process writes.

        :raises StoreMissing: if there is none (yet).
        :raises StoreDamaged: if the files aren't a usable store.
        :raises StoreFormatUnknown: if another version wrote it, in another format.
        """
        directory = Path(path)
        opened, databases = environment.open_readable(directory)
        reader = cls(directory, opened, databases)
        try:
            with reader._begun() as transaction:
                head = transaction.get(environment.STORE_KEY, db=databases.meta)
            if head is None:
                raise StoreMissing(str(directory))
            environment.check_format(directory, head)
        except BaseException:
            reader.close()
            raise
        return reader

    def source(self) -> SourceIdentity | None:
        """Source of the changes; None in a store that no session has used."""
        return self._head().source

    def server_id(self) -> str:
        """Id that was generated when the store was created."""
        return self._head().server_id

    def _head(self) -> StoreHead:
        with self._begun() as transaction:
            stored = transaction.get(environment.STORE_KEY, db=self._databases.meta)
        return environment.check_format(self.path, stored)

    def upstream_path(self) -> bytes | None:
        """In a relay: the servers between PostgreSQL and this one, as the relay wrote them."""
        with self._begun() as transaction:
            key, meta = environment.UPSTREAM_PATH_KEY, self._databases.meta
            return environment.get(transaction, meta, key, self.path)

    def ownership(self) -> environment.Ownership | None:
        """Role among the servers that share the slot; None if the slot was never shared."""
        with self._begun() as transaction:
            return environment.ownership(transaction, self._databases.meta, self.path)

    def position(self) -> tuple[int, int]:
        """The store's position and newest commit time (microseconds since 1970)."""
        with self._begun() as transaction:
            return self._position(transaction)

    def tables(self) -> list[TableView]:
        """All incarnations of all tables, in order of their ids."""
        with self._begun() as transaction:
            position = self._position(transaction)
            records = self._records(transaction)
        return [view_of(each, *position) for each in records]

    def table(self, name: str) -> TableView:
        """The table ``schema.name``: its shown incarnation, or else its newest.

        :raises TableUnknown: if the store has none of this name.
        """
        with self._begun() as transaction:
            position = self._position(transaction)
            found = current(self._records(transaction, name))
        if found is None:
            raise TableUnknown(name)
        return view_of(found, *position)

    def current_views(self) -> dict[str, TableView]:
        """Every table by its name, as :meth:`table` finds it; one walk over all definitions."""
        with self._begun() as transaction:
            position = self._position(transaction)
            found = current_of_each(self._records(transaction))
        return {name: view_of(record, *position) for name, record in found.items()}

    def table_by_id(self, table_id: int) -> TableView:
        """One incarnation.

        :raises TableUnknown: if it is gone.
        """
        with self._begun() as transaction:
            position = self._position(transaction)
            found = self._record(transaction, table_id)
        return view_of(found, *position)

    def snapshot(
        self,
        table_id: int,
        spool_directory: Path | None = None,
        *,
        spools: SharedSpools | None = None,
    ) -> Snapshot:
        """Open a snapshot of the table's present rows. Close it, or use it in a ``with`` block.

        While it is open the writer can't reuse freed space, so call ``spill`` for a slow reader. It
        writes to ``spool_directory`` (default: the system's for temporary files), or to ``spools``,
        which slow readers of the same rows share.

        :raises TableUnknown: if the table is gone.
        :raises TableHidden: if the table isn't shown (yet).
        :raises RowsDamaged: if rows of the table are known to be damaged, and not repaired yet.
        :raises StoreDamaged: if LMDB finds the data file damaged.
        :raises StoreLimited: if too many read transactions are open.
        """
        with self._translated(), ExitStack() as opened:
            transaction = self._environment.begin()
            opened.callback(transaction.abort)
            found = self._record(transaction, table_id)
            if not found.shown:
                raise TableHidden(found.qualified, found.status, found.error)
            if found.damage:
                raise RowsDamaged(found.id, found.qualified, found.damage, found.space)
            view = view_of(found, *self._position(transaction))
            snapshot = Snapshot(
                transaction, self._databases, view, spools or SharedSpools(spool_directory)
            )
            opened.pop_all()
        return snapshot

    def row_part(
        self, table_id: int, after: bytes, max_bytes: int
    ) -> tuple[TableRecord, list[Pair]]:
        """The table's record, and its stored rows after the stored key ``after``, up to about
        ``max_bytes``.

        :raises TableUnknown: if the table is gone.
        :raises TableHidden: if it isn't shown.
        """
        pairs: list[Pair] = []
        size = 0
        with self._begun() as transaction:
            found = self._record(transaction, table_id)
            if not found.shown or found.damage:
                raise TableHidden(found.qualified, found.status, found.error)
            prefix = environment.prefix(found.space)
            cursor = transaction.cursor(db=self._databases.state)
            there = cursor.set_range(after or prefix)
            if there and cursor.key() == after:
                there = cursor.next()
            while there and size < max_bytes and cursor.key().startswith(prefix):
                pairs.append(cursor.item())
                size += len(pairs[-1][1])
                there = cursor.next()
            cursor.close()
        return found, pairs

    def journal(
        self,
        table_id: int,
        after_sequence: int,
        max_bytes: int = 1 << 20,
        *,
        with_old: bool = True,
    ) -> list[Record]:
        """The records with the entries after ``after_sequence``, up to about ``max_bytes``.

        Each record counts RECORD_COST more than its size. There is at least one record, unless
        there are no newer entries; the first record begins at ``after_sequence + 1``.

        :raises JournalPruned: if some of the entries were pruned.
        :raises JournalDamaged: if a record isn't what was written, or is missing.
        :raises TableUnknown: if the table is gone.
        """
        records: list[Record] = []
        size = 0
        reached = after_sequence
        with self._begun(buffers=True) as transaction:
            known = self._record(transaction, table_id)
            if after_sequence + 1 < known.oldest_sequence:
                raise JournalPruned(known.qualified, after_sequence, known.oldest_sequence)
            if after_sequence >= known.sequence:
                return records
            cursor = transaction.cursor(db=self._databases.journal)
            prefix = environment.prefix(table_id)
            found = self._seek(cursor, table_id, after_sequence + 1)
            while found and cursor.key()[: environment.PREFIX_BYTES] == prefix:
                key = bytes(cursor.key())
                old_body = b""
                if with_old:
                    olds = transaction.get(key, b"", db=self._databases.olds)
                    if not seal.fits(key, olds):
                        raise JournalDamaged(table_id, known.qualified, reached)
                    old_body = bytes(olds[: -seal.SEAL_BYTES])
                if not seal.fits(key, cursor.value()):
                    raise JournalDamaged(table_id, known.qualified, reached)
                read = journal_.record_of(key, cursor.value(), old_body)
                if not read.first_sequence <= reached + 1 <= read.last_sequence:
                    raise JournalDamaged(table_id, known.qualified, reached)
                reached = read.last_sequence
                size += len(read.body) + len(old_body) + RECORD_COST
                if records and size > max_bytes:
                    break
                records.append(read)
                found = cursor.next()
            else:
                if reached < known.sequence:
                    raise JournalDamaged(table_id, known.qualified, reached)
            cursor.close()
        if records:
            records[0] = journal_.cut(records[0], after_sequence)
        return records

    def sequence_after_position(
        self, table_id: int, position: int, *, inclusive: bool = False
    ) -> int:
        """The first entry after ``position`` (with ``inclusive``: at or after it).

        It is the newest sequence + 1 if there is none. Entries before the floor are gone, so
        compare ``position`` with the floor first.

        :raises TableUnknown: if the table is gone.
        """
        lowest = position if inclusive else position + 1
        with self._begun(buffers=True) as transaction:
            known = self._record(transaction, table_id)
            return journal_.first_from(transaction, self._databases, known, lowest)

    def close(self) -> None:
        """Close the environment, unless it is the writer's."""
        if self._owned:
            self._environment.close()

    def __enter__(self) -> "StoreReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seek(self, cursor: Any, table_id: int, sequence: int) -> bool:
        """Put the cursor on the record of this entry; False if there is none."""
        key = journal_.record_key(table_id, sequence)
        if cursor.set_range(key):
            if bytes(cursor.key()) == key:
                return True
            return bool(cursor.prev())
        return bool(cursor.last())

    @contextmanager
    def _begun(self, *, buffers: bool = False) -> Iterator[Any]:
        """Begin a read transaction for the block.

        :raises StoreDamaged: if LMDB finds the data file damaged.
        :raises StoreLimited: if too many read transactions are open.
        """
        with self._translated(), self._environment.begin(buffers=buffers) as transaction:
            yield transaction

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise LMDB's errors in the block as the store's."""
        try:
            yield
        except lmdb.Error as failed:
            raise environment.lmdb_failed(self.path, failed) from failed

    def _position(self, transaction: Any) -> tuple[int, int]:
        key, meta = environment.POSITION_KEY, self._databases.meta
        return environment.position_from_bytes(environment.get(transaction, meta, key, self.path))

    def _record(self, transaction: Any, table_id: int) -> TableRecord:
        number = environment.prefix(table_id)
        definition = transaction.get(environment.DEFINITION + number, db=self._databases.meta)
        figures = transaction.get(environment.FIGURES + number, db=self._databases.meta)
        if definition is None or figures is None:
            raise TableUnknown(table_id)
        return self._parsed(number, bytes(definition), bytes(figures))

    def _records(self, transaction: Any, name: str | None = None) -> list[TableRecord]:
        """The records of all tables, or of those with this name: no record changes its name."""
        cursor = transaction.cursor(db=self._databases.meta)
        found = cursor.set_range(environment.DEFINITION)
        numbers = []
        while found and cursor.key().startswith(environment.DEFINITION):
            numbers.append(cursor.key()[len(environment.DEFINITION) :])
            found = cursor.next()
        cursor.close()
        for gone in self._definitions.keys() - numbers:
            self._definitions.pop(gone, None)  # another thread may have done it
        if name is not None:
            known = [(number, self._definitions.get(number)) for number in numbers]
            numbers = [n for n, each in known if each is None or each[2].qualified == name]
        records = [self._record(transaction, int.from_bytes(each, "big")) for each in numbers]
        return [each for each in records if name in (None, each.qualified)]

    def _parsed(self, number: bytes, definition: bytes, figures: bytes) -> TableRecord:
        """Parse a record, or return the cached one: records are read often and seldom change."""
        known = self._definitions.get(number)
        if known is not None and known[:2] == (definition, figures):
            return known[2]
        values = environment.opened(environment.FIGURES + number, figures, self.path)
        if known is not None and known[0] == definition:
            parsed = table.with_figures(known[2], values)
        else:
            opened = environment.opened(environment.DEFINITION + number, definition, self.path)
            parsed = table.from_bytes(opened, values)
        self._definitions[number] = definition, figures, parsed
        return parsed
