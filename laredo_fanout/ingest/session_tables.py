"""Tables of one ingest session: WAL messages, catalog checks, requests of other threads."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from laredo_fanout.copy.copier import Copier, TableCopies
from laredo_fanout.copy.recopy import RecopyAsked
from laredo_fanout.errors import TableRefused
from laredo_fanout.ingest.tracked_tables import TrackedTables
from laredo_fanout.pg_catalog.side_connection import (
    BarrierRefused,
    CheckRequest,
    ConnectionReady,
    CopyPlan,
    PrepareFailed,
    Report,
    SideConnection,
    SideConnectionCrashed,
    SideConnectionDown,
    WriterWait,
)
from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
from laredo_fanout.postgres.connections import SourceError
from laredo_fanout.store.environment import Marker
from laredo_fanout.store.errors import Damage

if TYPE_CHECKING:
    from laredo_fanout.batch.status import Counters
    from laredo_fanout.batch.write_batch import WriteBatch
    from laredo_fanout.decode.stream_decoder import StreamDecoder, StreamRelations
    from laredo_fanout.slot.sharing import SlotClaim
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions


class CatalogChecks:
    """Catalog snapshots that were requested, or whose message hasn't arrived in the stream yet.

    This class numbers requests; the side connection numbers snapshots.
    """

    def __init__(self, request: Callable[[CheckRequest], None]) -> None:
        self._request = request
        self._requests = 0
        self._coming: dict[bytes, CatalogSnapshot] = {}

    def ask(self, after_s: float = 0.0) -> int:
        """Request a catalog snapshot; returns the number that its ``answers`` will reach."""
        self._requests += 1
        self._request(CheckRequest(self._requests, after_s))
        return self._requests

    def keep(self, snapshot: CatalogSnapshot) -> None:
        """Keep a snapshot that was taken until its message arrives in the stream."""
        self._coming[snapshot.message.encode()] = snapshot

    def passed(self, content: bytes) -> CatalogSnapshot | None:
        """The snapshot whose message has arrived; None if the message isn't a snapshot's.

        Earlier snapshots, whose messages haven't arrived, are forgotten.
        """
        snapshot = self._coming.pop(content, None)
        if snapshot is not None:
            self._coming = {
                known: each for known, each in self._coming.items() if each.number > snapshot.number
            }
        return snapshot


_log = structlog.get_logger()


class SessionTables:
    """Tracked tables and their copies; used by the ingest thread.

    ``mail`` has reports and requests from other threads.
    """

    def __init__(
        self,
        options: SourceOptions,
        tables: Sequence[SourceTableOptions],
        *,
        batch: WriteBatch,
        relations: StreamRelations,
        side_connection: SideConnection,
        mail: Mailbox[Report | RecopyAsked | Damage],
        counters: Counters,
        claim: SlotClaim | None = None,
    ) -> None:
        self._claim = claim
        request = side_connection.request
        self._batch = batch
        self._side_connection = side_connection
        self._mail = mail
        self._counters = counters
        self._patience = options.heartbeat_interval + options.receive_timeout
        self._checked_at = time.monotonic()
        self._checks = CatalogChecks(request)
        self.tracked = TrackedTables(tables, batch, relations, self._checks.ask, counters)
        self.copies = TableCopies(
            options.slot_name,
            batch,
            request,
            request_snapshot=self._checks.ask,
            failed=self._copy_failed,
        )
        self.copier = Copier(options, batch, self.copies, request, counters)
        self.trouble: SourceError | None = None
        """Present error of the side connection; None if it works."""

    def begin(self) -> None:
        """Expect reports of the side connection from now on."""
        self._checked_at = time.monotonic()

    def transaction_ended(self, decoder: StreamDecoder, between: Callable[[], None]) -> None:
        """Act on an applied transaction that has one of our messages, or closes a table.

        ``between`` is called while a re-copy's rows are compared.
        """
        transaction = self._batch.transaction
        self.tracked.keep_leaves(transaction, decoder.position)
        self.tracked.close_marked(transaction, decoder.position_before, self.copies)
        for content in decoder.take_events():
            snapshot = self._checks.passed(content)
            if snapshot is not None:
                self._snapshot_passed(snapshot, decoder)
                continue
            claim = self._claim
            if claim is not None and claim.met(content, decoder.position, transaction):
                self._batch.when_durable(claim.durable)
                continue
            done = self.copies.barrier_arrived(
                content.decode(), decoder.position, decoder.time_us, between
            )
            if done is not None:
                self.tracked.copied(*done)

    def _snapshot_passed(self, snapshot: CatalogSnapshot, decoder: StreamDecoder) -> None:
        transaction = self._batch.transaction
        transaction.set_marker(Marker(decoder.position, snapshot.message))
        # The snapshot was valid before its message: a closed table was right until then.
        self.tracked.reconcile(snapshot, transaction, decoder.position_before, self.copies)
        self.tracked.verify(snapshot, passed=True)
        self.copies.send_refused()

    def take_reports(self) -> None:
        """Act on the side connection's reports and operators' requests since the last call.

        A side connection that hasn't reported for too long is replaced.

        :raises Exception: the error that ended the side connection's thread.
        """
        for report in self._mail.take():
            match report:
                case CatalogSnapshot():
                    self._checks.keep(report)
                    self._counters.slot.update(report.slot)
                    self._verify(report)
                    self.trouble = None
                    self._checked_at = time.monotonic()
                case CopyPlan() | PrepareFailed() | WriterWait() | BarrierRefused():
                    self._take_copy_report(report)
                case RecopyAsked():
                    self.tracked.recopy(report, self.copies)
                case Damage():
                    self.tracked.repair(report, self._batch.transaction, self.copies)
                case ConnectionReady(connection):
                    self.copier.connected(connection)
                case SideConnectionCrashed(error):
                    raise error
                case SideConnectionDown(error):
                    if self.trouble is None:
                        _log.warning("side connection failed; retry scheduled", error=str(error))
                    self.trouble = error
        now = time.monotonic()
        if now - self._checked_at > self._patience:
            self._side_connection.sever()
            self._checked_at = now

    def _take_copy_report(
        self, report: CopyPlan | PrepareFailed | WriterWait | BarrierRefused
    ) -> None:
        match report:
            case CopyPlan():
                self.copies.prepared(report)
            case PrepareFailed():
                self.copies.prepare_failed(report)
            case WriterWait():
                self.copies.waiting(report)
            case BarrierRefused(request):
                self.copies.barrier_refused(request)

    def _verify(self, snapshot: CatalogSnapshot) -> None:
        """Advance verified positions, unless the slot is still being taken over."""
        if self._claim is None or self._claim.confirms:
            self.tracked.verify(snapshot, passed=False)

    def close(self) -> None:
        """End the copies, and answer requests; the side connection must have ended before."""
        self.copier.close()
        for report in self._mail.take_last():
            if isinstance(report, ConnectionReady):
                report.connection.close()
            elif isinstance(report, RecopyAsked):
                report.refuse_ended()

    def _copy_failed(self, table_id: int, failed: TableRefused) -> None:
        self.tracked.copy_failed(table_id, failed, self._batch.transaction, self.copies)


T = TypeVar("T")


class Mailbox(Generic[T]):
    """Queue of other threads' reports and requests for the loop, with a pipe that wakes it."""

    def __init__(self) -> None:
        self._things: deque[T] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self._closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Descriptor that is readable after :meth:`put` or :meth:`notify`."""
        return self._read

    def put(self, thing: T) -> bool:
        """Add ``thing``, from any thread; False if the mailbox was closed."""
        with self._lock:
            if self._ended:
                return False
            self._things.append(thing)
        self.notify()
        return True

    def notify(self) -> None:
        """Wake the loop."""
        with self._lock:
            if self._closed:
                return
            # A full pipe wakes the loop without another byte.
            with suppress(BlockingIOError):
                os.write(self._write, b"\0")

    def take(self) -> Iterator[T]:
        """Yield everything that was put in since the last call.

        If the caller fails on one, the rest stays for the next call.
        """
        with suppress(BlockingIOError):
            os.read(self._read, 65536)
        for _ in range(len(self._things)):
            yield self._things.popleft()

    def take_last(self) -> Iterator[T]:
        """Close the mailbox, and yield the rest of its content."""
        with self._lock:
            self._ended = True
        return self.take()

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._closed = True
            os.close(self._read)
            os.close(self._write)
