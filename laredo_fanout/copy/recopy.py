"""Re-copies: a live table is read again while its readers go on, and differences are repaired.

The re-copy is a second, hidden incarnation, which takes the stream's changes as the live one
does, and copied rows where there are none. At its barrier both are consistent at one
position: rows that differ were wrong in the live one, and enter its journal there as
ordinary changes. Until then the store has the table's rows twice.

The hidden incarnation's record names the live one, so a restart continues it. If the live
incarnation ends (another schema, a lost slot), so does the re-copy: the table is copied again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from laredo_fanout.copy.table_copy import RECOPY_OF, TableCopy
from laredo_fanout.decode.stream_decoder import ResyncRequired
from laredo_fanout.errors import RecopyRefused
from laredo_fanout.pg_catalog import shape
from laredo_fanout.postgres.connections import SourceUnavailable
from laredo_fanout.store.environment import LastRecopy
from laredo_fanout.store.errors import RowDamaged, RowsDamaged
from laredo_fanout.store.table import Status

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.batch.tracked_table import TrackedTable
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.store.table import TableRecord
    from laredo_fanout.store.transaction import Transaction

_log = structlog.get_logger()


class RecopyAsked(NamedTuple):
    """An operator's request for a re-copy."""

    table: str
    """The table's qualified name."""
    answer: Future[None]
    """Future that is done when the request is durable. Its exception is a :class:`RecopyRefused`,
    or a SourceUnavailable if the stream ended."""

    def is_awaited(self) -> bool:
        """True if the caller still waits for an answer; call it once."""
        return self.answer.set_running_or_notify_cancel()

    def refuse_ended(self) -> None:
        """Answer that the session of the stream ended before the re-copy began."""
        if self.is_awaited():
            self.end()

    def end(self) -> None:
        """Give that answer to a caller that :meth:`is_awaited` has found waiting."""
        self.answer.set_exception(
            SourceUnavailable("the stream has just ended; request the re-copy again")
        )


class Copies(Protocol):
    """Interface of a session's copies for a re-copy."""

    def get(self, table_id: int) -> TableCopy | None:
        """The running copy of this incarnation, or None."""

    def add(self, copy: TableCopy) -> None:
        """Begin or continue a table's copy."""


