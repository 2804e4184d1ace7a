"""A changed configuration, taken up by the running writer: tables come, go, or begin again."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from laredo_archive.aws.profile import AwsError
from laredo_service.http.settings import HttpSettings
from laredo_service.settings import SettingsError
from laredo_service.settings.loading import take_up
from laredo_service.settings.tree import Path
from laredo_snapshotter import table_patterns
from laredo_snapshotter.app.table_writers import TableWriters
from laredo_snapshotter.config import SnapshotterBlock, TableConfig
from laredo_snapshotter.errors import ConfigRefused, ReloadImpossible
from laredo_snapshotter.table_patterns import Found, ServedPattern

log = structlog.get_logger(__name__)


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
        """Take up the configuration as it is now; what was done, as POST /reload answers.

        :raises ReloadImpossible: if it is wrong, or the program is stopping; nothing has changed.
        """
        async with self._one:
            if self._running.is_stopping():
                raise ReloadImpossible("the writer is stopping")
            try:
                block = await asyncio.to_thread(self._load)
                patterns = table_patterns.patterns(block)
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
        written = {table_patterns.name_of(table) for table in self._tables.values()}
        tables = table_patterns.tables(block, self._found, written)
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
        await writers.end((*removed, *altered))
        self._running.forget(removed)
        if not self._running.is_stopping():
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
        # Whether one is asked for says where to listen.
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
