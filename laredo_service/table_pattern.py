"""A pattern of tables' names: ``*`` matches any characters, everything else itself."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

STAR = "*"


class TableName(NamedTuple):
    """A table, as PostgreSQL calls it."""

    schema: str
    table: str


@dataclass(frozen=True)
class TablePattern:
    """Patterns of schema and table, and of tables to exclude.

    ``exclude`` has patterns of ``schema.table``; without a dot they match that table in any schema.
    """

    schema: str
    table: str
    exclude: tuple[str, ...] = ()

    def matches(self, name: TableName) -> bool:
        """True if the pattern matches this table."""
        if not (_fits(self.schema, name.schema) and _fits(self.table, name.table)):
            return False
        return not any(_leaves_out(pattern, name) for pattern in self.exclude)

    def of(self, names: Iterable[TableName]) -> Iterator[TableName]:
        """The tables that it matches."""
        return filter(self.matches, names)


def like(pattern: str) -> str:
    """The pattern as LIKE takes it in SQL."""
    escaped = re.sub(r"([\\%_])", r"\\\1", pattern)
    return escaped.replace(STAR, "%")


def _leaves_out(pattern: str, name: TableName) -> bool:
    schema, dot, table = pattern.partition(".")
    if not dot:
        return _fits(pattern, name.table)
    return _fits(schema, name.schema) and _fits(table, name.table)


def _fits(pattern: str, name: str) -> bool:
    parts = map(re.escape, pattern.split(STAR))
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None
