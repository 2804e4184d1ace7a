"""The side connection: a second connection, for catalog checks, heartbeats, barriers and locks.

Everything that may wait for the server is done here, in a thread of its own, so
that the stream never waits. Answers go to the ingest thread as reports.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from laredo_fanout.pg_catalog import key_ranges, requirements, shape, table_definitions
from laredo_fanout.pg_catalog import snapshot as snapshot_
from laredo_fanout.pg_catalog.partitions import EmptyAttachments
from laredo_fanout.pg_catalog.silent_ddl import Holder, holders, still_holding
from laredo_fanout.pg_catalog.snapshot import LOCK_TIMEOUT, CatalogSnapshot
from laredo_fanout.postgres import connections, pgoutput
from laredo_fanout.postgres.connections import SourceError
from laredo_service.retry import Backoff

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.key_ranges import Split
    from laredo_fanout.pg_catalog.table_definitions import SourceTable, Version
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions

_HOLDERS_EVERY = 0.2
_HOLDERS_AT_MOST = 2.0
_RETRY = Backoff(initial=0.2, maximum=15.0)
_STOP_INTERVAL = 0.2
_PAUSE_AT_LEAST, _PAUSE_AT_MOST = 0.2, 1.0
_PAUSE_SHARE = 20
"""Ratio of the pause after a catalog check to its duration, for checks on demand."""


class CopyPlan(NamedTuple):
    """Report: the table's copy may begin, in ranges cut at ``splits``."""

    table_id: int
    splits: Sequence[Split]


class WriterWait(NamedTuple):
    """Report: the copy can't begin before the transactions of these processes end, which wrote to
    the table."""

    table_id: int
    pids: tuple[int, ...]


class PrepareFailed(NamedTuple):
    """Report: the table can't be read."""

    table_id: int
    problem: str


class BarrierRefused(NamedTuple):
    """Report: the barrier wasn't sent, because the table had changed; a catalog check follows."""

    request: BarrierRequest


class ConnectionReady(NamedTuple):
    """Report: a connection for a copy reader."""

    connection: Connection


class SideConnectionDown(NamedTuple):
    """Report: the side connection failed, or none for a copy reader can be opened; retried."""

    error: SourceError


class SideConnectionCrashed(NamedTuple):
    """Report: a defect of the server ended the thread, so catalog checks have stopped."""

    error: BaseException


Report = (
    CatalogSnapshot
    | CopyPlan
    | WriterWait
    | PrepareFailed
    | BarrierRefused
    | ConnectionReady
    | SideConnectionDown
    | SideConnectionCrashed
)


class PrepareRequest(NamedTuple):
    """Request: wait for the holders of locks on the table, then find split points."""

    table_id: int
    table: SourceTable
    splits: Sequence[Split] | None
    """The split points of a copy that goes on; None for a new one."""


class BarrierRequest(NamedTuple):
    """Request: emit ``payload`` if the table is unchanged; otherwise check the catalog."""

    payload: str
    options: SourceTableOptions
    shape: shape.Shape
    version: Version
    is_recopy: bool
    """True for a re-copy: rows that move with partitions meanwhile are repaired later."""


class CheckRequest(NamedTuple):
    """Request: a catalog check in ``after_s``, which is answered by ``number`` or a higher one."""

    number: int
    after_s: float = 0.0


class CheckSoonRequest(NamedTuple):
    """Request: the next catalog check that may run, because a position waits to be verified."""


class ConnectionRequest(NamedTuple):
    """Request: open a connection for a copy reader."""


Request = PrepareRequest | BarrierRequest | CheckRequest | CheckSoonRequest | ConnectionRequest


@dataclass(order=True)
class _Task:
    due: float
    number: int
    run: Callable[[Connection], None] = field(compare=False)
    failures: int = field(default=0, compare=False)


