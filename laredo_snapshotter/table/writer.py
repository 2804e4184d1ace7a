"""One table's writer: claims the archive, then runs one session after another until stopped.

The archive is the checkpoint: after any failure the writer can begin again at the archive's head.
Only errors that a retry can't cure end it for good.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import structlog

from laredo_archive.aws.profile import AwsError
from laredo_archive.errors import (
    ArchiveError,
    ArtifactDamaged,
    ArtifactMissing,
    ChecksumDiffers,
    CommitUnavailable,
    ConditionalWritesMissing,
    DestinationError,
    Fenced,
    HistoriesDiffer,
    ManifestDamaged,
    ManifestError,
    OutOfOrder,
)
from laredo_archive.storage.destination import Destination
from laredo_archive.write.manifest_store import Counts
from laredo_archive.write.table_archive import TableArchive
from laredo_fanout.client.errors import StreamError
from laredo_service.files import make_private
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.errors import KeyFieldsDiffer, SnapshotNotReady, SnapshotterError
from laredo_snapshotter.events.notifier import Notifier
from laredo_snapshotter.events.sinks import build
from laredo_snapshotter.metrics import TableCounters
from laredo_snapshotter.status import WriterState
from laredo_snapshotter.table.last_flush import UnwrittenChanges
from laredo_snapshotter.table.session import WriterSession
from laredo_snapshotter.upkeep import Collector, Compactor, Restorer

log = structlog.get_logger(__name__)

AGAIN = Backoff(initial=0.5, maximum=30.0)
LONG_SESSION_S = 60.0
"""Length of a session after which earlier failures don't count any more."""

CLOSE_S = 5.0
"""Time for giving up temporary files, if a destination hangs."""

FINAL = (
    Fenced,
    ManifestError,
    HistoriesDiffer,
    ChecksumDiffers,
    KeyFieldsDiffer,
    ConditionalWritesMissing,
    AwsError,
)
"""Errors that a retry can't cure, and might make worse."""


P = ParamSpec("P")
T = TypeVar("T")


class _Stopped(Exception):
    """The writer was asked to stop before its archive was open."""


