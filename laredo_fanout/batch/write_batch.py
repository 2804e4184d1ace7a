"""The write batch: the open store transaction that stream and copies write into together."""

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
"""Divisor of the time: under load at most a tenth of it goes into commits."""
_SHORTEST_INTERVAL = 0.05
_UNNOTICED = 5
"""Divisor of the stream's lag: at a lag of L seconds, commits may be L/5 apart."""


_LACKING = "a change names a row that the store doesn't have"


class _Abandoned(Exception):
    """Ends a transaction that isn't to be committed."""


class WriteBatch:
    """Begins a store transaction when something is to be written, and commits it.

    ``transaction`` begins one if need be. Used by the ingest thread alone.
    """

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
        self._when_durable: list[Callable[[], None]] = []
        self._committed_at = time.monotonic()
        self.cost = 0.0
        """Seconds that the last commit took."""
        self._counters = counters
        self.copy_beside: dict[int, int] = {}
        """Live incarnations with a re-copy, which takes the same changes: its id."""
        self.ahead: dict[int, int] = {}
        """Tables that have everything up to a position beyond the stream's, after a takeover."""

    @property
    def is_open(self) -> bool:
        """True if something isn't committed yet."""
        return self._transaction is not None

    @property
    def transaction(self) -> Transaction:
        """The open transaction."""
        if self._transaction is None:
            self._context = self._store.transaction()
            self._transaction = self._context.__enter__()
        return self._transaction

    def interval(self, behind: float, *, waiting: bool) -> float:
        """Time to gather changes under load before the next commit, in seconds.

        Half of a commit's work is for pages that each commit writes again, whatever it changes in
        them. So commits are fewer where nobody sees the delay: for rows that are only copied, and
        in a backlog, whose newest change was committed ``behind`` seconds ago. ``waiting``: the
        stream has changes that aren't written yet.
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
        """Write these changes; stops after each bounded piece.

        ``to_come``: bytes of changes, about, that the next commit needs in addition.

        :raises ResyncRequired: if a live table's row lacks what the store doesn't
            know, or replaces what was damaged on disk; the batch must be abandoned.
        """
        sizes = [sum(map(len, each.changes.lines)) for each in pending]
        to_come += sum(sizes)
        ways = zip(pending, _followers(pending), sizes, strict=True)
        for (table_id, changes, numbered), follower, size in ways:
            if self.ahead and (known := self.ahead.get(table_id)):
                changes = changes.after(known)  # noqa: PLW2901
                if not changes.actions:
                    to_come -= size
                    continue
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
            if (copied := self.copy_beside.get(table_id)) is not None:
                try:
                    yield from self.transaction.apply_in_pieces(copied, changes, to_come)
                except RowDamaged as damaged:
                    raise ResyncRequired(copied, str(damaged)) from damaged
            to_come -= size
            self._tables.add(table_id)
            for action in Action:
                self._counters.changes[action] += changes.actions.count(action)

    def _suspect_if_lacking(self, table_id: int) -> None:
        """Begin a suspect range if a change named a row that the store doesn't have: it went with
        a partition, or its key was damaged on disk. A re-copy shows which, and repairs it."""
        if not self.transaction.take_lacking(table_id):
            return
        record = self.transaction.tables[table_id]
        if record.suspect_range is None:
            self.transaction.begin_suspect_range(table_id, _LACKING)
            self._counters.count_repaired(record.qualified)
            _log.warning("repair scheduled: row of a change missing", table=record.qualified)

    def table(self, table_id: int) -> TableRecord:
        """The table's record, as far as it was written."""
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
        """No statement at or before ``position`` has rewritten the table's values silently."""
        tables = self._store.tables if self._transaction is None else self._transaction.tables
        if table_id in tables and tables[table_id].verified < position:
            self.transaction.set_verified(table_id, position)

    def touch(self, table_id: int) -> None:
        """Count the table among those that the next commit changes."""
        self._tables.add(table_id)

    def commit(self, position: int, time_us: int) -> None:
        """Make it durable together with the stream's position, and notify who waits for that."""
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
        for call in durable:
            call()

    def _share_positions(self, transaction: Transaction) -> None:
        """The stream has reached tables that were ahead of it."""
        reached = [each for each, known in self.ahead.items() if known <= transaction.position]
        transaction.share_position(each for each in reached if each in transaction.tables)
        for each in reached:
            del self.ahead[each]

    def when_durable(self, call: Callable[[], None]) -> None:
        """Have ``call`` run after the next commit; the commit is made soon."""
        self._when_durable.append(call)

    @property
    def awaited(self) -> bool:
        """True if something waits for the next commit."""
        return bool(self._when_durable)

    def generation(self, table_id: int) -> int:
        """Number of the table's truncations, as far as changes were written."""
        return self.table(table_id).generation

    def abandon(self, because: Exception | None = None) -> None:
        """Forget what isn't committed.

        :raises StoreError: if that is what ``because`` means, which LMDB raised.
        """
        context, self._context, self._transaction = self._context, None, None
        self._tables.clear()
        self._when_durable.clear()
        if context is not None:
            error = because or _Abandoned()
            context.__exit__(type(error), error, error.__traceback__)


def _followers(pending: Sequence[RoutedChanges]) -> list[RoutedChanges | None]:
    """For each the next ones of the same table: within a transaction a table may get another
    route, as it was announced with another replica identity."""
    next_of: dict[int, RoutedChanges] = {}
    found: list[RoutedChanges | None] = []
    for each in reversed(pending):
        found.append(next_of.get(each.table_id))
        next_of[each.table_id] = each
    return found[::-1]
