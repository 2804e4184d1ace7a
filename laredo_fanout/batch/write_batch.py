"""The write batch: the open store transaction to which the stream and copies write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.batch.status import CommitInfo, Counters
from laredo_fanout.decode.stream_decoder import ResyncRequired
from laredo_fanout.store.errors import RowDamaged, RowIncomplete
from laredo_model import key
from laredo_model.line import Action

if TYPE_CHECKING:
    from laredo_fanout.decode.stream_decoder import RoutedChanges
    from laredo_fanout.source_options import CommitIntervals
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.transaction import Transaction
    from laredo_fanout.store.writer import Store

_log = structlog.get_logger()

OnCommit = Callable[[CommitInfo], None]

_SHARE = 10
"""Ratio of the interval between commits to their cost: under load commits take a tenth of it."""
_SHORTEST_INTERVAL = 0.05
_UNNOTICED = 5
"""Divisor of the stream's lag: at a lag of L seconds, commits may be L/5 apart."""


_LACKING = "a change names a row that the store doesn't have"


class _Abandoned(Exception):
    """End of a transaction that must not be committed."""


class WriteBatch:
    """A store transaction that begins with the first change; used by the ingest thread alone."""

    def __init__(
        self,
        store: Store,
        on_commit: OnCommit,
        intervals: CommitIntervals,
        counters: Counters,
    ) -> None:
        self._store = store
        self._on_commit = on_commit
        self._intervals = intervals
        self._context: AbstractContextManager[Transaction] | None = None
        self._transaction: Transaction | None = None
        self._tables: set[int] = set()
        self._when_durable: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._committed_at = time.monotonic()
        self.cost = 0.0
        """Seconds that the last commit took."""
        self._counters = counters
        self.recopy_of: dict[int, int] = {}
        """Ids of re-copies, which take the same changes, by the live incarnation's id."""
        self.ahead: dict[int, int] = {}
        """Positions of tables that are ahead of the stream after a takeover, by id."""

    @property
    def is_open(self) -> bool:
        """True if a transaction is open."""
        return self._transaction is not None

    @property
    def transaction(self) -> Transaction:
        """The open transaction, which begins if there is none."""
        if self._transaction is None:
            self._context = self._store.transaction()
            self._transaction = self._context.__enter__()
        return self._transaction

    def interval(self, behind: float, *, waiting: bool) -> float:
        """Time to gather changes under load before the next commit, in seconds.

        Half of a commit's work is writing pages that every commit changes. So commits are fewer if
        nobody notices the delay: for rows that are only copied, and in a backlog, whose newest
        change was committed ``behind`` seconds ago. With ``waiting`` the stream has changes that
        aren't written yet.
        """
        shortest, longest = _SHORTEST_INTERVAL, self._intervals.backlog
        if waiting or self._tables or self._when_durable:
            longest = min(longest, max(self._intervals.busy, behind / _UNNOTICED))
        else:
            shortest = self._intervals.busy
        return min(longest, max(shortest, _SHARE * self.cost))

    @property
    def age(self) -> float:
        """Seconds since the last commit."""
        return time.monotonic() - self._committed_at

    def apply(self, pending: Sequence[RoutedChanges], to_come: int = 0) -> Iterator[None]:
        """Write these changes; yields after each bounded piece.

        ``to_come`` is about the number of bytes of changes that the next commit needs in addition.

        :raises ResyncRequired: if a live table's row lacks columns that the store lacks too, or
            replaces a row that was damaged on disk; the batch must be abandoned.
        """
        sizes = [sum(map(len, each.changes.lines)) for each in pending]
        to_come += sum(sizes)
        ways = zip(pending, _followers(pending), sizes, strict=True)
        for (table_id, changes, numbered), follower, size in ways:
            if self.ahead and (known := self.ahead.get(table_id)):
                newer = changes.after(known)
                # Empty changes end a transaction whose earlier pieces were written.
                if changes.actions and not newer.actions:
                    to_come -= size
                    continue
                changes = newer  # noqa: PLW2901
            if follower is not None:
                if not changes.actions:
                    continue
                goes_on = follower.changes.positions[:1] == changes.positions[-1:]
                changes = replace(changes, open=changes.open or goes_on)  # noqa: PLW2901
            if numbered:
                keys = self.transaction.numbered(table_id, changes.keys)
                changes = replace(changes, keys=keys)  # noqa: PLW2901
            try:
                yield from self.transaction.apply_in_pieces(table_id, changes, to_come)
            except (RowIncomplete, RowDamaged) as unknown:
                raise ResyncRequired(table_id, str(unknown)) from unknown
            self._suspect_if_lacking(table_id)
            if (copied := self.recopy_of.get(table_id)) is not None:
                try:
                    yield from self.transaction.apply_in_pieces(copied, changes, to_come)
                except RowDamaged as damaged:
                    raise ResyncRequired(copied, str(damaged)) from damaged
            to_come -= size
            self._tables.add(table_id)
            for action in Action:
                self._counters.changes[action] += changes.actions.count(action)

    def _suspect_if_lacking(self, table_id: int) -> None:
        """Begin a suspect range if the row of a change is missing.

        The row went with a partition, or its key was damaged on disk. A re-copy repairs either.
        """
        if not self.transaction.take_lacking(table_id):
            return
        record = self.transaction.tables[table_id]
        if record.suspect_range is None:
            self.transaction.begin_suspect_range(table_id, _LACKING)
            self._counters.count_repaired(record.qualified)
            _log.warning("repair scheduled: row of a change missing", table=record.qualified)

    def table(self, table_id: int) -> TableRecord:
        """The table's record in the open transaction, or in the store."""
        tables = self._store.tables if self._transaction is None else self._transaction.tables
        return tables[table_id]

    def fill(self, table_id: int, keys: list[bytes], lines: list[bytes], generation: int) -> None:
        """Write copied rows.

        :raises ChunkStale: if the table was truncated since they began to be read.
        :raises ResyncRequired: if one completes a row that was damaged on disk; the batch must be
            abandoned.
        """
        try:
            self.transaction.fill(table_id, keys, lines, generation)
        except RowDamaged as damaged:
            raise ResyncRequired(table_id, str(damaged)) from damaged

    def add(self, table_id: int, lines: list[bytes], generation: int) -> None:
        """Write copied rows of a table without a key.

        :raises ChunkStale: if the table was truncated since they began to be read.
        """
        keys = self.transaction.numbered(table_id, list(map(key.digest, lines)))
        self.transaction.fill(table_id, keys, lines, generation)

    def verified(self, table_id: int, position: int) -> None:
        """Advance the table's verified position to ``position``, unless it is after that."""
        tables = self._store.tables if self._transaction is None else self._transaction.tables
        if table_id in tables and tables[table_id].verified < position:
            self.transaction.set_verified(table_id, position)

    def touch(self, table_id: int) -> None:
        """Count the table among those that the next commit changes."""
        self._tables.add(table_id)

    def commit(self, position: int, time_us: int) -> None:
        """Commit the batch with the stream's position, then call the callbacks."""
        begun = time.monotonic()
        transaction = self.transaction
        if position > transaction.position:
            transaction.set_position(position, time_us)
        if self.ahead:
            self._share_positions(transaction)
        context, self._context, self._transaction = self._context, None, None
        assert context is not None
        context.__exit__(None, None, None)
        self._committed_at = time.monotonic()
        self.cost = self._committed_at - begun
        tables, self._tables = frozenset(self._tables), set()
        self._on_commit(CommitInfo(transaction.position, transaction.time_us, tables))
        durable, self._when_durable = self._when_durable, []
        for call, _ in durable:
            call()

    def _share_positions(self, transaction: Transaction) -> None:
        """Make the stream's position that of tables which the stream has reached."""
        reached = [each for each, known in self.ahead.items() if known <= transaction.position]
        transaction.share_position(each for each in reached if each in transaction.tables)
        for each in reached:
            del self.ahead[each]

    def when_durable(
        self, call: Callable[[], None], otherwise: Callable[[], None] = lambda: None
    ) -> None:
        """Run ``call`` after the next commit, which follows soon, or ``otherwise`` if the batch is
        abandoned before."""
        self._when_durable.append((call, otherwise))

    @property
    def awaited(self) -> bool:
        """True if a callback waits for the next commit."""
        return bool(self._when_durable)

    def abandon(self, because: Exception | None = None) -> None:
        """Forget the changes that aren't committed.

        :raises StoreError: if ``because`` is an error of LMDB, as the store's error.
        """
        context, self._context, self._transaction = self._context, None, None
        self._tables.clear()
        forgotten, self._when_durable = self._when_durable, []
        for _, otherwise in forgotten:
            otherwise()
        if context is not None:
            error = because or _Abandoned()
            context.__exit__(type(error), error, error.__traceback__)


def _followers(pending: Sequence[RoutedChanges]) -> list[RoutedChanges | None]:
    """The next changes of the same table, for each of ``pending``.

    Within a transaction a table may get another route, if it is announced with another replica
    identity.
    """
    next_of: dict[int, RoutedChanges] = {}
    found: list[RoutedChanges | None] = []
    for each in reversed(pending):
        found.append(next_of.get(each.table_id))
        next_of[each.table_id] = each
    return found[::-1]