class SideConnection:
    """The thread of the side connection. ``report`` is called in it, and must not block."""

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        awaited: pgoutput.ExpectedMessages,
        report: Callable[[Report], object],
    ) -> None:
        self._options = options
        self._tables = tables
        self._awaited = awaited
        self._report = report
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._tasks: list[_Task] = []
        self._numbers = count()
        self._checks = count(1)
        self._attachments = EmptyAttachments()
        self._publication_gate = requirements.PublicationGate()
        self._requested = 0
        self._next_check_at = 0.0
        self._soon = False
        self._stopping = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(
            target=self._run, name="laredo-side-connection", daemon=True
        )

    def every(
        self, interval: float, work: Callable[[Connection], None], *, at_once: bool = False
    ) -> None:
        """Run ``work`` every ``interval`` seconds, in the thread; call it before :meth:`start`."""

        def again(connection: Connection) -> None:
            work(connection)
            self._schedule(interval, again)

        self._schedule(0 if at_once else interval, again)

    def start(self, connection: Connection) -> None:
        """Start the thread with an open connection, which :meth:`stop` closes; the first catalog
        check runs at once."""
        self._connection = connection
        connection.execute(LOCK_TIMEOUT)
        self._thread.start()

    def request(self, request: Request) -> None:
        """Queue a request; its report comes later."""
        self._requests.put(request)

    def sever(self) -> None:
        """Break the connection, which seems to be lost; the thread opens another one."""
        connection = self._connection
        if connection is not None:
            connections.sever(connection)

    def stop(self) -> None:
        """End the thread, even if it waits for PostgreSQL, and close the connection."""
        self._stopping.set()
        self._requests.put(None)
        connection = self._connection
        if connection is not None:
            connections.cancel(connection)
        if self._thread.ident is not None:
            while self._thread.is_alive():
                # Again and again: the thread may be opening another connection that hangs.
                self.sever()
                self._thread.join(_STOP_INTERVAL)
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        try:
            self._run_until_stopped()
        except BaseException as error:  # noqa: BLE001  # the ingest ends with it
            self._report(SideConnectionCrashed(error))

    def _run_until_stopped(self) -> None:
        self._schedule(0, self._heartbeat)
        failures = 0
        while not self._stopping.is_set():
            try:
                self._next_step(self._connected())
                failures = 0
            except (psycopg.Error, SourceError) as error:
                if self._stopping.is_set():
                    return
                self._failed(error)
                failures += 1
                self._stopping.wait(_RETRY.delay(failures))

    def _failed(self, error: psycopg.Error | SourceError) -> None:
        known = error
        if not isinstance(known, SourceError):
            known = connections.refusal(known, "check the catalog")
        self._report(SideConnectionDown(known))
        if self._connection is not None and self._connection.closed:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            # Assigned first, so that a stop can sever it if the server doesn't answer.
            self._connection = connections.connect(self._options, role="side")
            with connections.closed_on_failure(self._connection):
                self._connection.execute(LOCK_TIMEOUT)
        return self._connection

    def _next_step(self, connection: Connection) -> None:
        """Run the task that is due, or wait for a request or for the next task."""
        now = time.monotonic()
        if self._tasks and self._tasks[0].due <= now:
            task = heapq.heappop(self._tasks)
            try:
                task.run(connection)
            except (psycopg.Error, SourceError):
                # After the others: an error that repeats must not keep them from running.
                task.failures += 1
                task.due = time.monotonic() + _RETRY.delay(task.failures)
                heapq.heappush(self._tasks, task)
                raise
            return
        try:
            timeout = self._tasks[0].due - now if self._tasks else None
            request = self._requests.get(timeout=timeout)
        except queue.Empty:
            return
        if request is not None:
            self._accept(request)

    def _schedule(self, delay: float, run: Callable[[Connection], None]) -> None:
        due = time.monotonic() + delay
        heapq.heappush(self._tasks, _Task(due, next(self._numbers), run))

    def _accept(self, request: Request) -> None:
        match request:
            case CheckRequest():
                self._schedule(request.after_s, partial(self._requested_check, request.number))
            case CheckSoonRequest():
                self._check_soon()
            case ConnectionRequest():
                self._schedule(0, self._open)
            case PrepareRequest():
                self._schedule(0, partial(self._prepare, request, None, _HOLDERS_EVERY))
            case BarrierRequest():
                self._schedule(0, partial(self._barrier, request))

    def _heartbeat(self, connection: Connection) -> None:
        self._check(connection)
        self._schedule(self._options.heartbeat_interval, self._heartbeat)

    def _requested_check(self, number: int, connection: Connection) -> None:
        self._requested = max(self._requested, number)
        self._check(connection)

    def _check_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self._schedule(max(0.0, self._next_check_at - time.monotonic()), self._run_soon_check)

    def _run_soon_check(self, connection: Connection) -> None:
        self._check(connection)
        self._soon = False

    def _check(self, connection: Connection) -> None:
        began = time.monotonic()
        requested = self._requested
        number = next(self._checks)
        seen = snapshot_.take(connection, self._options, self._tables, number, self._attachments)
        # The publication is visible to every transaction: one of its tables was found in it.
        appending = any(each.append_only and each.published for each in seen.tables.values())
        may_stream = appending and self._publication_gate.is_open(connection)
        message = pgoutput.check_payload(self._options.slot_name)
        seen = seen._replace(answers=requested, appends_may_stream=may_stream, message=message)
        # First the report, then the message: the snapshot must be known when the message arrives.
        self._report(seen)
        self._emit(connection, message)
        ended = time.monotonic()
        check_pause = min(_PAUSE_AT_MOST, _PAUSE_SHARE * (ended - began))
        self._next_check_at = ended + max(_PAUSE_AT_LEAST, check_pause)

    def _open(self, _: Connection) -> None:
        """Open a connection for a copy reader."""
        self._report(ConnectionReady(connections.connect(self._options, role="copy")))

    def _prepare(
        self,
        request: PrepareRequest,
        waited_for: frozenset[Holder] | None,
        pause: float,
        connection: Connection,
    ) -> None:
        """Wait for the lock holders that were found first, then find split points."""
        if waited_for is None:
            left = holders(connection, request.table.oids)
        else:
            left = still_holding(connection, request.table.oids, waited_for)
        if left:
            self._report(WriterWait(request.table_id, tuple(sorted(holder.pid for holder in left))))
            longer = min(_HOLDERS_AT_MOST, pause * 1.5)
            self._schedule(pause, partial(self._prepare, request, left, longer))
            return
        splits = request.splits
        try:
            if splits is None:
                limits = self._options.copy
                splits = key_ranges.plan(
                    connection, request.table, limits.range_bytes, limits.max_rows_per_second
                )
        except psycopg.errors.LockNotAvailable:
            self._schedule(1, partial(self._prepare, request, frozenset(), pause))
            return
        except psycopg.errors.DatabaseError as error:
            if connection.broken:
                raise
            self._report(PrepareFailed(request.table_id, " ".join(str(error).split())))
            return
        self._report(CopyPlan(request.table_id, splits))

    def _barrier(self, request: BarrierRequest, connection: Connection) -> None:
        """Check the table after its last chunk, so that all chunks had the same shape.

        A re-copy's barrier is sent even if partitions have come or gone since: another re-copy
        repairs the rows that its chunks read of them (partition_repair.py).
        """
        found = table_definitions.read_tables(
            connection, [request.options], self._options.publication
        )
        table = snapshot_.with_attachments(connection, found, self._attachments).get(
            request.options.qualified
        )
        if table is not None and table.published is not None and table.published.filter_locked:
            self._schedule(1, partial(self._barrier, request))
            return
        if table is None or shape.of_table(table) != request.shape:
            changed: str | None = "its shape"
        elif request.is_recopy:
            changed = table.rewritten_since(request.version)
        else:
            changed = table.changed_since(request.version)
        if changed is not None:
            # First the report: the check's message lets the copy send the barrier again.
            self._report(BarrierRefused(request))
            self._check(connection)
            return
        self._emit(connection, request.payload)

    def _emit(self, connection: Connection, payload: str) -> None:
        self._awaited.add(payload)
        pgoutput.emit(connection, payload)
