"""One session that writes to changing tables, and its transaction."""

from collections.abc import Iterable
from typing import Any

import psycopg

from tests.end_to_end.changing_table import ChangingTable
from tests.support.oracle import SESSION, Connection

_PATIENCE = "SET statement_timeout = '120s'"


class Session:
    """A connection and what its transaction has done so far."""

    def __init__(self, dsn: str, number: int, tables: list[ChangingTable]) -> None:
        self.tables = tables
        self.name = f"prepared_{number}"
        self.is_open = self.is_prepared = self.is_giant = False
        self.touched: dict[str, ChangingTable] = {}
        self.savepoints = 0
        self._dsn = dsn
        self.connection = self._connect()

    def _connect(self) -> Connection:
        connection = psycopg.connect(self._dsn, autocommit=True, options=SESSION)
        connection.execute(_PATIENCE)
        return connection

    def reconnect(self, dsn: str | None = None) -> None:
        """The database was restarted, or is elsewhere now: only what was prepared is left."""
        self.connection.close()
        self._dsn = dsn or self._dsn
        self.connection = self._connect()
        if not self.is_prepared:
            self.forget()

    def forget(self) -> None:
        """No transaction is under way."""
        self.is_open = self.is_prepared = self.is_giant = False
        self.touched = {}
        self.savepoints = 0

    def execute(self, statement: str, values: Iterable[Any] | None = None) -> Any:
        """Run it; in a transaction of its own, unless one was begun."""
        return self.connection.execute(statement.encode(), None if values is None else [*values])
