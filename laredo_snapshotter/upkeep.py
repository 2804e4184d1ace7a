"""The upkeep of an archive: garbage collected, diffs merged, lost objects restored."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import structlog

from laredo_archive.errors import ArchiveError, ArchiveMissing, Fenced
from laredo_archive.maintain import collect, compact, repair
from laredo_archive.manifest import object_keys
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.storage.destination import Destination
from laredo_archive.write.table_archive import TableArchive
from laredo_service.retry import Backoff, Outage
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.metrics import TableCounters

log = structlog.get_logger(__name__)

FIRST_S = 300.0
"""Time before the first collection, so that a restart loop doesn't list buckets all day."""


class Collection(NamedTuple):
    """The outcome of the last run over a destination."""

    at: datetime
    problem: str | None
    waiting: int | None
    """Number of retired objects, which are deleted when their grace period is over."""

    def to_json(self) -> dict[str, object]:
        """As /status shows it."""
        return {"at": self.at.isoformat(), "problem": self.problem, "waiting": self.waiting}


class Collector:
    """Collects one table's garbage on all its destinations. Belongs to one event loop."""

    def __init__(
        self,
        config: TableConfig,
        destinations: Sequence[Destination],
        counters: TableCounters,
        has_base: Callable[[], bool],
    ) -> None:
        """``has_base``: whether there is an archive to collect from."""
        self._config = config
        self._destinations = destinations
        self._counters = counters
        self._has_base = has_base
        self.latest: dict[str, Collection] = {}
        """By the destination's location."""
        # A destination that hangs hangs its own thread.
        self._executor = ThreadPoolExecutor(
            len(destinations), thread_name_prefix=f"{config.name} garbage"
        )
        self._log = log.bind(table=config.name)

    async def run(self) -> None:
        """Collect now and then, until cancelled; a run that has begun isn't waited for."""
        interval = self._config.retention.collect_interval
        if not interval:
            return
        try:
            async with asyncio.TaskGroup() as each:
                for destination in self._destinations:
                    each.create_task(self._keep_collecting(destination, interval))
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _keep_collecting(self, destination: Destination, interval: float) -> None:
        pause = min(FIRST_S, interval) * random.uniform(0.5, 1.0)
        while True:
            await asyncio.sleep(pause)
            await self._collect(destination)
            # Writers that were started together don't stay together.
            pause = interval * random.uniform(0.9, 1.1)

    async def _collect(self, destination: Destination) -> None:
        if not self._has_base():
            return
        location = destination.location
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._executor, self._run, destination)
        except Exception as failure:  # noqa: BLE001  # the writing goes on
            self._counters.collected(location, "failed")
            self.latest[location] = Collection(datetime.now(UTC), str(failure), None)
            self._log.warning(
                "collection failed",
                destination=location,
                error=str(failure),
                kind=type(failure).__name__,
                exc_info=None if isinstance(failure, ArchiveError) else failure,
            )
        else:
            self._counters.collected(location, "done")
            self.latest[location] = Collection(datetime.now(UTC), None, done.waiting)

    def _run(self, destination: Destination) -> collect.Collected:
        retention = self._config.retention
        return collect.collect(
            destination,
            self._config.name,
            key_prefix=self._config.key_prefix,
            policy=collect.Policy(
                timedelta(seconds=retention.cut_off), timedelta(seconds=retention.grace)
            ),
            on_deleted=lambda _: self._counters.object_deleted(destination.location),
        )


# Compaction while the table is written: diffs are merged as their periods end.

AGAIN = Backoff(initial=5.0, maximum=3600.0)
LONGEST_PAUSE_S = 60.0
"""Between two checks for what is due; without anything, a check reads nothing."""

LONGEST_TURN_S = 600.0
"""Time for which a table waits for another one's merge, which may hang with its destination."""


class MergeTurns:
    """One table of the process merges at a time, so that writing comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replacing = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the other merges; one that takes too long is no longer waited for by anybody."""
        while not (lock := self._lock).acquire(timeout=LONGEST_TURN_S):
            with self._replacing:
                if self._lock is lock:
                    self._lock = threading.Lock()
                    log.warning("merge overdue; others wait no longer", seconds=LONGEST_TURN_S)
        try:
            yield
        finally:
            lock.release()


_turns = MergeTurns()


