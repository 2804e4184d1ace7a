"""A snapshot of one table's rows, within one LMDB read transaction."""

from collections.abc import Iterator
from itertools import islice
from time import monotonic
from typing import Any

from laredo_fanout.store import layout
from laredo_fanout.store.environment import Databases
from laredo_fanout.store.errors import SnapshotClosed
from laredo_fanout.store.shared_spool import Pair, SharedSpool, SharedSpools
from laredo_fanout.store.view import TableView
from laredo_model import key as key_
from laredo_model.column import Column

_SPOOL_ROWS = 2000

Batch = tuple[list[bytes], list[bytes]]


class _SpillStopped(Exception):
    """Nobody wants the rest any more."""


class Snapshot:
    """A table's rows in key order, as of one commit of the store.

    It holds an LMDB read transaction, which keeps the writer from using freed
    pages again: take the rows quickly, or call ``spill``. Use it from one
    thread at a time.
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
        self._prefix = layout.prefix(view.record.space)
        self._key_fields = view.key_fields
        self._id = (view.record.space, view.id, view.sequence)
        self._spools = spools
        self._spool: SharedSpool | None = None
        self._opened = monotonic()
        self._cursor = transaction.cursor(db=databases.state)
        self._last = b""
        self._pairs = self._from_store()
        self._stopped = self._closed = False

    @property
    def position(self) -> int:
        """Every change up to here is in the rows, and no other."""
        return self.view.position

    @property
    def sequence(self) -> int:
        """The newest journal entry that is in the rows."""
        return self.view.sequence

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.view.rows

    @property
    def columns(self) -> tuple[Column, ...]:
        """In the order of the lines."""
        return self.view.columns

    @property
    def age_s(self) -> float:
        """Time since the LMDB transaction was opened, in seconds; 0 once it is closed."""
        return monotonic() - self._opened if self._transaction is not None else 0.0

    @property
    def spooled_by_another(self) -> bool:
        """True if a reader of the same snapshot has already written all remaining rows."""
        return self._spools.holds(self._id, self._last)

    @property
    def spilled(self) -> bool:
        """True if the rows come from a temporary file."""
        return self._spool is not None

    def batches(self, size: int = 1900) -> Iterator[Batch]:
        """The rows not taken yet, as (keys, lines) of up to ``size`` rows each.

        :raises SnapshotClosed: if the snapshot is closed, or its spill was stopped.
        """
        while pairs := self._take(size):
            lines = [line for _, line in pairs]
            yield self._row_keys(pairs), lines

    def spill(self) -> None:
        """Write the rows not taken yet to a temporary file and close the LMDB transaction.

        ``batches`` goes on from there, without a gap. Blocks while it writes, unless
        ``stop_spilling`` is called from another thread: the snapshot can then only be closed.

        :raises SpoolFailed: if there is no room; the snapshot is then as before.
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
        """Nobody wants the rest any more: a ``spill`` under way ends at its next step."""
        self._stopped = True

    def close(self) -> None:
        """Let everything go."""
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
        """The rows after the last one taken."""
        found = self._cursor.set_range(self._last or self._prefix)
        if found and self._cursor.key() == self._last:
            found = self._cursor.next()
        pairs: Iterator[Pair] = self._cursor.iternext() if found else iter(())
        return pairs

    def _take(self, size: int) -> list[Pair]:
        """Up to ``size`` more rows of this space, by their stored keys."""
        if self._closed:
            raise SnapshotClosed(self.view.name)
        pairs = list(islice(self._pairs, size))
        if pairs and not pairs[-1][0].startswith(self._prefix):
            pairs = [pair for pair in pairs if pair[0].startswith(self._prefix)]
            self._pairs = iter(())
        if pairs:
            self._last = pairs[-1][0]
        return pairs

    def _row_keys(self, pairs: list[Pair]) -> list[bytes]:
        keys = [key[layout.PREFIX_BYTES :] for key, _ in pairs]
        if max(map(len, keys)) == layout.CUT_KEY_BYTES:
            return [
                key_.of_line(line, self._key_fields) if layout.is_cut(stored) else key
                for key, (stored, line) in zip(keys, pairs, strict=True)
            ]
        return keys

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._cursor.close()
            self._transaction.abort()
            self._transaction = None
