"""The writer of the store, of which there is one: the ingest."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import lmdb
import structlog

from laredo_fanout.store import data_file, environment, rows
from laredo_fanout.store.environment import LastRecopy, Marker, SourceIdentity
from laredo_fanout.store.errors import (
    MapFull,
    StoreBroken,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreRemoved,
)
from laredo_fanout.store.journal import Journal
from laredo_fanout.store.table import TableRecord
from laredo_fanout.store.transaction import Transaction
from laredo_service.files import make_private

if TYPE_CHECKING:
    from laredo_fanout.store.reader import StoreReader

log = structlog.get_logger(__name__)

_READER_CHECK_S = 10.0
_DAMAGED = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError)
_RECLAIM_STEP = 20_000


class Store:
    """The LMDB environment, opened by the only process that writes to it.

    One thread at a time may begin and end transactions. The attributes and
    properties are those of the last durable commit; any thread may read them.
    """

    position: int
    """Position up to which PostgreSQL's changes are durable; 0 in a fresh store."""
    time_us: int
    """The newest commit time up to that position, microseconds since 1970."""
    tables: dict[int, TableRecord]
    """All incarnations by id; a new dict after each commit that changes one."""
    catchup_plan: bytes | None
    """Plan of a split backlog (``Transaction.set_catchup_plan``); None if no backlog is split."""

    def __init__(self, directory: Path, max_size: int) -> None:
        self.path = directory
        try:
            make_private(directory, environment.FILES)
            self._lock = environment.ServerLock(directory)
        except OSError as failed:
            raise environment.what_failed(directory, failed) from failed
        try:
            data_file.check(directory, self._lock)
            opened = environment.open_writable(directory, max_size)
        except OSError as failed:
            self._lock.release()
            raise environment.what_failed(directory, failed) from failed
        except BaseException:
            self._lock.release()
            raise
        self._environment, self._databases, self._disk = opened
        self._max_size = max_size
        self._checked_readers = monotonic()
        self._writing = False
        try:
            self._load()
        except lmdb.Error as failed:
            self.close()
            raise environment.lmdb_failed(directory, failed) from failed
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path | str, *, max_size: int) -> "Store":
        """Open the store in this directory, or create it. ``max_size`` is in bytes.

        :raises StoreLocked: if another process has it open.
        :raises StoreDamaged: if the files aren't a usable store.
        :raises StoreFormatUnknown: if another version wrote it, in another format.
        :raises StoreUnusable: if the directory can't be created, read or written.
        :raises DiskFull: if there is no room for it.
        """
        return cls(Path(path), max_size)

    def _load(self) -> None:
        meta = self._databases.meta
        with self._environment.begin() as transaction:
            stored = transaction.get(environment.STORE_KEY, db=meta)
            found = environment.check_format(self.path, stored)
            environment.check_entries(transaction, meta, self.path)
            records = environment.all_tables(transaction, meta, self.path)
            if stored is None and (records or transaction.stat(meta)["entries"]):
                raise StoreDamaged(str(self.path), "its head is missing")
            position = environment.get(transaction, meta, environment.POSITION_KEY, self.path)
            self.catchup_plan = environment.get(
                transaction, meta, environment.CATCHUP_KEY, self.path
            )
            self.ownership = environment.ownership(transaction, meta, self.path)
            """Role among the servers that share the slot; None if the slot was never shared."""
            self._garbage = rows.any_left(transaction, self._databases)
        server_id = found.server_id or secrets.token_hex(16)
        self._head = replace(found, server_id=server_id)
        self._environment.reader_check()
        with self._step() as transaction:
            # Written at every start: readers learn the size of the map from the transaction.
            head = self._head.to_bytes()
            self._disk.reserve(1, len(head))
            transaction.put(environment.STORE_KEY, head, db=self._databases.meta)
        self.tables = {record.id: record for record in records}
        self.position, self.time_us = environment.position_from_bytes(position)

    @property
    def source(self) -> SourceIdentity | None:
        """Source of the changes; None in a fresh store."""
        return self._head.source

    @property
    def server_id(self) -> str:
        """Id that was generated when the store was created."""
        return self._head.server_id

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of replication connections that PostgreSQL may still have for this store."""
        return self._head.streams

    @property
    def marker(self) -> Marker | None:
        """The last message of ours in the stream, with its position."""
        return self._head.marker

    @property
    def last_recopies(self) -> Mapping[str, LastRecopy]:
        """Results of tables' last re-copies, by qualified name."""
        return self._head.last_recopies

    @property
    def used_bytes(self) -> int:
        """Size of the data file's used part."""
        return self._disk.used_bytes

    @property
    def free_bytes(self) -> int:
        """Number of bytes that the store can still take (laredo_store_free_bytes)."""
        return environment.free_bytes(self._environment, self._databases)

    def check_reachable(self) -> None:
        """Check that a later start would find this store; may be called from any thread.

        :raises StoreRemoved: if the directory was deleted or replaced.
        :raises StoreUnusable: if the path can't be read.
        """
        try:
            found = self._disk.is_at_its_path
        except OSError as failed:
            raise environment.what_failed(self.path, failed) from failed
        if not found:
            raise StoreRemoved(str(self.path), self.source.slot if self.source else None)

    def _next_sequence(self) -> int:
        """The clock's time, or a sequence above all that clients may know: clocks may go back."""
        source = self._head.source
        former = source.former_sequences if source is not None else 0
        had = (table.sequence + 1 for table in self.tables.values())
        return max(int(time() * 1_000_000), former, *had)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a write transaction, which is committed and synced if the block raises no error.

        :raises StoreFull: if there is no room; nothing was written, and everything that
            was committed before stays readable.
        :raises StoreRemoved: if the directory was deleted or replaced, so that nothing was
            written, or a later start won't find it.
        :raises TransactionOpen: if the last changes end inside a PostgreSQL transaction.
        """
        with self._step() as raw:
            transaction = Transaction(
                raw,
                self._databases,
                self._disk,
                head=self._head,
                position=(self.position, self.time_us),
                tables=self.tables,
                catchup_plan=self.catchup_plan,
                ownership=self.ownership,
                next_sequence=self._next_sequence,
            )
            yield transaction
            transaction.finish()
        self._head = transaction.head
        self.position, self.time_us = transaction.position, transaction.time_us
        self.tables = transaction.tables
        self.catchup_plan = transaction.catchup_plan
        self.ownership = transaction.ownership
        self._garbage = self._garbage or transaction.left_garbage
        self._check_readers()
        self.check_reachable()

    def prune(
        self,
        table_id: int,
        max_entries: int,
        max_age_s: float,
        now: float,
        pinned_sequence: int | None = None,
    ) -> int:
        """Drop old transactions of one journal, never the newest one.

        ``now`` is in seconds since 1970; entries after ``pinned_sequence`` stay.
        Returns the number of entries dropped.
        """
        now_us = int(now * 1_000_000)
        older = now_us - int(max_age_s * 1_000_000)
        pruned = 0
        while Journal.prunable(self.tables[table_id], max_entries, older, pinned_sequence):
            with self.transaction() as transaction:
                step = transaction.prune(table_id, max_entries, max_age_s, now_us, pinned_sequence)
            if not step:
                break
            pruned += step
        return pruned

    def reclaim(self, limit: int = _RECLAIM_STEP) -> int:
        """Remove some rows and journal records of truncated and dropped tables; call it when idle.

        Returns their worth in rows, 0 if nothing is left or no room for a removal: nothing needs
        it, so a full disk or store is no error here. Fewer rows need less room.
        """
        while self._garbage and limit:
            try:
                with self._step() as raw:
                    removed = rows.remove_some(raw, self._databases, self._disk.reserve, limit)
                    left = rows.any_left(raw, self._databases)
            except StoreFull:
                limit //= 2
                continue
            self._garbage = left
            return removed
        return 0

    def reader(self) -> "StoreReader":
        """A reader on this environment, for the writer's own process."""
        from laredo_fanout.store.reader import StoreReader

        return StoreReader(self.path, self._environment, self._databases, owned=False)

    def close(self) -> None:
        """Close the store, and release its lock."""
        self._disk.close()
        self._environment.close()
        self._lock.release()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _step(self) -> Iterator[Any]:
        """Open an LMDB write transaction, which is committed if the block raises no error."""
        if self._writing:
            raise StoreError(f"the store {self.path} is in the middle of another transaction")
        self._writing = True
        raw = None
        try:
            raw = self._environment.begin(write=True)
            self._disk.begin(raw, self._databases)
            yield raw
            # Before the commit: an error after it would leave this object behind LMDB's state.
            self.check_reachable()
            raw.commit()
        except lmdb.MapFullError as full:
            raise MapFull(str(self.path), self._max_size) from full
        except _DAMAGED as failed:
            raise StoreDamaged(str(self.path), str(failed)) from failed
        except lmdb.Error as failed:
            raise StoreBroken(str(self.path), str(failed)) from failed
        finally:
            if raw is not None:
                raw.abort()  # nothing, after a commit
            self._writing = False

    def _check_readers(self) -> None:
        """Clear the slots of killed readers, which would keep old pages for ever."""
        now = monotonic()
        if now - self._checked_readers < _READER_CHECK_S:
            return
        self._checked_readers = now
        dead = self._environment.reader_check()
        if dead:
            log.info("store readers cleared", path=str(self.path), dead=dead)
