"""The running writers: one a table, begun and ended while the others go on, and their cuts."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeAlias

import structlog

from laredo_snapshotter.app.catalog_keeper import CatalogKeeper
from laredo_snapshotter.commit.destinations import Stores
from laredo_snapshotter.config import TableConfig
from laredo_snapshotter.diff.cut_schedule import CutSchedule
from laredo_snapshotter.metrics import Metrics, TableCounters
from laredo_snapshotter.table.writer import TableWriter

log = structlog.get_logger(__name__)

HANG_S = 7.0
"""Time for the end of a table's writer after its last diffs: with 20 s for those everything has
ended before the 30 s that Kubernetes waits."""

Supervised: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
"""Runs a part of the program, by its name, in a task whose crash is noticed."""


class TableWriters:
    """Begins and ends tables' writers; belongs to one event loop."""

    def __init__(
        self, metrics: Metrics, stores: Stores, flush_timeout: float, supervised: Supervised
    ) -> None:
        """``flush_timeout``: seconds that a writer's last diff may take."""
        self._supervised = supervised
        self._metrics = metrics
        self._stores = stores
        self._flush_timeout = flush_timeout
        self._writers: dict[str, TableWriter] = {}
        self._running: dict[TableWriter, asyncio.Task[None]] = {}
        self.catalogs = CatalogKeeper(stores, lambda: self.all)
        self._cuts = CutSchedule(time.monotonic, self.catalogs.all_cut)
        self._keeping: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None

    @property
    def all(self) -> Sequence[TableWriter]:
        """Every table's."""
        return list(self._writers.values())

    def __getitem__(self, table: str) -> TableWriter:
        return self._writers[table]

    def make(self, table: TableConfig) -> TableWriter:
        """A writer that isn't begun yet.

        :raises AwsError: if a sink can't be asked as it is configured.
        """
        counters = TableCounters(self._metrics, table.name)
        return TableWriter(table, counters, self._stores, self._flush_timeout)

    def begin(self, writer: TableWriter) -> None:
        """Have it write."""
        self._writers[writer.config.name] = writer
        self._running[writer] = self._supervised(writer.run(), f"writer of {writer.config.name}")
        self._cuts.add(writer, writer.config.diff.interval)
        if self._cutting is None:
            self._cutting = self._supervised(self._cuts.run(), "cuts of the tables")
            self._keeping = self._supervised(self.catalogs.run(), "catalogs")

    async def end(self, names: Iterable[str]) -> list[TableWriter]:
        """Have these tables' writers write what they have taken, and end; those that are over.

        One that hangs in a destination isn't waited for.
        """
        ending = [self._writers[name] for name in names]
        for writer in ending:
            self._cuts.remove(writer)
            writer.stop()
        tasks = [self._running[writer] for writer in ending]
        if tasks:
            await asyncio.wait(tasks, timeout=self._flush_timeout + HANG_S)
        for writer in ending:
            del self._running[writer]
            del self._writers[writer.config.name]
            if writer.left is not None:
                writer.left.log(writer.config.name)
        return ending

    async def stop(self) -> None:
        """Stop all writers; /status shows them until the end."""
        for task in (self._cutting, self._keeping):
            if task is not None:
                task.cancel()
        for writer in self._writers.values():
            writer.stop()
        # A destination that hangs hangs its threads too: they aren't waited for.
        if self._running:
            await asyncio.wait(self._running.values(), timeout=self._flush_timeout + HANG_S)