class Compactor:
    """Merges one table's diffs. Belongs to one event loop."""

    def __init__(self, config: TableConfig, archive: TableArchive, counters: TableCounters) -> None:
        self._config = config
        self._archive = archive
        self._counters = counters
        self._levels = [timedelta(seconds=level) for level in config.compaction.levels]
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{config.name} merges")
        self._over = False
        self._outage = Outage()
        self._log = log.bind(table=config.name)

    async def run(self) -> None:
        """Merge what is due, and drop what was kept long enough, until cancelled or fenced.

        A merge under way isn't waited for.
        """
        asked = self._config.compaction
        if not asked.levels and asked.keep_parts is None:
            return
        pause = min([LONGEST_PAUSE_S, *(level / 2 for level in asked.levels[:1])])
        loop = asyncio.get_running_loop()
        failures, delay = 0, pause
        try:
            while True:
                await asyncio.sleep(delay)
                delay = pause
                try:
                    await loop.run_in_executor(self._executor, self._compact)
                except Fenced:
                    return
                except Exception as failure:  # noqa: BLE001  # the writing goes on
                    failures += 1
                    delay = AGAIN.delay(failures)
                    self._failed(failure, failures, delay)
                else:
                    failures = 0
                    self._outage.end()
        finally:
            self._over = True
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _compact(self) -> None:
        while not self._over and self._merge_next():
            self._counters.diffs_merged("done")
        keep = self._config.compaction.keep_parts
        if keep is not None:
            self._archive.merging.drop_parts(timedelta(seconds=keep))

    def _merge_next(self) -> bool:
        merging = self._archive.merging
        if merging.next_run(self._levels) is None:
            return False
        with _turns.turn():
            formats = self._config.formats.of_diffs
            return compact.merge_next(merging, self._levels, formats=formats) is not None

    def _failed(self, failure: Exception, failures: int, delay: float) -> None:
        self._counters.diffs_merged("failed")
        news = self._outage.is_news(type(failure).__name__)
        level = self._log.warning if news else self._log.debug
        level(
            "diffs not merged",
            error=str(failure),
            kind=type(failure).__name__,
            attempt=failures,
            retry_in_s=round(delay, 2),
            exc_info=None if isinstance(failure, ArchiveError) else failure,
        )


RESTORE_AGAIN = Backoff(initial=10.0, maximum=600.0, attempts=6)
"""A destination that can't be asked is asked again; after the last attempt, at the next start."""

READ_BYTES = 32 * 2**20
"""Bytes of each destination's newest objects that a start reads to compare their checksums. Of
other objects it compares the listed sizes; ``laredo-archive repair`` reads all."""

SHOWN = 10
"""Lost objects of a destination that get a line of their own in the log."""


class Restorer:
    """Restores one table's objects between its destinations. Belongs to one event loop."""

    def __init__(
        self,
        config: TableConfig,
        destinations: Sequence[Destination],
        counters: TableCounters,
    ) -> None:
        self._config = config
        self._destinations = destinations
        self._counters = counters
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{config.name} repair")
        self._log = log.bind(table=config.name)
        self._lost: dict[str, int] = {}
        """Number of lost objects that the last check found, by location."""
        self._again = asyncio.Event()

    def base_committed(self) -> None:
        """Check lost objects again: the new base may replace them."""
        if any(self._lost.values()):
            self._again.set()

    async def run(self) -> None:
        """Check every destination, once and after a base that replaces lost objects, until
        cancelled; an object under way isn't waited for."""
        try:
            while True:
                await self._check()
                await self._again.wait()
                self._again.clear()
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        attempts = RESTORE_AGAIN.attempts or 1
        for attempt in range(1, attempts + 1):
            try:
                await loop.run_in_executor(self._executor, self.restore, READ_BYTES)
            except Exception as failure:  # noqa: BLE001  # the writing goes on
                self._count_lost()
                delay = RESTORE_AGAIN.delay(attempt)
                self._log.warning(
                    "destinations not checked for lost objects",
                    error=str(failure),
                    kind=type(failure).__name__,
                    attempt=attempt,
                    retry_in_s=None if attempt == attempts else round(delay, 2),
                    exc_info=None if isinstance(failure, ArchiveError) else failure,
                )
            else:
                self._count_lost()
                return
            if attempt < attempts:
                await asyncio.sleep(delay)

    def _count_lost(self) -> None:
        # Not in the thread, which may outlive a reload that removes the destination.
        for place, count in self._lost.items():
            self._counters.objects_lost(place, count)

    def restore(self, read_bytes: int | None) -> None:
        """Restore on every destination what another has; blocks.

        ``read_bytes``: bytes of the newest objects to read for their checksums; None reads all.

        :raises ManifestError: if one's manifest is damaged.
        :raises DestinationError: if one can't be asked; what was restored stays so.
        """
        found = self._found()
        for target in found:
            others = [other for other in found if other is not target]
            report = repair.repair(target, others, sums_bytes=read_bytes)
            place = target.destination.location
            for lost in report.lost[:SHOWN]:
                self._log.error("object lost", destination=place, error=str(lost))
            if len(report.lost) > SHOWN:
                self._log.error(
                    "further objects lost; laredo-archive verify names them",
                    destination=place,
                    count=len(report.lost),
                )
            self._counters.objects_restored(place, len(report.repaired))
            for gone in report.gone[:SHOWN]:
                self._log.warning("object gone", destination=place, error=str(gone))
            self._lost[place] = len(report.lost)

    def _found(self) -> list[FoundArchive]:
        key = object_keys.manifest_key(self._config.key_prefix)
        found = []
        for destination in self._destinations:
            try:
                manifest = location.read_manifest(destination, key)
            except ArchiveMissing:
                continue
            if not manifest.by_original:
                found.append(FoundArchive(destination, key, manifest, location.as_it_is))
        return found
