"""The reload: reads the configuration again, and has every part of the server take it up.

The order matters if a table is removed: first the serving processes end its streams, then the
ingest drops its rows and its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import structlog

from laredo_fanout.app import options
from laredo_fanout.app.scrape import ServerParts
from laredo_fanout.app.status import ServerView
from laredo_fanout.config import Config, ReplicatedTableConfig
from laredo_fanout.errors import FanoutError
from laredo_fanout.pg_catalog.publication import TableDiscovery
from laredo_fanout.serving.call import BadTokensFile, Tokens
from laredo_fanout.store.writer import Store
from laredo_service.http.settings import HttpSettings
from laredo_service.settings import SettingsError
from laredo_service.settings.loading import below, take_up
from laredo_service.settings.tree import Path
from laredo_service.table_pattern import TableName, TablePattern

# Patterns of tables in the configuration, replaced by the tables that they match.

log = structlog.get_logger("laredo_fanout.reload")


def patterns(config: Config) -> list[TablePattern]:
    """The patterns among the configured tables."""
    return [table.pattern for table in config.tables if table.is_pattern]


def known(store: Store) -> frozenset[TableName]:
    """The tables of the store, which are followed until the catalog is read."""
    return frozenset(TableName(each.schema, each.name) for each in store.tables.values())


def expand(
    config: Config, found: Collection[TableName], followed: Collection[TableName] = ()
) -> Config:
    """The configuration with the tables that were ``found`` in place of its patterns.

    A table that is listed by name, or matched by an earlier pattern, isn't taken again. If a
    pattern matches more than ``max_tables``, tables that are ``followed`` are taken first.
    """
    taken = {TableName(t.namespace, t.table) for t in config.tables if not t.is_pattern}
    tables: list[ReplicatedTableConfig] = []
    for table in config.tables:
        if not table.is_pattern:
            tables.append(table)
            continue
        names = sorted(set(table.pattern.of(found)) - taken, key=lambda n: (n not in followed, n))
        if len(names) > table.max_tables:
            _log_too_many(table, names)
        del names[table.max_tables :]
        taken.update(names)
        tables += map(table.of_pattern, sorted(names))
    return config.model_copy(update={"tables": tuple(tables)})


def followed(config: Config) -> frozenset[TableName]:
    """The tables of an expanded configuration."""
    return frozenset(TableName(table.namespace, table.table) for table in config.tables)


def _log_too_many(pattern: ReplicatedTableConfig, names: list[TableName]) -> None:
    left_out = [".".join(name) for name in names[pattern.max_tables :]]
    log.error(
        "tables left out: the pattern matches more than max_tables",
        pattern=pattern.name,
        max_tables=pattern.max_tables,
        left_out=left_out[:20],
        number=len(left_out),
        cure="raise max_tables, or exclude some, and reload",
    )


# Plan of a reload: changed tables, and the settings that apply without a restart.

_SOURCE = ("sources", "*")
_GRPC = ("fanout", "grpc")
_NEEDS_RESTART = below(("state",), ("sources",), ("fanout",), ("http",))
_TAKEN_UP = below(
    *(
        (*_SOURCE, key)
        for key in (
            # The next session of the stream uses them, and repeats the checks of a start.
            "connection",
            "password",
            "password_file",
            "copy",
            "heartbeat_interval",
            "receive_timeout",
            "on_slot_lost",
            # Of a relay.
            "token",
            "token_file",
        )
    ),
    (*_GRPC, "max_clients"),
    (*_GRPC, "max_clients_per_identity"),
    (*_GRPC, "max_clients_per_client_id"),
    ("fanout", "drain_grace"),
    ("http", "token_file"),
    ("http", "public"),
    ("http", "allowed_hosts"),
)
_REPLACED = below((*_GRPC, "tokens_file"), ("http", "token"))
"""Taken up if there was one and is one: whether there is one decides the address to listen on."""


class ReloadPlan(NamedTuple):
    """The configuration that the server goes on with, and how it differs from the one before."""

    configured: Config
    """With patterns."""
    config: Config
    """With the tables that they match."""
    changed: tuple[str, ...]
    """Paths of the settings that are taken up, without those of tables."""
    needs_restart: tuple[str, ...]
    """Paths of the settings that stay unchanged until a restart."""
    added: tuple[str, ...]
    """Tables."""
    removed: tuple[str, ...]
    """Tables."""
    altered: tuple[str, ...]
    """Tables that stay, with other settings."""


def plan(
    configured: Config, running: Config, new: Config, found: Collection[TableName]
) -> ReloadPlan:
    """Plan the change from a running server's configuration to a new one.

    ``configured`` is the file that was loaded last, ``running`` is the same without patterns, and
    ``found`` are the tables of the catalog.
    """
    taken = take_up(configured, new, _needs_restart)
    config = expand(taken.config, found, followed(running))
    kept = list(taken.needs_restart)
    if new.port != configured.port and "fanout.grpc.port" not in kept:
        # The short form in a target sets it, too.
        kept.append("fanout.grpc.port")
    former = {table.name: table for table in running.tables}
    now = {table.name: table for table in config.tables}
    return ReloadPlan(
        taken.config,
        config,
        tuple(path for path in taken.changed if path != "tables"),
        tuple(kept),
        added=tuple(now.keys() - former.keys()),
        removed=tuple(former.keys() - now.keys()),
        altered=tuple(name for name in former if name in now and now[name] != former[name]),
    )


def _needs_restart(path: Path, before: object, new: object) -> bool:
    if _REPLACED(path):
        return before is None or new is None
    return _NEEDS_RESTART(path) and not _TAKEN_UP(path)


_TAKEN_WITHIN_S = 5.0
"""Longest wait of a reload's answer for the ingest's change of tables."""


class ReloadRefused(FanoutError):
    """The new configuration can't be taken up; everything is as it was."""


