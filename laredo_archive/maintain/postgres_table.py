"""Measures a table in PostgreSQL: row count and checksum, between two positions.

The database computes both from its own rows, by the same SELECT that the copy
reads with; none of them comes here. It is only read from.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psycopg
from psycopg import sql

from laredo_archive.errors import DatabaseUnusable
from laredo_archive.maintain import connection_string
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum
from laredo_model.column import TYPES_SQL, Column, TypeRow, base_of, type_infos
from laredo_model.position import History, Position
from laredo_model.value_sql import Selected, lines_sql, session_options, table_name

Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 60
_TRANSACTION_TIMEOUT = 170000
_SETTINGS = {
    "row_security": "off",
    "default_transaction_read_only": "on",
    # The role's own limits are for an application's statements, not for the sum of a whole table.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}

_TABLE_SQL = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname || '.' || c.relname = %s AND c.relkind IN ('r', 'p')
"""
_COLUMNS_SQL = """
SELECT a.attname::text, a.atttypid::int8, a.attgenerated <> ''
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_HISTORY_SQL = """
SELECT s.system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))
    ::bit(32)::int8, d.oid::int8
FROM pg_control_system() s, pg_catalog.pg_database d WHERE d.datname = current_database()
"""
# A transaction that wrote to the table holds such a lock until its commit is visible.
_WRITERS_SQL = """
SELECT DISTINCT coalesce(l.pid, 0) FROM pg_catalog.pg_locks l
WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND l.relation IN (SELECT %(table)s::oid UNION
        SELECT relid FROM pg_catalog.pg_partition_tree(%(table)s::oid::regclass))
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock')
"""
_POSITION_SQL = "SELECT pg_current_wal_insert_lsn()::text"
# Four sums of 32 bits: PostgreSQL adds them as bigint and numeric, and 2^128 needs no type.
_SUMS_SQL = """
SELECT count(*), {parts}
FROM (SELECT md5(convert_to(line::text, 'UTF8')) AS digest FROM ({lines}) rows) digests
"""


@dataclass(frozen=True)
class Measured:
    """The table as one snapshot saw it, which is between two positions.

    ``writers``: the transactions that held a lock on it after ``after`` was read; one of
    them may have committed by then without being visible yet.
    """

    after: Position
    before: Position
    rows: int
    checksum: str
    writers: tuple[int, ...] = ()


class Database:
    """One connection to a primary, by the session settings that rows are read with."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def connected(cls, dsn: str) -> Iterator[Self]:
        """Connected to ``dsn`` while the context lasts.

        :raises DatabaseUnusable: if it can't be reached, or fails later on.
        """
        try:
            parameters = connection_string.parsed(dsn)
        except ValueError as unreadable:
            raise DatabaseUnusable("--against", str(unreadable)) from None
        ours = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        settings = f"{session_options()} {ours}"
        # Ours come last: of two settings of the same name the later one holds.
        parameters["options"] = f"{parameters.get('options') or ''} {settings}".strip()
        parameters["connect_timeout"] = parameters.get("connect_timeout") or CONNECT_TIMEOUT_S
        parameters["application_name"] = "laredo-archive verify"
        try:
            with psycopg.connect(**parameters, autocommit=True) as connection:
                if connection.info.server_version >= _TRANSACTION_TIMEOUT:
                    connection.execute("SET transaction_timeout = 0")
                yield cls(connection)
        except psycopg.Error as failure:
            raise DatabaseUnusable(connection_string.shown(dsn), _reason(failure)) from failure

    def history(self) -> History:
        """The history of its positions.

        :raises DatabaseUnusable: if it is a standby.
        """
        if self._one("SELECT pg_is_in_recovery()")[0]:
            raise DatabaseUnusable(
                self._connection.info.host, "it is a standby; give the primary's DSN"
            )
        return History(*self._one(_HISTORY_SQL))

    def table(self, name: str, columns: Sequence[Column] | None) -> "ComparedTable":
        """The table ``schema.name``, with the archive's columns (None: all).

        :raises DatabaseUnusable: if there is no such table, or it lacks a column.
        """
        found = self._connection.execute(_TABLE_SQL, (name,)).fetchall()
        location = f"{self._connection.info.host}/{self._connection.info.dbname}"
        if not found:
            raise DatabaseUnusable(location, f"it has no table {name}; is it the right database?")
        oid, schema, table, kind = found[0]
        rows = self._connection.execute(_COLUMNS_SQL, (oid,)).fetchall()
        type_rows = self._connection.execute(TYPES_SQL, ([type_oid for _, type_oid, _ in rows],))
        types = type_infos(TypeRow(*row) for row in type_rows.fetchall())
        everything = {column: types[type_oid] for column, type_oid, _ in rows}
        generated = {column for column, _, is_generated in rows if is_generated}
        wanted = {column.name: column.type for column in columns or ()} or {
            column: base_of(known).name
            for column, known in everything.items()
            if column not in generated
        }
        differing = [
            column
            for column, type_name in wanted.items()
            if column not in everything or base_of(everything[column]).name != type_name
        ]
        extra = tuple(sorted(everything.keys() - wanted.keys() - generated))
        selected = [
            Selected(column, everything[column]) for column in wanted if column in everything
        ]
        lines = lines_sql(schema, table, selected, only=kind != "p")
        return ComparedTable(oid, table_name(schema, table), lines, tuple(differing), extra)

    def measure(self, table: "ComparedTable") -> Measured:
        """Rows and checksum in one snapshot, between two positions; locks nothing."""
        after = self._position()
        writers = self._connection.execute(_WRITERS_SQL, {"table": table.oid}).fetchall()
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            before = self._position()  # the first statement takes the snapshot
            rows, checksum = self._sums(table)
        return Measured(after, before, rows, checksum, tuple(pid for (pid,) in writers))

    @contextmanager
    def locked(self, table: "ComparedTable") -> Iterator[Measured]:
        """Measure the table, and lock out writers for the block.

        :raises DatabaseUnusable: if the lock isn't to be had in a minute.
        """
        with self._connection.transaction():
            self._connection.execute(
                sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT_S * 1000)
            )
            self._connection.execute(f"LOCK TABLE {table.sql_name} IN SHARE MODE")
            position = self._position()
            rows, checksum = self._sums(table)
            yield Measured(position, position, rows, checksum)

    def _sums(self, table: "ComparedTable") -> tuple[int, str]:
        parts = ", ".join(
            f"coalesce(sum(('x' || substr(digest, {start}, 8))::bit(32)::int8), 0)"
            for start in (1, 9, 17, 25)
        )
        rows, *sums = self._one(_SUMS_SQL.format(parts=parts, lines=table.lines_sql))
        value = sum(int(part) << shift for part, shift in zip(sums, (96, 64, 32, 0), strict=True))
        return rows, StateChecksum(rows, value).hex()

    def _position(self) -> Position:
        return positions.parse(self._one(_POSITION_SQL)[0])

    def _one(self, query: str) -> tuple[Any, ...]:
        row = self._connection.execute(query).fetchone()
        return row or ()


@dataclass(frozen=True)
class ComparedTable:
    """A table as it is compared. ``differing``: columns that it lacks or that have another type."""

    oid: int
    sql_name: str
    lines_sql: str
    differing: tuple[str, ...]
    extra: tuple[str, ...]
    """Columns that the archive doesn't have; a publication's column list may leave some out."""


def _reason(failure: psycopg.Error) -> str:
    reason = str(failure).strip().replace("\n", " ")
    if isinstance(failure, psycopg.errors.InsufficientPrivilege):
        return f"{reason}; let this role SELECT the whole table (and not be hidden rows)"
    if isinstance(failure, psycopg.errors.LockNotAvailable):
        return f"{reason}: some transaction has been writing for {LOCK_TIMEOUT_S} s; try later"
    return reason