class TableWriter:
    """Writes one table's archive. All methods belong to one event loop."""

    def __init__(
        self, config: TableConfig, counters: TableCounters, stores: Stores, flush_timeout: float
    ) -> None:
        """``flush_timeout``: seconds that the last diff may take."""
        self.config = config
        self.state = WriterState.STARTING
        self.problem: str | None = None
        self._left: UnwrittenChanges | None = None
        """Changes that the last session couldn't write."""
        self.archive: TableArchive | None = None
        self.session: WriterSession | None = None
        self.notifier: Notifier | None = None
        """Notifies the sinks, from the claim on; also between two sessions."""
        self.collector: Collector | None = None
        """Deletes what isn't needed, as long as the archive is ours."""
        self.counters = counters
        self.counts = Counts()
        """Counts of the archive, before it is open too."""
        self._stores = stores
        clients = stores.clients(config.profiles)
        self._sinks = [build(sink, clients) for sink in config.sinks]
        self._keeping: list[asyncio.Task[None]] = []
        """Tasks that keep the destinations in order while the table is written."""
        self._restorer: Restorer | None = None
        self._read_whole = False
        """True once the archive was read whole to restore missing objects."""
        self.locations = {each.location: each.uri for each in config.destinations}
        """URIs by location, as configured."""
        for location in self.locations:
            counters.destination(location)
        self._flush_timeout = flush_timeout
        self._outage = Outage()
        self._stopping = asyncio.Event()
        self._requests: list[tuple[float, asyncio.Future[int]]] = []
        # One thread commits while the other writes a base.
        self._executor = ThreadPoolExecutor(2, thread_name_prefix=config.name)
        self._log = log.bind(table=config.name)

    @property
    def stream(self) -> tuple[str, int] | None:
        """History and position of the live stream, for the cuts."""
        feed = self.session.feed if self.session is not None else None
        position = feed.cuts.cut_position if feed is not None and feed.cuts.live else None
        if feed is None or position is None:
            return None
        return str(feed.cuts.history), position

    def cut(self, position: int, *, common: bool = False) -> None:
        """Freeze at ``position`` as soon as the stream has passed it.

        ``common``: all tables of the process are cut there.
        """
        if self.session is not None:
            self.session.feed.cuts.cut(position, common=common)

    def is_known_at(self, history: str, position: int) -> bool | None:
        """True if the archive has the table's state at a position where it was to be cut.

        None: not yet; False: it won't.
        """
        if self.session is None or str(self.session.feed.cuts.history) != history:
            return False
        return self.session.is_known_at(position)

    def tick(self) -> None:
        """A diff interval has passed: is a re-base due?"""
        if self.session is not None:
            self.session.tick()

    def request_snapshot(self) -> "asyncio.Future[int]":
        """Ask for a new base, begun from now on; the future brings its epoch once committed.

        At most two requests wait: a third one shares the second one's future.

        :raises SnapshotNotReady: if this table will never make one.
        """
        if self.state.ended:
            raise SnapshotNotReady(f"{self.config.name} is {self.state}: {self.problem}")
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if len(self._requests) == 2:
            # The first stays: the base under way may be for it.
            _, asked = self._requests.pop()
        # Not by the wall clock: set back, it would ask for one base after another.
        self._requests.append((time.monotonic(), asked))
        if self.session is not None:
            self.session.beat()
        return asked

    @property
    def left(self) -> UnwrittenChanges | None:
        """Changes that were taken and aren't in the archive; None if there are none.

        None too if another writer has taken over, since it writes them.
        """
        if self.state is WriterState.FENCED:
            return None
        if self.session is not None:
            return self.session.left_now()
        if self._left is None and self.archive is not None and self.archive.unfinished:
            head = self.archive.head
            after = None if head is None else head.position
            return UnwrittenChanges(1, 0, after, self.problem or "a commit waits for a destination")
        return self._left

    def stop(self) -> None:
        """Ask :meth:`run` to flush a last diff and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Write until stopped, or until a failure that only an operator can repair."""
        try:
            await self._write()
        finally:
            await self._close()

    async def _write(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._run_session()
            except _Stopped:
                break
            except (ManifestDamaged, OutOfOrder) as changed:
                failures += 1
                await self._open_again_later(changed, failures)
            except FINAL as final:
                self._end(
                    WriterState.FENCED if isinstance(final, Fenced) else WriterState.FAILED, final
                )
                return
            except Exception as failure:  # noqa: BLE001  # one table's failure leaves the others
                failures = 1 if time.monotonic() - began > LONG_SESSION_S else failures + 1
                await self._wait_again(failure, failures)
        self.state = WriterState.STOPPED
        self._refuse_requests("the writer has stopped")

    async def _close(self) -> None:
        """End all threads and tasks; the archive stays as it is."""
        if self.notifier is not None and self.state is not WriterState.FAILED:
            # After a takeover the other writer sends the rest.
            self.notifier.stop()
        await self._leave_archive()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _leave_archive(self) -> None:
        """End what goes on alongside a session, and delete the archive's temporary files."""
        for keeping in self._keeping:
            keeping.cancel()
        if self._keeping:
            await asyncio.wait(self._keeping)
        if self.archive is not None:
            loop = asyncio.get_running_loop()
            closing = loop.run_in_executor(self._executor, self.archive.close)
            closing.add_done_callback(self._archive_closed)
            await asyncio.wait([closing], timeout=CLOSE_S)

    def _archive_closed(self, closing: "asyncio.Future[None]") -> None:
        failure = None if closing.cancelled() else closing.exception()
        if failure is not None:
            expected = isinstance(failure, OSError)
            self._log.error(
                "temporary files not deleted",
                error=str(failure),
                exc_info=None if expected else failure,
            )

    async def _open_again_later(self, changed: ArchiveError, failures: int) -> None:
        # An operator may restore an older manifest, and a late swap may have changed it, so the
        # one in memory is dropped. Meanwhile sinks are notified of what was committed.
        await self._leave_archive()
        self.archive = self.collector = None
        await self._wait_again(changed, failures)

    async def _run_session(self) -> None:
        if self.archive is None or self.notifier is None:
            self.state = WriterState.STARTING
            destinations = await self._unless_stopped(self._destinations)
            self.archive = await self._unless_stopped(self._opened, destinations)
            if self.notifier is not None:
                self.notifier.stop()
            self.notifier = Notifier(self.archive, self.config.name, self._sinks, self.counters)
            self.notifier.start()
            self.collector = Collector(self.config, destinations, self.counters, self._has_base)
            self._restorer = restorer = Restorer(self.config, destinations, self.counters)
            compactor = Compactor(self.config, self.archive, self.counters)
            upkeep = (self.collector.run(), restorer.run(), compactor.run())
            self._keeping = [asyncio.create_task(work) for work in upkeep]
        # A session that ended may have left a commit that isn't everywhere yet.
        await self._unless_stopped(self.archive.settle)
        self.problem = self._left = None
        self.state = WriterState.CONNECTING
        self.session = WriterSession(
            self.config,
            self.archive,
            self._executor,
            self.counters,
            notifier=self.notifier,
            epoch_committed=self._epoch_committed,
            wanted=lambda: bool(self._requests),
        )
        try:
            await self.session.run(self._stopping, self._flush_timeout)
        finally:
            self._left = self.session.left
            self.session = None

    async def _unless_stopped(self, work: Callable[P, T], *about: P.args, **more: P.kwargs) -> T:
        """Do ``work`` in a thread; a stop doesn't wait for a destination that hangs.

        :raises _Stopped: if a stop is requested before it is done.
        """
        loop = asyncio.get_running_loop()
        doing = loop.run_in_executor(self._executor, partial(work, *about, **more))
        stopping = asyncio.create_task(self._stopping.wait())
        either: list[asyncio.Future[Any]] = [doing, stopping]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not doing.done():
            doing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise _Stopped
        return doing.result()

    def _has_base(self) -> bool:
        return self.archive is not None and self.archive.head is not None

    def _opened(self, destinations: Sequence[Destination]) -> TableArchive:
        try:
            return self._open(destinations)
        except (ArtifactMissing, ArtifactDamaged) as failure:
            # The destination to copy from isn't whole itself.
            if not self._read_whole:
                self._log.warning(
                    "full read of the archive started to restore objects", error=str(failure)
                )
                Restorer(self.config, destinations, self.counters).restore(None)
                self._read_whole = True
            return self._open(destinations, carry_lost=True)

    def _open(
        self, destinations: Sequence[Destination], *, carry_lost: bool = False
    ) -> TableArchive:
        config = self.config
        if config.spill_directory is not None:
            make_private(config.spill_directory)
        return TableArchive.open(
            destinations,
            config.name,
            key_prefix=config.key_prefix,
            keep_epochs=config.retention.keep_epochs,
            sinks=[sink.name for sink in self._sinks],
            spool_directory=config.spill_directory,
            go_keys=config.key_format == "go",
            counts=self.counts,
            check_wanted=self._check_wanted,
            carry_lost=carry_lost,
        )

    def _check_wanted(self) -> None:
        """Stop the thread that claims: after a reload it would fence the table's next writer.

        :raises _Stopped: if a stop is requested.
        """
        if self._stopping.is_set():
            self._log.info("claim abandoned", reason="the writer was stopped")
            raise _Stopped

    def _destinations(self) -> list[Destination]:
        try:
            return self._stores.open(self.config, self.counts.availabilities.asking)
        except DestinationError as failure:
            if failure.location is not None:
                self.counts.failed(failure.location, failure)
            raise

    async def _wait_again(self, failure: Exception, failures: int) -> None:
        unavailable = isinstance(failure, DestinationError | CommitUnavailable | ManifestDamaged)
        self.state = WriterState.HOLDING if unavailable else WriterState.CONNECTING
        self.problem = str(failure) or type(failure).__name__
        self.counters.restarted()
        self.counters.failed(failure)
        delay = AGAIN.delay(failures)
        expected = isinstance(failure, ArchiveError | SnapshotterError | StreamError | OSError)
        if failures == 1:
            self._outage.end()
        news = self._outage.is_news(type(failure).__name__)
        level = self._log.error if news or not expected else self._log.debug
        level(
            "session failed; restart scheduled",
            error=self.problem,
            kind=type(failure).__name__,
            attempt=failures,
            retry_in_s=round(delay, 2),
            exc_info=None if expected else failure,
        )
        try:
            await asyncio.wait_for(self._stopping.wait(), delay)
        except TimeoutError:
            return

    def _epoch_committed(self, epoch: int, began_at: float) -> None:
        served = [asked for at, asked in self._requests if at <= began_at]
        self._requests = [(at, asked) for at, asked in self._requests if at > began_at]
        for asked in served:
            if not asked.done():
                asked.set_result(epoch)
        if self._restorer is not None:
            self._restorer.base_committed()

    def _end(self, state: WriterState, why: Exception) -> None:
        self.state = state
        self.problem = str(why)
        if state is WriterState.FENCED:
            self.counters.fenced()
        else:
            self.counters.failed(why)
        self._log.error("table stopped for good", state=state.value, error=str(why))
        self._refuse_requests(f"{self.config.name} is {state}: {why}")

    def _refuse_requests(self, why: str) -> None:
        asked, self._requests = self._requests, []
        for _, request in asked:
            if not request.done():
                request.set_exception(SnapshotNotReady(why))
                request.exception()  # retrieved, in case nobody waits any more
