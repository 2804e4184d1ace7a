"""The copies of all tables of a session: does what the state of each (copy_state.py) calls for.

Stream writes win; copied rows fill absent keys, and a deleted key counts as present; a
chunk that began before a TRUNCATE is discarded; nothing is shown before the barrier
that was sent after the last chunk comes back in the stream. Then every key holds what
its last streamed change made of it, or, if none touched it, the one version there was.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from laredo_fanout.catalog.side_connection import BarrierRequest, PrepareRequest, Request
from laredo_fanout.copy import recopy
from laredo_fanout.copy.copy_state import CopyState
from laredo_fanout.errors import CopyFailed
from laredo_fanout.postgres import wal_message
from laredo_model import position as position_

if TYPE_CHECKING:
    from laredo_fanout.catalog.side_connection import Prepared, PrepareFailed, WaitingForWriters
    from laredo_fanout.copy.copy_state import CopyChunk
    from laredo_fanout.copy.range_reader import ReadFailed
    from laredo_fanout.copy.table_copy import TableCopy
    from laredo_fanout.tables.write_batch import WriteBatch

_log = structlog.get_logger()

_MOST_PARTIAL_KEYS = 100_000


class TableCopies:
    """The copies under way in one session of the stream; used by the ingest thread, never waits."""

    def __init__(
        self,
        slot_name: str,
        batch: WriteBatch,
        request: Callable[[Request], None],
        *,
        request_snapshot: Callable[[], int],
        failed: Callable[[int, CopyFailed], None],
    ) -> None:
        self._slot_name = slot_name
        self._batch = batch
        self._request = request
        self._request_snapshot = request_snapshot
        self._failed = failed
        self._copies: dict[int, TableCopy] = {}

    @property
    def under_way(self) -> list[TableCopy]:
        """The copies that aren't done; from any thread."""
        return list(self._copies.values())

    def get(self, table_id: int) -> TableCopy | None:
        """The copy of this incarnation."""
        return self._copies.get(table_id)

    def add(self, copy: TableCopy) -> None:
        """Begin, or go on with, a table's copy."""
        self._copies[copy.table_id] = copy
        self._request(PrepareRequest(copy.table_id, copy.table, copy.splits))

    def remove(self, table_id: int) -> None:
        """Discard the copy of an incarnation that has ended, and its re-copy."""
        for copy in self.under_way:
            if table_id in (copy.table_id, copy.beside):
                del self._copies[copy.table_id]
                copy.machine.discard()

    def prepared(self, prepared: Prepared) -> None:
        """The side connection found that the copy may begin."""
        copy = self._copies.get(prepared.table_id)
        if copy is None:
            return
        copy.plan(prepared.splits)
        _log.info(
            "copy started",
            table=copy.table.qualified,
            ranges=copy.ranges,
            done=copy.ranges_done,
            rows_estimated=max(0, int(copy.table.rows_estimated)),
        )
        self._progressed(copy)

    def waiting(self, waiting: WaitingForWriters) -> None:
        """The side connection waits for these processes."""
        copy = self._copies.get(waiting.table_id)
        if copy is None or copy.waiting_for == waiting.pids:
            return
        copy.machine.wait_for(waiting.pids)
        _log.info(
            "copy delayed by writing transactions",
            table=copy.table.qualified,
            pids=list(waiting.pids),
        )

    def prepare_failed(self, failed: PrepareFailed) -> None:
        """The side connection can't read the table."""
        copy = self._copies.get(failed.table_id)
        if copy is not None:
            copy.machine.give_up()
            problem = CopyFailed(copy.table.qualified, failed.problem, "see the server's log")
            self._failed(copy.table_id, problem)

    def finished(self, copy: TableCopy, reading: CopyChunk) -> None:
        """The chunk was read to its end; its rows are in the store's transaction unless a
        TRUNCATE came meanwhile: then it is read again."""
        copy.machine.finish(reading, self._batch.generation(copy.table_id))
        if copy.machine.state is CopyState.FAILED:
            self._give_up(copy, "it was truncated while its rows were read")
        else:
            self._progressed(copy)

    def reading_failed(self, copy: TableCopy, reading: CopyChunk, failed: ReadFailed) -> None:
        """The chunk is read again, unless that was tried often enough."""
        machine = copy.machine
        if failed.connection_lost:
            machine.repeat(reading)
        else:
            machine.refuse(reading)
        _log.warning(
            "chunk not read",
            table=copy.table.qualified,
            error=str(failed),
            sqlstate=failed.sqlstate,
        )
        if machine.state is CopyState.FAILED:
            self._give_up(copy, f"its rows can't be read: {failed}")
        elif not failed.connection_lost:
            copy.not_before = time.monotonic() + random.uniform(0.05, 0.15) * 2**machine.refusals
            self._request_snapshot()

    def barrier_arrived(
        self, payload: str, position: int, time_us: int, between: Callable[[], None]
    ) -> tuple[int, int] | None:
        """The stream has a barrier: the table that it makes live, if it is an awaited one, and,
        if it is a re-copy, how many rows differed. ``between`` is called while they are compared.
        """
        copy = next((each for each in self.under_way if each.machine.awaits(payload)), None)
        if copy is None:
            return None
        partial = self._partial_keys(copy)
        if partial:
            # Keys that moved with a TOAST value after the chunk with the old key was read.
            copy.machine.reread(partial)
            return None
        differing = 0
        if copy.beside is None:
            self._publish(copy, position, time_us)
        else:
            differing = self._publish_differences(copy, position, time_us, between)
        copy.machine.publish()
        del self._copies[copy.table_id]
        return copy.table_id, differing

    def _publish(self, copy: TableCopy, position: int, time_us: int) -> None:
        """A copy's barrier has passed: the table is live."""
        transaction = self._batch.transaction
        record = transaction.publish(copy.table_id, position, time_us)
        kept = {name: copy.to_json()[name] for name in ("shape", "version")}
        transaction.put_table(replace(record, copy=kept))
        self._batch.touch(copy.table_id)
        _log.info(
            "table live",
            table=copy.table.qualified,
            rows=record.rows,
            read=copy.rows,
            position=position_.text(position),
        )

    def _publish_differences(
        self, copy: TableCopy, position: int, time_us: int, between: Callable[[], None]
    ) -> int:
        """A re-copy's barrier has passed: what differs goes into the live table; how many rows
        that are."""
        begun = time.monotonic()
        transaction = self._batch.transaction
        live, differing = recopy.publish(copy, transaction, position, time_us, between)
        self._batch.touch(live.id)
        _log.info(
            "re-copy completed",
            table=copy.table.qualified,
            differing=differing,
            rows=live.rows,
            compared_in_s=round(time.monotonic() - begun, 3),
        )
        if live.suspect_ranges and (suspect_range := live.suspect_ranges[-1]).end == position:
            _log.info(
                "rows repaired after a partition moved",
                table=copy.table.qualified,
                since=position_.text(suspect_range.start),
                until=position_.text(suspect_range.end),
                why=suspect_range.because,
            )
        return differing

    def _progressed(self, copy: TableCopy) -> None:
        """Store how far it is; if all is read, go on when that is durable."""
        self._store_progress(copy)
        if copy.machine.state in (CopyState.READ, CopyState.REREAD):
            self._batch.when_durable(lambda: self._all_durable(copy))

    def _all_durable(self, copy: TableCopy) -> None:
        """Everything read is durable: read partial rows once more, then choose the barrier."""
        if copy.machine.ended:
            return
        if copy.machine.state is CopyState.READ and (partial := self._partial_keys(copy)):
            copy.machine.reread(partial)
            return
        copy.machine.choose_barrier(wal_message.barrier_payload(self._slot_name))
        self._store_progress(copy)
        self._batch.when_durable(lambda: self._send_barrier(copy))

    def _send_barrier(self, copy: TableCopy) -> None:
        if copy.machine.ended:
            return
        copy.machine.barrier_durable()
        payload, beside = copy.machine.barrier, copy.beside is not None
        assert payload is not None, "it was chosen"
        self._request(BarrierRequest(payload, copy.options, copy.shape, copy.version, beside))

    def _partial_keys(self, copy: TableCopy) -> list[bytes]:
        """Keys of rows that lack unchanged TOAST values; not all of them at once."""
        keys = self._batch.transaction.partial_keys(copy.table_id)
        return list(islice(keys, _MOST_PARTIAL_KEYS))

    def _store_progress(self, copy: TableCopy) -> None:
        transaction = self._batch.transaction
        record = transaction.tables[copy.table_id]
        transaction.put_table(replace(record, copy=copy.to_json()))

    def _give_up(self, copy: TableCopy, problem: str) -> None:
        """Discard the rows of a copy that failed, and report the problem."""
        name = copy.table.qualified
        then = "it is tried again later" if copy.beside is None else "ask again for the re-copy"
        self._failed(copy.table_id, CopyFailed(name, problem, then))