class Recopies:
    """The re-copies of one session of the stream; used by the ingest thread."""

    def __init__(self, batch: WriteBatch, counters: Counters) -> None:
        self._batch = batch
        self._counters = counters

    def begin(self, tracked: TrackedTable, transaction: Transaction, copies: Copies) -> None:
        """Begin a re-copy of this table.

        :raises RecopyRefused: if one is running, or the table isn't live, or is append-only.
        """
        name = tracked.options.qualified
        if tracked.recopy_id is not None:
            raise RecopyRefused(name, "a re-copy is running", "wait for its end")
        source, known = tracked.source, tracked.shape
        record = None if tracked.table_id is None else transaction.tables[tracked.table_id]
        if record is None or source is None or known is None or tracked.version is None:
            raise RecopyRefused(name, "it isn't replicated just now", "see its error in /status")
        if record.status is not Status.LIVE or tracked.closing is not None:
            raise RecopyRefused(name, "it is being copied already", "wait until it is live")
        if tracked.transaction_filter is not None:
            raise RecopyRefused(
                name,
                "it is append-only: a re-copy would leave out the transactions that its"
                " snapshot shows, and its readers need all of them",
                "to have it copied again, take it out of the configuration, restart, put it back"
                " and restart: its readers then get a new snapshot, its archive a new epoch",
            )
        copied = transaction.add_table(
            record.schema,
            record.name,
            record.oid,
            record.columns,
            identity=record.identity,
            copy={**shape.to_json(known, tracked.version), RECOPY_OF: record.id},
        )
        self._connect(tracked, record.id, copied.id)
        self._add(tracked, source, copied, copies)
        _log.info("re-copy requested", table=name)

    def resume(self, tracked: TrackedTable, record: TableRecord, transaction: Transaction) -> None:
        """Continue an earlier session's re-copy if the live incarnation is still the same."""
        live_id = record.copy[RECOPY_OF]
        if tracked.table_id == live_id and transaction.tables[live_id].status is Status.LIVE:
            self._connect(tracked, live_id, record.id)
            return
        transaction.drop_table(record.id)
        self._gave_up(tracked, transaction, "the table is copied again")

    def keep(
        self, tracked: TrackedTable, source: SourceTable, transaction: Transaction, copies: Copies
    ) -> None:
        """Go on with the re-copy, if there is one, of a table whose values haven't changed.

        Statements that changed no value (SET STATISTICS, VACUUM FULL) are harmless one by one. Both
        together would look like ALTER TYPE ... USING at the barrier, so that compares from here on.
        """
        if tracked.recopy_id is None:
            return
        copy = copies.get(tracked.recopy_id)
        if copy is None:
            copy = self._add(tracked, source, transaction.tables[tracked.recopy_id], copies)
        copy.version = source.version._replace(partitions=copy.version.partitions)

    def drop(self, tracked: TrackedTable, transaction: Transaction, error: str) -> None:
        """End the table's re-copy, if there is one, without a result."""
        if tracked.recopy_id is None:
            return
        if tracked.recopy_id in transaction.tables:  # unless it was never durable
            transaction.drop_table(tracked.recopy_id)
        self._disconnect(tracked)
        self._gave_up(tracked, transaction, error)

    def done(self, tracked: TrackedTable, transaction: Transaction, differing: int) -> None:
        """Record a re-copy whose differences are in the live table's journal."""
        self._disconnect(tracked)
        self._ended(tracked, transaction, LastRecopy(time.time(), differing))

    def _add(
        self, tracked: TrackedTable, source: SourceTable, record: TableRecord, copies: Copies
    ) -> TableCopy:
        copy = TableCopy(record.id, tracked.options, source, record.copy)
        copies.add(copy)
        return copy

    def _connect(self, tracked: TrackedTable, live_id: int, copied_id: int) -> None:
        tracked.recopy_id = copied_id
        self._batch.recopy_of[live_id] = copied_id

    def _disconnect(self, tracked: TrackedTable) -> None:
        recopies = self._batch.recopy_of
        for live_id in [key for key, value in recopies.items() if value == tracked.recopy_id]:
            del recopies[live_id]
        tracked.recopy_id = None

    def _gave_up(self, tracked: TrackedTable, transaction: Transaction, error: str) -> None:
        self._ended(tracked, transaction, LastRecopy(time.time(), error=error))
        _log.error("re-copy failed", table=tracked.options.qualified, error=error)

    def _ended(self, tracked: TrackedTable, transaction: Transaction, ended: LastRecopy) -> None:
        name = tracked.options.qualified
        transaction.set_last_recopy(name, ended)
        self._counters.last_recopies[name] = ended
        outcome = "done" if ended.error is None else "given_up"
        counted = self._counters.asked_recopies
        counted[name, outcome] = counted.get((name, outcome), 0) + 1
        self._counters.recopied_rows[name] = (
            self._counters.recopied_rows.get(name, 0) + ended.differing
        )


def publish(
    copy: TableCopy,
    transaction: Transaction,
    position: int,
    time_us: int,
    between: Callable[[], None],
) -> tuple[TableRecord, int]:
    """Publish a re-copy's differences at its barrier; returns the live table and their number.

    :raises ResyncRequired: if rows were damaged on disk, and nobody knows which rows the readers
        have.
    """
    live_id = copy.live_id
    assert live_id is not None
    try:
        differing = transaction.publish_differences(copy.table_id, position, time_us, between)
    except (RowsDamaged, RowDamaged) as damaged:
        raise ResyncRequired(live_id, str(damaged)) from damaged
    return transaction.tables[live_id], differing
