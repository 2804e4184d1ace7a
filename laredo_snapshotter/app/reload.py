"""The running writers, and reloads: tables are added, removed or restarted."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import structlog

from laredo_archive.aws.profile import AwsError
from laredo_fanout.client.errors import InvalidRequest, StreamError
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import served_tables
from laredo_service.http.settings import HttpSettings
from laredo_service.settings import SettingsError
from laredo_service.settings.loading import take_up
from laredo_service.settings.tree import Path
from laredo_service.table_pattern import TableName
from laredo_snapshotter import config
from laredo_snapshotter.app.catalog_keeper import CatalogKeeper
from laredo_snapshotter.config import Found, ServedPattern, SnapshotterBlock, TableConfig
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.diff.cuts import CutSchedule
from laredo_snapshotter.errors import ConfigRefused, ReloadImpossible
from laredo_snapshotter.metrics import Metrics, TableCounters
from laredo_snapshotter.table.writer import TableWriter

# Asks servers for their tables, so that patterns follow them.

log = structlog.get_logger(__name__)

INTERVAL_S = 5.0
"""Interval at which a server is asked, in seconds."""


class ServedPatterns:
    """Follows the tables that patterns match. All methods belong to one event loop.

    A table is gone only when two answers in a row lack it; while a server doesn't answer all stay.
    """

    def __init__(
        self,
        patterns: Mapping[ServedPattern, str],
        found: Callable[[Found], Awaitable[None]],
        interval: float = INTERVAL_S,
    ) -> None:
        """``patterns``: each with its configuration path.

        ``found`` is called with all tables when tables were added or removed.
        """
        self.rounds = 0
        """Number of times that all servers were asked."""
        self._interval = interval
        self._patterns = dict(patterns)
        self._found = found
        self._known: dict[ServedPattern, frozenset[TableName]] = {}
        self._missing: dict[ServedPattern, frozenset[TableName]] = {}
        self._problems: dict[Endpoint, str] = {}
        self._changed = asyncio.Event()

    def change(self, patterns: Mapping[ServedPattern, str]) -> None:
        """Follow other patterns from now on."""
        self._patterns = dict(patterns)
        self._changed.set()

    @property
    def waiting(self) -> dict[str, str]:
        """The patterns whose server hasn't answered yet: path and reason."""
        return {
            f"{path} ({each.pattern.schema}.{each.pattern.table})": self._problems.get(
                each.endpoint, "its server hasn't answered yet"
            )
            for each, path in self._patterns.items()
            if each not in self._known
        }

    async def run(self) -> None:
        """Ask now and every few seconds; never returns."""
        while True:
            self._changed.clear()
            await self._ask_all()
            self.rounds += 1
            try:
                await asyncio.wait_for(self._changed.wait(), self._interval)
            except TimeoutError:
                continue

    async def _ask_all(self) -> None:
        before = dict(self._known)
        patterns = list(self._patterns)
        for endpoint in dict.fromkeys(each.endpoint for each in patterns):
            served = await self._ask(endpoint)
            if served is not None:
                for each in patterns:
                    if each.endpoint == endpoint:
                        self._judge(each, served)
        self._known = {each: names for each, names in self._known.items() if each in self._patterns}
        if self._known != before:
            await self._found(self._known)

    async def _ask(self, endpoint: Endpoint) -> frozenset[TableName] | None:
        try:
            served = await served_tables(endpoint)
        except StreamError as error:
            why = str(error)
            if isinstance(error, InvalidRequest):
                why = f"{error.server} is too old for patterns: update it, or list the tables"
            if self._problems.get(endpoint) != why:
                log.warning("server's tables not read; retry scheduled", error=why)
            self._problems[endpoint] = why
            return None
        self._problems.pop(endpoint, None)
        return served

    def _judge(self, each: ServedPattern, served: frozenset[TableName]) -> None:
        now = frozenset(each.pattern.of(served))
        missing = self._known.get(each, now) - now
        gone = missing & self._missing.get(each, frozenset())
        self._missing[each] = missing
        self._known[each] = now | (missing - gone)


# The running writers: one a table, begun and ended while the others go on, and their cuts.

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
        """The writers of all tables."""
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
        """Start ``writer``, supervised, and add it to the cuts."""
        self._writers[writer.config.name] = writer
        self._running[writer] = self._supervised(writer.run(), f"writer of {writer.config.name}")
        self._cuts.add(writer, writer.config.diff.interval)
        if self._cutting is None:
            self._cutting = self._supervised(self._cuts.run(), "cuts of the tables")
            self._keeping = self._supervised(self.catalogs.run(), "catalogs")

    async def end(self, names: Iterable[str]) -> None:
        """End these tables' writers after their last diffs; they stay until :meth:`drop`.

        A writer that hangs in a destination isn't waited for.
        """
        ending = [self._writers[name] for name in names]
        for writer in ending:
            self._cuts.remove(writer)
            writer.stop()
        tasks = [self._running[writer] for writer in ending]
        if tasks:
            await asyncio.wait(tasks, timeout=self._flush_timeout + HANG_S)

    def drop(self, names: Iterable[str]) -> None:
        """Remove these tables' writers, which have ended, and log what they left."""
        for writer in [self._writers.pop(name) for name in names]:
            del self._running[writer]
            if writer.left is not None:
                writer.left.log(writer.config.name)

    def forget_outputs(self, before: TableConfig, now: TableConfig) -> None:
        """Remove the metrics of the destinations and sinks that a table has no more."""
        locations = [{each.location for each in table.destinations} for table in (before, now)]
        sinks = [{sink.name for sink in table.sinks} for table in (before, now)]
        self._metrics.forget_outputs(now.name, locations[0] - locations[1], sinks[0] - sinks[1])

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


