"""The tables in the catalog that the configured patterns match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import structlog

from laredo_model.value_sql import identifier
from laredo_service.table_pattern import TableName, TablePattern, like

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

_log = structlog.get_logger()
_SHOWN = 20
# A partition's rows come as its root's.
_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
    AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname, 'pg_')
    AND EXISTS (
        SELECT FROM unnest(%s::text[], %s::text[]) AS pattern (of_schema, of_table)
        WHERE n.nspname LIKE of_schema AND c.relname LIKE of_table)
"""


class Discovered(NamedTuple):
    """The tables that some patterns match."""

    tables: frozenset[TableName]
    unnameable: frozenset[TableName]
    """Those that can't be followed: ``schema.table`` on the wire has one dot in front of the table,
    so a schema has none."""


def read(connection: Connection, patterns: Sequence[TablePattern]) -> Discovered:
    """The tables that any of the patterns matches.

    :raises psycopg.Error: if the catalog can't be read.
    """
    chosen = (
        [like(pattern.schema) for pattern in patterns],
        [like(pattern.table) for pattern in patterns],
    )
    found = {TableName(*row) for row in connection.execute(_TABLES, chosen).fetchall()}
    fitting = frozenset(name for pattern in patterns for name in pattern.of(found))
    unnameable = frozenset(name for name in fitting if "." in name.schema)
    return Discovered(fitting - unnameable, unnameable)


_NOTHING = Discovered(frozenset(), frozenset())


def unnameable_cure(names: Iterable[TableName]) -> str:
    """Advice for tables whose schema has a dot in its name."""
    schemas = sorted({name.schema for name in names})
    renamed = " ".join(f"ALTER SCHEMA {identifier(schema)} RENAME TO ...;" for schema in schemas)
    return f"exclude them, or {renamed}"


def _log_unnameable(names: frozenset[TableName]) -> None:
    if names:
        _log.warning(
            "tables left out: schema name with a dot",
            tables=[".".join(name) for name in sorted(names)[:_SHOWN]],
            number=len(names),
            cure=unnameable_cure(names),
        )


class TableDiscovery:
    """Follows the tables that patterns match, in the side connection's thread.

    A table is gone only when two checks in a row don't show it: what is gone loses its rows.
    """

    def __init__(
        self,
        patterns: Sequence[TablePattern],
        known: frozenset[TableName],
        interval: float,
        found: Callable[[frozenset[TableName]], None],
    ) -> None:
        """``found`` is called with all tables when they are others than the ``known`` ones, or
        than it was called with last."""
        self.interval = interval
        """Seconds between two calls of :meth:`check`."""
        self._patterns = tuple(patterns)
        self._known = known
        self._missing: frozenset[TableName] = frozenset()
        self._unnameable: frozenset[TableName] = frozenset()
        self._found = found

    def change(self, patterns: Sequence[TablePattern]) -> None:
        """Follow other patterns from the next check on; from any thread."""
        self._patterns = tuple(patterns)

    def check(self, connection: Connection) -> None:
        """Check the catalog.

        :raises psycopg.Error: if it can't be read; then all is as it was.
        """
        patterns = self._patterns
        now, unnameable = read(connection, patterns) if patterns else _NOTHING
        if unnameable != self._unnameable:
            self._unnameable = unnameable
            _log_unnameable(unnameable)
        missing = self._known - now
        gone, self._missing = missing & self._missing, missing
        names = now | (missing - gone)
        if names != self._known:
            self._known = names
            self._found(names)
