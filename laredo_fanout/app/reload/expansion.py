"""Patterns of tables in the configuration, replaced by the tables that they match."""

from __future__ import annotations

from collections.abc import Collection

import structlog

from laredo_fanout.config import Config, ReplicatedTableConfig
from laredo_fanout.store.writer import Store
from laredo_service.table_pattern import TableName, TablePattern

log = structlog.get_logger("laredo_fanout.reload")


def patterns(config: Config) -> list[TablePattern]:
    """The patterns among the configured tables."""
    return [table.pattern for table in config.tables if table.is_pattern]


def known(store: Store) -> frozenset[TableName]:
    """The tables of the store: they are followed before the catalog was read, and without it."""
    return frozenset(TableName(each.schema, each.name) for each in store.tables.values())


def expand(
    config: Config, found: Collection[TableName], followed: Collection[TableName] = ()
) -> Config:
    """The configuration with the tables that were ``found`` in place of its patterns.

    A table that is listed by name, or matched by an earlier pattern, isn't taken again. Beyond a
    pattern's ``max_tables`` those that are ``followed`` come first.
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