class Reload:
    """Takes up changed configurations, one after the other."""

    def __init__(
        self,
        configured: Config,
        config: Config,
        found: frozenset[TableName],
        load: Callable[[], Config],
        parts: ServerParts,
        *,
        view: ServerView,
        discovery: TableDiscovery | None,
        change_http: Callable[[HttpSettings], None],
    ) -> None:
        """``config`` is ``configured`` with the tables that were ``found`` in place of patterns.
        ``load`` reads the configuration again, as it was read at the start."""
        self._configured, self._config, self._found = configured, config, found
        self._load, self._parts, self._view = load, parts, view
        self._discovery, self._change_http = discovery, change_http
        self._one = asyncio.Lock()

    async def run(self) -> dict[str, Any]:
        """Take up the configuration as it is now; returns the answer of POST /reload.

        :raises ReloadRefused: if it is wrong, or the server is stopping; nothing has changed.
        """
        async with self._one:
            if self._view.draining:
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
        """Take up the tables that the patterns match in the catalog now."""
        async with self._one:
            self._found = found
            planned = plan(self._configured, self._config, self._configured, found)
            if self._view.draining or not (planned.added or planned.removed):
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
        """Have all parts take it up; returns what the change of tables waits for, if at all."""
        before, parts = self._config, self._parts
        other_patterns = patterns(self._configured) != patterns(planned.configured)
        self._configured, self._config = planned.configured, planned.config
        config = planned.config
        if self._discovery is not None:
            self._discovery.change(patterns(planned.configured))
        parts.clients.limit(
            config.max_clients, config.max_clients_per_identity, config.max_clients_per_client_id
        )
        # /status shows new tables as waiting at once, and removed ones no longer.
        self._view.change_config(config)
        listener = parts.children.options.listener
        connect = listener.connect
        serving = options.serving_options(
            config, listener.port, None if connect is None else connect.port
        )
        await parts.children.change(serving)
        self._change_http(config.http)
        parts.pruning.change(config)
        await asyncio.gather(parts.snapshots.change(config), parts.archives.change(config))
        # A session begins with a check of the tables that the patterns match.
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
