"""The store as everyone but its writer sees it: serving processes, snapshot writers, status."""

from pathlib import Path
from typing import Any

from laredo_fanout.store import environment, layout, meta, table
from laredo_fanout.store.environment import Databases
from laredo_fanout.store.errors import JournalPruned, StoreMissing, TableHidden, TableUnknown
from laredo_fanout.store.journal import positions, record
from laredo_fanout.store.journal.record import Record
from laredo_fanout.store.meta import SourceIdentity
from laredo_fanout.store.shared_spool import SharedSpools
from laredo_fanout.store.snapshot import Snapshot
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.view import TableView, current, view_of

RECORD_COST = 1500
"""Bytes whose copying costs as much as reading a record: thousands of small ones aren't free."""


class StoreReader:
    """Reads what the writer's last commit made durable. Cheap to ask; threads may share it.

    Every process opens its own, and never across a fork.
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
        """The store in this directory, which another process writes.

        :raises StoreMissing: if there is none (yet).
        :raises StoreDamaged: if what is there isn't a usable store.
        :raises StoreFormatUnknown: if another version wrote it, in another format.
        """
        directory = Path(path)
        opened, databases = environment.open_readable(directory)
        reader = cls(directory, opened, databases)
        try:
            with opened.begin() as transaction:
                head = transaction.get(meta.STORE_KEY, db=databases.meta)
            if head is None:
                raise StoreMissing(str(directory))
            environment.check_format(directory, head)
        except BaseException:
            reader.close()
            raise
        return reader

    def source(self) -> SourceIdentity | None:
        """Source of these changes; None in a store that no session has used."""
        with self._environment.begin() as transaction:
            stored = transaction.get(meta.STORE_KEY, db=self._databases.meta)
        return environment.check_format(self.path, stored).source

    def server_id(self) -> str:
        """Id that was generated when the store was created."""
        with self._environment.begin() as transaction:
            stored = transaction.get(meta.STORE_KEY, db=self._databases.meta)
        return environment.check_format(self.path, stored).server_id

    def upstream_path(self) -> bytes | None:
        """Of a relay: the servers between PostgreSQL and this one, as the relay wrote them."""
        with self._environment.begin() as transaction:
            stored: bytes | None = transaction.get(meta.UPSTREAM_PATH_KEY, db=self._databases.meta)
        return stored

    def position(self) -> tuple[int, int]:
        """The store's position and newest commit time (microseconds since 1970)."""
        with self._environment.begin() as transaction:
            stored = transaction.get(meta.POSITION_KEY, db=self._databases.meta)
        return meta.position_from_bytes(stored)

    def tables(self) -> list[TableView]:
        """All incarnations of all tables, in order of their ids."""
        with self._environment.begin() as transaction:
            stored_position = transaction.get(meta.POSITION_KEY, db=self._databases.meta)
            records = self._records(transaction)
        return [view_of(each, *meta.position_from_bytes(stored_position)) for each in records]

    def table(self, name: str) -> TableView:
        """The table ``schema.name`` as it is now: its shown incarnation, else its newest.

        :raises TableUnknown: if the store has none of this name.
        """
        with self._environment.begin() as transaction:
            stored_position = transaction.get(meta.POSITION_KEY, db=self._databases.meta)
            records = self._records(transaction)
        found = current([each for each in records if each.qualified == name])
        if found is None:
            raise TableUnknown(name)
        return view_of(found, *meta.position_from_bytes(stored_position))

    def table_by_id(self, table_id: int) -> TableView:
        """One incarnation.

        :raises TableUnknown: if it is gone.
        """
        with self._environment.begin() as transaction:
            stored_position = transaction.get(meta.POSITION_KEY, db=self._databases.meta)
            found = self._record(transaction, table_id)
        return view_of(found, *meta.position_from_bytes(stored_position))

    def snapshot(
        self,
        table_id: int,
        spool_directory: Path | None = None,
        *,
        spools: SharedSpools | None = None,
    ) -> Snapshot:
        """The table's rows, consistent, as of now. Close it, or use it in a ``with`` block.

        It keeps the writer from using freed space again while it is open, so
        for a slow taker call ``spill``, which writes to ``spool_directory``
        (default: the system's for temporary files), or to ``spools``, which slow
        takers of the same rows share.

        :raises TableUnknown: if it is gone.
        :raises TableHidden: if it isn't shown (yet).
        """
        transaction = self._environment.begin()
        try:
            found = self._record(transaction, table_id)
            if not found.shown:
                raise TableHidden(found.qualified, found.status, found.error)
            stored_position = transaction.get(meta.POSITION_KEY, db=self._databases.meta)
            view = view_of(found, *meta.position_from_bytes(stored_position))
            return Snapshot(
                transaction, self._databases, view, spools or SharedSpools(spool_directory)
            )
        except BaseException:
            transaction.abort()
            raise

    def journal(
        self,
        table_id: int,
        after_sequence: int,
        max_bytes: int = 1 << 20,
        *,
        with_old: bool = True,
    ) -> list[Record]:
        """The entries after ``after_sequence``, as they lie, up to about ``max_bytes``, of which
        each record counts RECORD_COST more than it has.

        At least one record, if there is one; the first begins exactly at
        ``after_sequence + 1``. Empty when there is nothing newer.

        :raises JournalPruned: if some of them are gone.
        :raises TableUnknown: if the table is gone.
        """
        records: list[Record] = []
        size = 0
        with self._environment.begin(buffers=True) as transaction:
            known = self._record(transaction, table_id)
            if after_sequence + 1 < known.oldest_sequence:
                raise JournalPruned(known.qualified, after_sequence, known.oldest_sequence)
            if after_sequence >= known.sequence:
                return records
            cursor = transaction.cursor(db=self._databases.journal)
            prefix = layout.prefix(table_id)
            found = self._seek(cursor, table_id, after_sequence + 1)
            while found and cursor.key()[: layout.PREFIX_BYTES] == prefix:
                key = bytes(cursor.key())
                old_body = b""
                if with_old:
                    old_body = bytes(transaction.get(key, b"", db=self._databases.olds))
                read = _record_of(key, cursor.value(), old_body)
                size += len(read.body) + len(old_body) + RECORD_COST
                if records and size > max_bytes:
                    break
                records.append(read)
                found = cursor.next()
            cursor.close()
        if records:
            records[0] = record.cut(records[0], after_sequence)
        return records

    def sequence_after_position(
        self, table_id: int, position: int, *, inclusive: bool = False
    ) -> int:
        """The first entry beyond ``position`` (``inclusive``: at or beyond it).

        The newest sequence + 1 if there is none. Doesn't count entries below the floor: compare
        with it first.

        :raises TableUnknown: if the table is gone.
        """
        lowest = position if inclusive else position + 1
        with self._environment.begin(buffers=True) as transaction:
            known = self._record(transaction, table_id)
            return positions.first_from(transaction, self._databases, known, lowest)

    def close(self) -> None:
        """Let the environment go, unless it is the writer's."""
        if self._owned:
            self._environment.close()

    def __enter__(self) -> "StoreReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _seek(self, cursor: Any, table_id: int, sequence: int) -> bool:
        """Put the cursor on the record that holds this entry."""
        key = layout.record_key(table_id, sequence)
        if cursor.set_range(key):
            if bytes(cursor.key()) == key:
                return True
            return bool(cursor.prev())
        return bool(cursor.last())

    def _record(self, transaction: Any, table_id: int) -> TableRecord:
        number = layout.prefix(table_id)
        definition = transaction.get(meta.DEFINITION + number, db=self._databases.meta)
        figures = transaction.get(meta.FIGURES + number, db=self._databases.meta)
        if definition is None or figures is None:
            raise TableUnknown(table_id)
        return self._parsed(number, bytes(definition), bytes(figures))

    def _records(self, transaction: Any) -> list[TableRecord]:
        cursor = transaction.cursor(db=self._databases.meta)
        found = cursor.set_range(meta.DEFINITION)
        numbers = []
        while found and cursor.key().startswith(meta.DEFINITION):
            numbers.append(cursor.key()[len(meta.DEFINITION) :])
            found = cursor.next()
        cursor.close()
        return [self._record(transaction, int.from_bytes(number, "big")) for number in numbers]

    def _parsed(self, number: bytes, definition: bytes, figures: bytes) -> TableRecord:
        """Records are asked for at every wake-up and change seldom."""
        known = self._definitions.get(number)
        if known is not None and known[0] == definition:
            if known[1] == figures:
                return known[2]
            parsed = table.with_figures(known[2], figures)
        else:
            parsed = table.from_bytes(definition, figures)
        self._definitions[number] = definition, figures, parsed
        return parsed


def _record_of(key: bytes, stored: Any, old_body: bytes) -> Record:
    header = record.header_of(stored)
    return Record(
        layout.sequence_of(key),
        header.last_sequence,
        header.first_position,
        header.last_position,
        header.last_time_us,
        header.open,
        header.continues,
        bytes(stored[record.HEADER.size :]),
        old_body,
    )
