"""Comparison of an archive with its table in PostgreSQL (docs/commit-protocol.md, Proof).

The table is measured at some moment between two positions. If the archive has the same state at a
boundary there, they are equal. If the archive knows that the table didn't change between the two,
they are equal or different. Else the comparison is undecided, for now or for good.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import psycopg
from psycopg import conninfo, sql

from laredo_archive.errors import DatabaseUnusable, NoSuchBoundary
from laredo_archive.manifest import merged
from laredo_archive.manifest.timeline import Boundary
from laredo_archive.reader import Archive
from laredo_model import position as positions
from laredo_model.checksum import StateChecksum
from laredo_model.column import TYPES_SQL, Column, TypeRow, base_of, type_infos
from laredo_model.position import History, Position
from laredo_model.value_sql import Selected, lines_sql, session_options, table_name

# Parses PostgreSQL's connection strings with libpq, and shows them without secrets.
#
# A password may be in several places, and in a mistyped string anywhere. So only parameters that
# name the database are shown, and never libpq's error for a string that it can't parse.
# https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING

_SHOWN = ("host", "hostaddr", "port", "dbname", "user")
_PORTS = re.compile(r"[0-9, ]*")

UNREADABLE = "not a PostgreSQL connection; write postgresql://user@host:5432/database"


def parsed(dsn: str) -> dict[str, Any]:
    """The parameters of a connection string or URI.

    :raises ValueError: if it is neither; the message contains no part of it.
    """
    try:
        parameters: dict[str, Any] = conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise ValueError(UNREADABLE) from None
    if not _PORTS.fullmatch(str(parameters.get("port") or "")):
        # A password with a slash: libpq would report a part of it as the port.
        raise ValueError(f"{UNREADABLE}; in a password write %2F for /, %40 for @, %3A for :")
    return parameters


def shown(dsn: str) -> str:
    """The parameters without a secret: host, database and user."""
    try:
        parameters = parsed(dsn)
    except ValueError:
        return "the connection string"
    given = {name: parameters[name] for name in _SHOWN if parameters.get(name)}
    return conninfo.make_conninfo("", **given) or "the default connection"


# Measures a table in PostgreSQL: row count and checksum, between two positions.
#
# The database computes both, by the SELECT that the copy reads rows with; no row is transferred.

Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 60
SPARE_S = 600
"""Seconds beyond the wait for the archive after which PostgreSQL ends an idle session with a lock:
the program may be frozen, or out of reach."""
_LONGEST_MS = 2**31 - 1
_TRANSACTION_TIMEOUT = 170000
_SETTINGS = {
    "row_security": "off",
    "default_transaction_read_only": "on",
    # The role's own limits are for an application's statements, not for sums of whole tables.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
}

_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

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

        :raises DatabaseUnusable: if it can't be reached, or fails later.
        """
        try:
            parameters = parsed(dsn)
        except ValueError as unreadable:
            raise DatabaseUnusable("--against", str(unreadable)) from None
        ours = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
        settings = f"{session_options()} {ours}"
        # Ours come last: of two settings of the same name the later one holds.
        given = parameters.get("options") or os.environ.get("PGOPTIONS", "")
        parameters["options"] = f"{given} {settings}".strip()
        parameters["connect_timeout"] = parameters.get("connect_timeout") or CONNECT_TIMEOUT_S
        parameters["application_name"] = "laredo-archive verify"
        for name, value in _KEEPALIVES.items():
            parameters.setdefault(name, value)
        try:
            with psycopg.connect(**parameters, autocommit=True) as connection:
                if connection.info.server_version >= _TRANSACTION_TIMEOUT:
                    connection.execute("SET transaction_timeout = 0")
                yield cls(connection)
        except psycopg.Error as failure:
            raise DatabaseUnusable(shown(dsn), _reason(failure)) from failure

    def history(self) -> History:
        """The history of the database's positions.

        :raises DatabaseUnusable: if it is a standby.
        """
        if self._one("SELECT pg_is_in_recovery()")[0]:
            raise DatabaseUnusable(
                self._connection.info.host, "the server is a standby; use the primary's DSN"
            )
        return History(*self._one(_HISTORY_SQL))

    def table(self, name: str, columns: Sequence[Column] | None) -> "ComparedTable":
        """The table ``schema.name``, with the archive's columns (None: all).

        :raises DatabaseUnusable: if there is no such table, or several are written like that.
        """
        found = self._connection.execute(_TABLE_SQL, (name,)).fetchall()
        location = f"{self._connection.info.host}/{self._connection.info.dbname}"
        if not found:
            raise DatabaseUnusable(
                location, f"the database has no table {name}; use the DSN of the archived database"
            )
        if len(found) > 1:
            each = " and ".join(sorted(table_name(schema, table) for _, schema, table, _ in found))
            raise DatabaseUnusable(
                location,
                f"{name} may be {each}, and the archive doesn't record which; rename the one that"
                " isn't archived",
            )
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
        """Measure the table in one snapshot, between two positions; locks nothing."""
        after = self._position()
        writers = self._connection.execute(_WRITERS_SQL, {"table": table.oid}).fetchall()
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            before = self._position()  # the first statement takes the snapshot
            rows, checksum = self._sums(table)
        return Measured(after, before, rows, checksum, tuple(pid for (pid,) in writers))

    @contextmanager
    def locked(self, table: "ComparedTable", idle_s: float) -> Iterator[Measured]:
        """Measure the table, and lock out writers for the block, for ``idle_s`` at most.

        :raises DatabaseUnusable: if the lock isn't granted within a minute.
        """
        with self._connection.transaction():
            self._connection.execute(
                sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT_S * 1000)
            )
            self._connection.execute(
                sql.SQL("SET LOCAL idle_in_transaction_session_timeout = {}").format(
                    int(min(_LONGEST_MS, idle_s * 1000))
                )
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
    """A table to compare. ``differing``: columns that it lacks, or has with another type."""

    oid: int
    sql_name: str
    lines_sql: str
    differing: tuple[str, ...]
    extra: tuple[str, ...]
    """Columns that the archive doesn't have; a publication's column list may leave some out."""


def _reason(failure: psycopg.Error) -> str:
    reason = str(failure).strip().replace("\n", " ")
    if isinstance(failure, psycopg.errors.InsufficientPrivilege):
        return f"{reason}; grant this role SELECT on the table, and BYPASSRLS if it hides rows"
    if isinstance(failure, psycopg.errors.LockNotAvailable):
        return f"{reason}: a transaction has been writing for {LOCK_TIMEOUT_S} s; try again later"
    return reason


POLL_S = 0.5


class Comparison(Enum):
    """Result of a comparison."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class ComparisonResult:
    """The outcome of a comparison, and its reason."""

    #: Equal, different or undecided.
    outcome: Comparison
    #: Why, as a sentence.
    reason: str


def compare(
    archive: Archive,
    dsn: str,
    *,
    lock: bool = False,
    wait_s: float = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> ComparisonResult:
    """Compare the table with its archive, which is read again for up to ``wait_s`` seconds.

    ``lock`` keeps writers out of the table meanwhile, so that the comparison is decided once the
    archive reaches the measured position.

    :raises DatabaseUnusable: if the database can't be queried, or is another one.
    :raises NoSuchBoundary: if the archive is empty.
    """
    head = archive.boundary()
    if head.last.state_checksum is None:
        raise NoSuchBoundary(
            archive.uri,
            "the artifacts have no state_checksum, so they can't be compared with a database",
        )
    with Database.connected(dsn) as database:
        history = database.history()
        foreign = _foreign(archive, history)
        if foreign is not None:
            return foreign
        table = database.table(archive.manifest.table, head.columns)
        if table.differing:
            names = ", ".join(table.differing)
            return ComparisonResult(
                Comparison.UNDECIDED,
                f"the table's columns aren't those of the archive's last epoch ({names}): the"
                " archive doesn't have a schema change yet; try again later",
            )
        progress(f"{archive.manifest.table}: PostgreSQL computes its rows and checksum")
        if not lock:
            measured = database.measure(table)
            verdict = _await(archive, measured, wait_s, progress, decide)
        else:
            with database.locked(table, wait_s + SPARE_S) as measured:
                verdict = _await(archive, measured, wait_s, progress, decide_locked)
        return _with_extra(verdict, table)


def _with_extra(verdict: ComparisonResult, table: ComparedTable) -> ComparisonResult:
    if not table.extra:
        return verdict
    names = ", ".join(table.extra)
    return ComparisonResult(
        verdict.outcome, f"{verdict.reason} (leaving out {names}, which the archive doesn't have)"
    )


def _foreign(archive: Archive, history: History) -> ComparisonResult | None:
    own = archive.boundary().history
    # A database doesn't know whether it was restored to an earlier state.
    if own is None or own._replace(restored=0) == history:
        return None
    if own._replace(timeline=history.timeline, restored=0) != history:
        raise DatabaseUnusable(
            "the database",
            f"its history is {history}, and the archive's is {own}: it is another database; use the"
            " DSN of the archived one",
        )
    return ComparisonResult(
        Comparison.UNDECIDED,
        f"the database is on timeline {history.timeline}, and the archive still on timeline"
        f" {own.timeline}; try again once the writer has followed",
    )


Decide = Callable[[Archive, Measured], ComparisonResult | None]


def _await(
    archive: Archive,
    measured: Measured,
    wait_s: float,
    progress: Callable[[str], None],
    decide_now: Decide,
) -> ComparisonResult:
    end = time.monotonic() + wait_s
    while True:
        archive = archive.refreshed()
        verdict = decide_now(archive, measured)
        if verdict is not None:
            return verdict
        seen = positions.text(_seen(archive))
        goal = positions.text(measured.before)
        left = end - time.monotonic()
        if left <= 0:
            return ComparisonResult(
                Comparison.UNDECIDED,
                f"the archive has seen the table up to {seen}, the database was at {goal}"
                f" ({_described(measured.rows, measured.checksum)}); check that the snapshotter is"
                " running, or wait longer with --wait",
            )
        progress(f"waiting for the archive to reach {goal}; it is at {seen}")
        time.sleep(min(POLL_S, left))


def decide(archive: Archive, measured: Measured) -> ComparisonResult | None:
    """The result for a table measured between two positions; None: undecided so far."""
    archive.unfold(merged.between(measured.after, measured.before))
    head = archive.boundary()
    known = _known(archive, measured)
    if known is not None:
        return _verdict(known, measured)
    for boundary in _near(archive, measured):
        if _same(boundary, measured):
            return ComparisonResult(Comparison.EQUAL, f"as the archive has it at {_text(boundary)}")
    if head.position >= measured.before:
        return ComparisonResult(
            Comparison.UNDECIDED,
            f"the table changed around {positions.text(measured.before)}, where no artifact ends;"
            " try again, or use --lock",
        )
    return None


def _known(archive: Archive, measured: Measured) -> Boundary | None:
    """The boundary whose state the table surely had during the whole measurement, or None."""
    head = archive.boundary()
    if head.position <= measured.after and _seen(archive) >= measured.before:
        return head
    moment = {measured.after, measured.before}
    exactly = [b for b in _of_history(archive) if {b.position} == moment]
    return exactly[-1] if exactly else None


def _verdict(known: Boundary, measured: Measured) -> ComparisonResult:
    if _same(known, measured):
        return ComparisonResult(Comparison.EQUAL, f"as the archive has it at {_text(known)}")
    if measured.writers:
        pids = ", ".join(map(str, measured.writers))
        return ComparisonResult(
            Comparison.UNDECIDED,
            f"transactions were writing to the table (pid {pids}). Their rows may not have been"
            " visible yet; try again, or use --lock",
        )
    return ComparisonResult(Comparison.DIFFERENT, _difference(known, measured))


def decide_locked(archive: Archive, measured: Measured) -> ComparisonResult | None:
    """The result for a table that wasn't written to since it was measured."""
    head = archive.boundary()
    if _same(head, measured) or _seen(archive) >= measured.before:
        return _verdict(head, measured)
    return None


def _of_history(archive: Archive) -> list[Boundary]:
    found = archive.boundaries
    return [boundary for boundary in found if found[-1].history in boundary.histories]


def _near(archive: Archive, measured: Measured) -> list[Boundary]:
    """The boundaries that the measured table may equal.

    They are those between the two positions, the last one before, and the first one after.
    """
    ordered = _of_history(archive)
    before = [boundary for boundary in ordered if boundary.position < measured.after]
    after = [boundary for boundary in ordered if boundary.position > measured.before]
    between = ordered[len(before) : len(ordered) - len(after)]
    return before[-1:] + between + after[:1]


def _seen(archive: Archive) -> Position:
    head = archive.boundary().position
    return max(head, archive.manifest.seen_position or head)


def _same(boundary: Boundary, measured: Measured) -> bool:
    last = boundary.last
    return (last.rows, last.state_checksum) == (measured.rows, measured.checksum)


def _difference(known: Boundary, measured: Measured) -> str:
    last = known.last
    return (
        f"the database has {_described(measured.rows, measured.checksum)} at"
        f" {positions.text(measured.before)}; the archive, at {known},"
        f" {_described(last.rows or 0, last.state_checksum or '')}"
    )


def _described(rows: int, checksum: str) -> str:
    return f"{rows} rows with the checksum {checksum}"


def _text(boundary: Boundary) -> str:
    return f"{boundary}, {_described(boundary.last.rows or 0, boundary.last.state_checksum or '')}"
