"""The tables in the catalog that the configured patterns stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laredo_model.settings.table_pattern import TableName, TablePattern, like

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

# A partition's rows come as its root's; a table whose schema has a dot can't be served.
_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
    AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname, 'pg_')
    AND strpos(n.nspname, '.') = 0
    AND EXISTS (
        SELECT FROM unnest(%s::text[], %s::text[]) AS pattern (of_schema, of_table)
        WHERE n.nspname LIKE of_schema AND c.relname LIKE of_table)
"""


def read(connection: Connection, patterns: Sequence[TablePattern]) -> frozenset[TableName]:
    """The tables that any of the patterns stands for.

    :raises psycopg.Error: if the catalog can't be read.
    """
    chosen = (
        [like(pattern.schema) for pattern in patterns],
        [like(pattern.table) for pattern in patterns],
    )
    found = {TableName(*row) for row in connection.execute(_TABLES, chosen).fetchall()}
    return frozenset(name for pattern in patterns for name in pattern.of(found))


class TableDiscovery:
    """Follows the tables that patterns stand for, in the side connection's thread.

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
        self._found = found

    def change(self, patterns: Sequence[TablePattern]) -> None:
        """Follow other patterns from the next check on; from any thread."""
        self._patterns = tuple(patterns)

    def check(self, connection: Connection) -> None:
        """Check the catalog.

        :raises psycopg.Error: if it can't be read; then all is as it was.
        """
        patterns = self._patterns
        now = read(connection, patterns) if patterns else frozenset()
        missing = self._known - now
        gone, self._missing = missing & self._missing, missing
        names = now | (missing - gone)
        if names != self._known:
            self._known = names
            self._found(names)
