"""The collector's schedule: garbage is deleted now and then, while the table is written."""

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

import structlog

from laredo_archive.errors import ArchiveError
from laredo_archive.maintain import collect
from laredo_archive.storage.destination import Destination
from laredo_snapshotter.config import TableConfig

log = structlog.get_logger(__name__)

FIRST_S = 300.0
"""The first collection comes after so long, so that no restart loop lists buckets all day."""


class CollectionCounters(Protocol):
    """The counters of a collector; called from any thread."""

    def collected(self, location: str, outcome: str) -> None:
        """A run over the destination at ``location`` ended: "done" or "failed"."""

    def object_deleted(self, location: str) -> None:
        """An object was deleted there."""


class Collection(NamedTuple):
    """The outcome of the last run over a destination."""

    at: datetime
    problem: str | None
    waiting: int | None
    """Objects that are retired, and are deleted when their grace period is over."""

    def to_json(self) -> dict[str, object]:
        """As /status shows it."""
        return {"at": self.at.isoformat(), "problem": self.problem, "waiting": self.waiting}


class Collector:
    """Collects one table's garbage on all its destinations. Belongs to one event loop."""

    def __init__(
        self,
        config: TableConfig,
        destinations: Sequence[Destination],
        counters: CollectionCounters,
        has_base: Callable[[], bool],
    ) -> None:
        """``has_base``: whether there is an archive to collect from."""
        self._config = config
        self._destinations = destinations
        self._counters = counters
        self._has_base = has_base
        self.latest: dict[str, Collection] = {}
        """By the destination's location."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{config.name} garbage")
        self._log = log.bind(table=config.name)

    async def run(self) -> None:
        """Collect now and then, until cancelled; a run that has begun isn't waited for."""
        interval = self._config.retention.collect_interval
        if not interval:
            return
        pause = min(FIRST_S, interval) * random.uniform(0.5, 1.0)
        try:
            while True:
                await asyncio.sleep(pause)
                for destination in self._destinations:
                    await self._collect(destination)
                # Writers that were started together don't stay together.
                pause = interval * random.uniform(0.9, 1.1)
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

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
