"""The check at a writer's start: what one destination lost or damaged comes from another."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog

from laredo_archive.errors import ArchiveError, ArchiveMissing
from laredo_archive.maintain import repair
from laredo_archive.manifest import object_keys
from laredo_archive.read import location
from laredo_archive.read.location import FoundArchive
from laredo_archive.storage.destination import Destination
from laredo_service.retry import Backoff
from laredo_snapshotter.config import TableConfig

log = structlog.get_logger(__name__)

AGAIN = Backoff(initial=10.0, maximum=600.0, attempts=6)
"""A destination that can't be asked is asked again; after the last attempt, at the next start."""

READ_BYTES = 32 * 2**20
"""Of each destination's newest objects, what a start reads to compare their sums. Of all others a
listing gives the sizes; ``laredo-archive repair`` reads them whole."""

SHOWN = 10
"""Lost objects of a destination that get a line of their own in the log."""


class RestorerCounters(Protocol):
    """The counters of a restorer; called from any thread."""

    def objects_restored(self, location: str, count: int) -> None:
        """Set the number of restored objects in the destination at ``location``."""

    def objects_lost(self, location: str, count: int) -> None:
        """Set the number of objects that no destination has whole, as the last check found."""


class Restorer:
    """Restores one table's objects between its destinations. Belongs to one event loop."""

    def __init__(
        self,
        config: TableConfig,
        destinations: Sequence[Destination],
        counters: RestorerCounters,
    ) -> None:
        self._config = config
        self._destinations = destinations
        self._counters = counters
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{config.name} repair")
        self._log = log.bind(table=config.name)

    async def run(self) -> None:
        """Check every destination once, until cancelled; an object under way isn't waited for."""
        loop = asyncio.get_running_loop()
        attempts = AGAIN.attempts or 1
        try:
            for attempt in range(1, attempts + 1):
                try:
                    await loop.run_in_executor(self._executor, self.restore, READ_BYTES)
                except Exception as failure:  # noqa: BLE001  # the writing goes on
                    delay = AGAIN.delay(attempt)
                    self._log.warning(
                        "destinations not checked for lost objects",
                        error=str(failure),
                        kind=type(failure).__name__,
                        attempt=attempt,
                        retry_in_s=None if attempt == attempts else round(delay, 2),
                        exc_info=None if isinstance(failure, ArchiveError) else failure,
                    )
                else:
                    return
                if attempt < attempts:
                    await asyncio.sleep(delay)
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def restore(self, read_bytes: int | None) -> None:
        """Restore on every destination what another has; blocks.

        ``read_bytes``: of the newest objects, how much is read to compare sums; None reads all.

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
            self._counters.objects_lost(place, len(report.lost))

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
