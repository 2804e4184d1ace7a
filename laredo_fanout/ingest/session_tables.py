"""Tables of one ingest session: messages, catalog checks, orders of other threads."""

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

# Catalog snapshots that were requested, and those whose message the stream hasn't brought yet.


class CatalogChecks:
    """The catalog snapshots that are under way. Numbers of requests are ours, numbers of snapshots
    are the side connection's."""

    def __init__(self, request: Callable[[CheckRequest], None]) -> None:
        self._request = request
        self._requests = 0
        self._coming: dict[bytes, CatalogSnapshot] = {}

    def ask(self, after_s: float = 0.0) -> int:
        """Request a catalog snapshot; the number of the request, which it will answer."""
        self._requests += 1
        self._request(CheckRequest(self._requests, after_s))
        return self._requests

    def keep(self, snapshot: CatalogSnapshot) -> None:
        """The side connection took this snapshot; its message will come in the stream."""
        self._coming[snapshot.message.encode()] = snapshot

    def passed(self, content: bytes) -> CatalogSnapshot | None:
        """The stream has passed this message; None: it isn't a snapshot's.

        Earlier ones, whose messages didn't come, don't count any more.
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

    ``mail`` is where reports, and requests of operators, come from other threads.
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
        """Error that keeps the side connection from working at the moment."""

    def begin(self) -> None:
        """The side connection works from here on."""
        self._checked_at = time.monotonic()

    def transaction_ended(self, decoder: StreamDecoder, between: Callable[[], None]) -> None:
        """A transaction ended, and is applied, that has one of our messages or closes a table.

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
        # What the snapshot shows was so before its message: a closed table was right until there.
        self.tracked.reconcile(snapshot, transaction, decoder.position_before, self.copies)
        self.tracked.verify(snapshot, passed=True)

    def take_reports(self) -> None:
        """Act on what the side connection has reported, and operators have asked for, since.

        A side connection that hasn't reported for too long is ended, and is made again.

        :raises Exception: whatever made the side connection's thread crash.
        """
        for report in self._mail.take():
            match report:
                case CatalogSnapshot():
                    self._checks.keep(report)
                    self._counters.slot.update(report.slot)
                    self._verify(report)
                    self.trouble = None
                    self._checked_at = time.monotonic()
                case CopyPlan():
                    self.copies.prepared(report)
                case PrepareFailed():
                    self.copies.prepare_failed(report)
                case WriterWait():
                    self.copies.waiting(report)
                case RecopyAsked():
                    self.tracked.recopy(report, self._batch.transaction, self.copies)
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

    def _verify(self, snapshot: CatalogSnapshot) -> None:
        """Advance verified positions, unless the slot is being taken over still."""
        if self._claim is None or self._claim.confirms:
            self.tracked.verify(snapshot, passed=False)

    def close(self) -> None:
        """End the copies; answer whoever waits. The side connection has ended before."""
        self.copier.close()
        for report in self._mail.take_last():
            if isinstance(report, ConnectionReady):
                report.connection.close()
            elif isinstance(report, RecopyAsked):
                report.refuse_ended()

    def _copy_failed(self, table_id: int, failed: TableRefused) -> None:
        self.tracked.copy_failed(table_id, failed, self._batch.transaction, self.copies)


# The ingest loop's mailbox: what other threads leave for it, with a pipe that wakes it.

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue for the loop; ``fileno`` becomes readable when something is in it."""

    def __init__(self) -> None:
        self._things: deque[T] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self._closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """File descriptor that becomes readable when something was put in."""
        return self._read

    def put(self, thing: T) -> bool:
        """Leave ``thing``; from any thread. False: nobody will take it any more."""
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
            # When so many wake-ups lie there that it blocks, one more says nothing.
            with suppress(BlockingIOError):
                os.write(self._write, b"\0")

    def take(self) -> Iterator[T]:
        """Take everything that was put in since the last call, one by one.

        If the caller fails on one, the rest stays for the next call.
        """
        with suppress(BlockingIOError):
            os.read(self._read, 65536)
        for _ in range(len(self._things)):
            yield self._things.popleft()

    def take_last(self) -> Iterator[T]:
        """Close the mailbox, and take what is left in it."""
        with self._lock:
            self._ended = True
        return self.take()

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._closed = True
            os.close(self._read)
            os.close(self._write)
