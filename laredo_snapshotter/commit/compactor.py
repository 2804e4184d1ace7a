"""Compaction while the table is written: diffs are merged as their periods end."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Protocol

import structlog

from laredo_archive.errors import ArchiveError, Fenced
from laredo_archive.maintain import compact
from laredo_archive.write.table_archive import TableArchive
from laredo_service.retry import Backoff
from laredo_snapshotter.config import TableConfig

log = structlog.get_logger(__name__)

AGAIN = Backoff(initial=5.0, maximum=3600.0)
LONGEST_PAUSE_S = 60.0
"""Between two checks for what is due; without anything, a check reads nothing."""

_one_at_a_time = threading.Lock()
"""Of all tables of a process one merges at a time: the writing comes first."""


class CompactionCounters(Protocol):
    """The counters of a compactor; called from any thread."""

    def diffs_merged(self, outcome: str) -> None:
        """A merge ended: "done" or "failed"."""


class Compactor:
    """Merges one table's diffs. Belongs to one event loop."""

    def __init__(
        self, config: TableConfig, archive: TableArchive, counters: CompactionCounters
    ) -> None:
        self._config = config
        self._archive = archive
        self._counters = counters
        self._levels = [timedelta(seconds=level) for level in config.compaction.levels]
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{config.name} merges")
        self._over = False
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
        with _one_at_a_time:
            formats = self._config.formats.of_diffs
            merged = compact.merge_next(self._archive.merging, self._levels, formats=formats)
        return merged is not None

    def _failed(self, failure: Exception, failures: int, delay: float) -> None:
        self._counters.diffs_merged("failed")
        self._log.warning(
            "diffs not merged",
            error=str(failure),
            kind=type(failure).__name__,
            attempt=failures,
            retry_in_s=round(delay, 2),
            exc_info=None if isinstance(failure, ArchiveError) else failure,
        )