class RunningWriter(NamedTuple):
    """The parts of the process that hold something of its configuration."""

    writers: TableWriters
    change_http: Callable[[HttpSettings], None]
    #: Called with tables that aren't written any more.
    forget: Callable[[list[str]], None]
    #: Called with the tables once they are taken up.
    changed: Callable[[list[TableConfig]], None]
    is_stopping: Callable[[], bool]
    #: Called with the patterns, each with its path.
    change_patterns: Callable[[dict[ServedPattern, str]], None]


class WriterReload:
    """Takes up changed configurations, one after the other."""

    def __init__(
        self,
        block: SnapshotterBlock,
        tables: list[TableConfig],
        load: Callable[[], SnapshotterBlock],
        running: RunningWriter,
    ) -> None:
        """``load`` reads the configuration again, as it was read at the start."""
        self._block, self._http = block, block.http
        self._tables = {table.name: table for table in tables}
        self._found: Found = {}
        self._load = load
        self._running = running
        self._one = asyncio.Lock()

    async def run(self) -> dict[str, Any]:
        """Take up the configuration as it is now; return what was done, for POST /reload.

        :raises ReloadImpossible: if it is wrong, or the program is stopping; nothing has changed.
        """
        async with self._one:
            if self._running.is_stopping():
                raise ReloadImpossible("the writer is stopping")
            try:
                block = await asyncio.to_thread(self._load)
                patterns = config.patterns(block)
                done = await self._take_up(block, self._of(block))
                self._running.change_patterns(patterns)
                return _logged(done)
            except (SettingsError, ConfigRefused, AwsError) as wrong:
                log.error("configuration not reloaded", error=str(wrong))
                raise ReloadImpossible(str(wrong)) from wrong

    async def follow_patterns(self, found: Found) -> None:
        """Write the tables that the servers have now, of those that patterns match."""
        async with self._one:
            self._found = found
            if self._running.is_stopping():
                return
            try:
                done = await self._take_up(self._block, self._of(self._block))
            except (ConfigRefused, AwsError) as wrong:
                log.error("patterns not applied", error=str(wrong))
                return
            if done["added"] or done["removed"]:
                log.info(
                    "tables added or removed by pattern",
                    added=done["added"],
                    removed=done["removed"],
                )

    def _of(self, block: SnapshotterBlock) -> dict[str, TableConfig]:
        """:raises ConfigRefused: the tables don't go together."""
        written = {table.served_name for table in self._tables.values()}
        tables = config.matching_tables(block, self._found, written)
        return {table.name: table for table in tables}

    async def _take_up(
        self, block: SnapshotterBlock, tables: dict[str, TableConfig]
    ) -> dict[str, Any]:
        """:raises AwsError: a table's sink can't be asked as it is configured."""
        before, writers = self._tables, self._running.writers
        added = sorted(tables.keys() - before.keys())
        removed = sorted(before.keys() - tables.keys())
        altered = sorted(
            name for name in tables if name in before and not tables[name].is_as(before[name])
        )
        # All of them before anything is ended: what fails changes nothing.
        made = [writers.make(tables[name]) for name in (*added, *altered)]
        taken = take_up(self._http, block.http, _needs_restart)
        self._block, self._http, self._tables = block, taken.config, tables
        self._running.change_http(self._http)
        ended = (*removed, *altered)
        await writers.end(ended)
        if not self._running.is_stopping():
            # Otherwise they stay, as the exit code depends on what they left.
            writers.drop(ended)
            self._running.forget(removed)
            for name in altered:
                writers.forget_outputs(before[name], tables[name])
            for writer in made:
                writers.begin(writer)
        self._running.changed(list(tables.values()))
        return {
            "added": added,
            "removed": removed,
            "altered": altered,
            "changed": _full(taken.changed),
            "needs_restart": _full(taken.needs_restart),
        }


def _needs_restart(path: Path, before: object, new: object) -> bool:
    if path == ("token",):
        # The default address depends on whether there is a token.
        return before is None or new is None
    return path not in (("token_file",), ("public",), ("allowed_hosts",))


def _full(paths: tuple[str, ...]) -> list[str]:
    return [f"snapshotter.http.{path}" for path in paths]


def _logged(done: dict[str, Any]) -> dict[str, Any]:
    log.info("configuration reloaded", **done)
    if done["needs_restart"]:
        log.warning(
            "changed settings left until a restart",
            paths=done["needs_restart"],
        )
    return done
