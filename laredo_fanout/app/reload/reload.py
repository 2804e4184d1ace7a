"""The reload: reads the configuration again, and has every part of the server take it up.

The order matters where a table goes: first the serving processes end its streams, then the ingest
drops what the store has of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from laredo_fanout.app import options
from laredo_fanout.app.archive_watch import ArchiveWatch
from laredo_fanout.app.ingest_thread import IngestThread
from laredo_fanout.app.journal_pruning import JournalPruning
from laredo_fanout.app.processes.children import ServingChildren
from laredo_fanout.app.processes.clients import Clients
from laredo_fanout.app.reload.expansion import patterns
from laredo_fanout.app.reload.plan import ReloadPlan, plan
from laredo_fanout.app.snapshots.schedule import SnapshotSchedule
from laredo_fanout.app.status import ServerView
from laredo_fanout.catalog.discovery import TableDiscovery
from laredo_fanout.catchup.fall_behind import FallBehind
from laredo_fanout.config import Config
from laredo_fanout.errors import FanoutError
from laredo_fanout.serving.calls.tokens import BadTokensFile, Tokens
from laredo_service.http.settings import HttpSettings
from laredo_service.settings import SettingsError
from laredo_service.table_pattern import TableName

_TAKEN_WITHIN_S = 5.0
"""Longest wait of a reload's answer for the ingest's change of tables."""

log = structlog.get_logger("laredo_fanout.reload")


class ReloadRefused(FanoutError):
    """The new configuration can't be taken up; everything is as it was."""


@dataclass(frozen=True)
class RunningParts:
    """The parts of the running server that hold something of its configuration."""

    children: ServingChildren
    clients: Clients
    pruning: JournalPruning
    snapshots: SnapshotSchedule
    archives: ArchiveWatch
    view: ServerView
    ingest: IngestThread
    fall_behind: FallBehind | None
    discovery: TableDiscovery | None
    change_http: Callable[[HttpSettings], None]


class Reload:
    """Takes up changed configurations, one after the other."""

    def __init__(
        self,
        configured: Config,
        config: Config,
        found: frozenset[TableName],
        load: Callable[[], Config],
        parts: RunningParts,
    ) -> None:
        """``configured`` came to ``config`` with the tables that were ``found``. ``load`` reads the
        configuration again, as it was read at the start."""
        self._configured, self._config, self._found = configured, config, found
        self._load, self._parts = load, parts
        self._one = asyncio.Lock()

    async def run(self) -> dict[str, Any]:
        """Take up the configuration as it is now; what was done, as POST /reload answers.

        :raises ReloadRefused: if it is wrong, or the server is stopping; nothing has changed.
        """
        async with self._one:
            if self._parts.view.draining:
                raise ReloadRefused("the server is stopping")
            try:
                new = await asyncio.to_thread(self._load)
            except SettingsError as wrong:
                raise _refused(str(wrong)) from wrong
            planned = plan(self._configured, self._config, new, self._found)
            self._check_tokens(planned.config)
            waits_for = await self._take_up(planned)
        return _logged(planned, waits_for)

    async def follow_patterns(self, found: frozenset[TableName]) -> None:
        """Take up the tables that the catalog has now, of those that patterns match."""
        async with self._one:
            self._found = found
            planned = plan(self._configured, self._config, self._configured, found)
            if self._parts.view.draining or not (planned.added or planned.removed):
                return
            log.info(
                "tables added or removed by pattern",
                added=sorted(planned.added),
                removed=sorted(planned.removed),
            )
            await self._take_up(planned)

    def _check_tokens(self, config: Config) -> None:
        """:raises ReloadRefused: another tokens file can't be used."""
        path = config.fanout.grpc.tokens_file
        if path is None or path == self._config.fanout.grpc.tokens_file:
            return
        try:
            Tokens(path)
        except BadTokensFile as wrong:
            raise _refused(str(wrong)) from wrong

    async def _take_up(self, planned: ReloadPlan) -> str | None:
        """Have all parts take it up; what the tables wait for, if the ingest hasn't yet."""
        before, parts = self._config, self._parts
        other_patterns = patterns(self._configured) != patterns(planned.configured)
        self._configured, self._config = planned.configured, planned.config
        config = planned.config
        if parts.discovery is not None:
            parts.discovery.change(patterns(planned.configured))
        parts.clients.limit(
            config.max_clients, config.max_clients_per_identity, config.max_clients_per_client_id
        )
        # Shown as waiting at once, and no longer shown before their state goes.
        parts.view.change_config(config)
        listener = parts.children.options.listener
        connect = listener.connect
        serving = options.serving_options(
            config, listener.port, None if connect is None else connect.port
        )
        await parts.children.change(serving)
        parts.change_http(config.http)
        parts.pruning.change(config)
        await asyncio.gather(parts.snapshots.change(config), parts.archives.change(config))
        # A session begins with a check of what the patterns stand for.
        if not (other_patterns or _follows_otherwise(before, config)):
            return None
        if parts.fall_behind is not None:
            parts.fall_behind.change_source(options.source_options(config))
        taken = asyncio.wrap_future(parts.ingest.change(config))
        await asyncio.wait({taken}, timeout=_TAKEN_WITHIN_S)
        return None if taken.done() else self._waits_for()

    def _waits_for(self) -> str:
        ingest = self._parts.ingest
        if ingest.reads_split_backlog:
            return "the end of a split backlog"
        status = ingest.status()
        return f"the source: {ingest.error or status.error or status.phase}"


def _follows_otherwise(before: Config, now: Config) -> bool:
    """True if the ingest needs another session: for other tables, or another connection."""
    tables = set(options.source_tables(before)), set(options.source_tables(now))
    return tables[0] != tables[1] or before.sources != now.sources


def _refused(why: str) -> ReloadRefused:
    log.error("configuration not reloaded", error=why)
    return ReloadRefused(why)


def _logged(planned: ReloadPlan, waits_for: str | None) -> dict[str, Any]:
    done = {
        "added": sorted(planned.added),
        "removed": sorted(planned.removed),
        "altered": sorted(planned.altered),
        "changed": list(planned.changed),
        "needs_restart": list(planned.needs_restart),
        "waits_for": waits_for,
    }
    log.info("configuration reloaded", **done)
    if planned.needs_restart:
        log.warning(
            "changed settings left until a restart",
            paths=list(planned.needs_restart),
        )
    return done
