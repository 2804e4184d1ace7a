"""The publication: the tables in the slot's stream, and the patterns that match them.

A table is added only if ``requirements.table_problem`` finds none: without a usable
replica identity its membership alone makes the application's UPDATE and DELETE
fail. https://www.postgresql.org/docs/current/logical-replication-publication.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import psycopg
import structlog

from laredo_fanout.errors import SourceUnfit, TableMissing, TableNotPublished, TableRefused
from laredo_fanout.postgres.connections import RightsMissing
from laredo_model.value_sql import identifier
from laredo_service.table_pattern import TableName, TablePattern, like

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import PublicationOptions

_log = structlog.get_logger()

_DROPPED = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
_REFUSALS = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.ProgrammingError,
    psycopg.DataError,
    psycopg.NotSupportedError,
)
"""Errors of a statement: a lock, or an object that has changed since the catalog was read."""
_STATE = """
SELECT oid::int8, pubinsert AND pubtruncate, pubupdate AND pubdelete, pubupdate OR pubdelete,
    pubviaroot
FROM pg_publication WHERE pubname = %s
"""


# Not the view pg_publication_tables: it locks every table of the publication, so a table that is
# being altered would block the check of all others.
_PUBLISHED = """
SELECT c.oid::int8, {columns}, {filtered}, coalesce(r.oid, 0)::int8, {by_schema}
FROM pg_publication b
JOIN pg_class c ON c.oid = ANY(%s)
LEFT JOIN pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = c.oid
CROSS JOIN LATERAL (SELECT {in_schema} AS in_schema) AS s
WHERE b.pubname = %s AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND (
    CASE WHEN c.relispartition AND EXISTS (
        SELECT FROM pg_partition_ancestors(c.oid) AS p(relid)
        JOIN pg_class a ON a.oid = p.relid
        WHERE a.oid <> c.oid AND (b.puballtables OR {ancestor_in_schema}
            OR EXISTS (SELECT FROM pg_publication_rel WHERE prpubid = b.oid AND prrelid = a.oid)))
    THEN NOT b.pubviaroot
    ELSE (c.relkind = 'r' OR b.pubviaroot)
        AND (b.puballtables OR s.in_schema OR r.oid IS NOT NULL) END)
"""

# pg_get_expr locks the table.
_ROW_FILTERS = """
SELECT r.prrelid::int8, pg_get_expr(r.prqual, r.prrelid)
FROM pg_publication_rel r JOIN pg_publication b ON b.oid = r.prpubid
WHERE b.pubname = %s AND r.prrelid = ANY(%s)
"""

# OWNER TO writes the publication's row and the owner's in pg_shdepend (none for a built-in role)
# in one command.
_ALTERED = """
SELECT p.xmin::text, p.pubowner::int8, p.cmin::text = '0' AND coalesce(
    (SELECT d.xmin = p.xmin AND d.cmin = p.cmin FROM pg_shdepend d
     WHERE d.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
         AND d.classid = 'pg_publication'::regclass AND d.objid = p.oid AND d.deptype = 'o'), true),
    {generated}
FROM pg_publication p WHERE pubname = %s
"""

_HIDDEN = """
SELECT c.oid::int8, max(format('%%s.%%s', n.nspname, a.relname))
FROM pg_publication b
JOIN pg_class c ON c.oid = ANY(%s) AND c.relispartition
CROSS JOIN LATERAL pg_partition_ancestors(c.oid) AS p(relid)
JOIN pg_class a ON a.oid = p.relid AND a.oid <> c.oid
JOIN pg_namespace n ON n.oid = a.relnamespace
JOIN pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = a.oid
WHERE b.pubname = %s AND b.pubviaroot
GROUP BY c.oid
"""

# Only SET SCHEMA writes the table's dependency on its schema.
_BY_SCHEMA = """coalesce((
    SELECT format('%%s:%%s', m.oid, d.xmin) FROM pg_publication_namespace m
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
        AND d.refclassid = 'pg_namespace'::regclass AND d.refobjid = m.pnnspid
    WHERE m.pnpubid = b.oid AND m.pnnspid = c.relnamespace), '')"""

_SCHEMA_PUBLISHED = (
    "EXISTS (SELECT FROM pg_publication_namespace"
    " WHERE pnpubid = b.oid AND pnnspid = {}.relnamespace)"
)

_COLUMNS_PUBLISHED = """(
    SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND CASE WHEN r.prattrs IS NULL OR b.puballtables OR s.in_schema
            THEN a.attgenerated = '' {or_generated} ELSE a.attnum = ANY(r.prattrs::int2[]) END)"""


class NamedTable(Protocol):
    """A table, by its name."""

    @property
    def qualified(self) -> str:
        """``schema.name``."""

    @property
    def sql_name(self) -> str:
        """The quoted name."""


class Publication(NamedTuple):
    """A publication in the catalog."""

    name: str
    oid: int
    additions: bool
    """True if it publishes INSERT and TRUNCATE."""
    changes: bool
    """True if it publishes UPDATE and DELETE."""
    any_changes: bool
    """True if it publishes UPDATE or DELETE."""
    via_root: bool
    """True if a partition's changes come as the root's."""

    @property
    def identity(self) -> str:
        """The name and oid, which differ if the publication was dropped and created again."""
        return f"{self.name}:{self.oid}"

    def fits(self, options: PublicationOptions) -> bool:
        """True if every kind of change is published, or INSERT alone for append-only tables."""
        return self.additions and (not self.any_changes if options.append_only else self.changes)


class Published(NamedTuple):
    """A table's entry in the publication; ``columns`` is None before PostgreSQL 15."""

    columns: tuple[str, ...] | None
    row_filter: str | None
    membership: int
    """Differs if the table was dropped from the publication and added again."""
    by_schema: str
    """Differs if the table left the schema, or the schema the publication, and came back."""
    filter_locked: bool = False
    """True if ``row_filter`` is unknown, because another session locks the table."""


class Membership(NamedTuple):
    """The entries of some tables in a publication, by oid."""

    tables: dict[int, Published]
    hidden: dict[int, str]
    altered: tuple[str | None, int | None, bool]
    """The last xid that wrote the publication, the owner, and True if that was OWNER TO."""
    generated: bool
    """True if tables without a column list are published with their stored generated columns."""


def membership(connection: Connection, name: str, oids: Sequence[int]) -> Membership:
    """Read the entries of these tables in a publication."""
    has_generated = connection.info.server_version >= 180000
    statement = _ALTERED.format(generated="pubgencols = 's'" if has_generated else "false")
    altered = connection.execute(statement.encode(), (name,)).fetchone()
    writer, owner, owner_alone, generated = altered or (None, None, False, False)
    return Membership(
        _read_published(connection, name, oids),
        dict(connection.execute(_HIDDEN, (oids, name)).fetchall()),
        (writer, owner, owner_alone),
        generated,
    )


def _read_published(
    connection: Connection, publication: str, oids: Sequence[int]
) -> dict[int, Published]:
    statement = _published_sql(connection.info.server_version)
    rows = connection.execute(statement.encode(), (oids, publication)).fetchall()
    filtered = [oid for oid, _, filtered, *_ in rows if filtered]
    filters = _read_row_filters(connection, publication, filtered)
    return {
        oid: Published(
            None if columns is None else tuple(columns),
            filters.get(oid),
            membership,
            by_schema,
            filter_locked=filtered and oid not in filters,
        )
        for oid, columns, filtered, membership, by_schema in rows
    }


def _read_row_filters(
    connection: Connection, publication: str, oids: Sequence[int]
) -> dict[int, str]:
    """The row filters by oid, without those of tables that another session locks."""

    def read(chosen: Sequence[int]) -> dict[int, str]:
        with connection.transaction():
            return dict(connection.execute(_ROW_FILTERS, (publication, chosen)).fetchall())

    if not oids:
        return {}
    try:
        return read(oids)
    except psycopg.errors.LockNotAvailable:
        connection.execute("SET LOCAL lock_timeout = '1ms'")  # one wait is enough
    filters: dict[int, str] = {}
    for oid in oids:
        with suppress(psycopg.errors.LockNotAvailable):
            filters |= read([oid])
    return filters


def _published_sql(version: int) -> str:
    """The query for some rows of pg_publication_tables: row filters, column lists and schemas came
    with version 15, generated columns with 18."""
    if version < 150000:
        return _PUBLISHED.format(
            columns="NULL",
            filtered="false",
            in_schema="false",
            ancestor_in_schema="false",
            by_schema="''",
        )
    generated = "OR (a.attgenerated = 's' AND b.pubgencols = 's')" if version >= 180000 else ""
    return _PUBLISHED.format(
        columns=_COLUMNS_PUBLISHED.format(or_generated=generated),
        filtered="r.prqual IS NOT NULL AND NOT (b.puballtables OR s.in_schema)",
        by_schema=_BY_SCHEMA,
        in_schema=_SCHEMA_PUBLISHED.format("c"),
        ancestor_in_schema=_SCHEMA_PUBLISHED.format("a"),
    )


def parameters(options: PublicationOptions) -> str:
    """The publication's parameters for CREATE PUBLICATION ... WITH."""
    kinds = "insert, truncate" if options.append_only else "insert, update, delete, truncate"
    return f"(publish = '{kinds}', publish_via_partition_root = true)"


def read(connection: Connection, name: str) -> Publication | None:
    """The publication of this name, if there is one."""
    row = connection.execute(_STATE, (name,)).fetchone()
    return None if row is None else Publication(name, *row)


def ensure(connection: Connection, options: PublicationOptions) -> Publication:
    """Read the publication, or create it (without tables) if it is missing and ``create`` is on.

    :raises RightsMissing: if it is missing and the role may not create it.
    :raises SourceUnfit: if it is missing and ``create`` is off, or if it doesn't publish every
        kind of change.
    """
    found = read(connection, options.name)
    if found is None:
        if not options.create:
            raise SourceUnfit(
                f"publication {options.name} doesn't exist and publication.create is off: run"
                f" CREATE PUBLICATION {identifier(options.name)} FOR TABLE ..."
                f" WITH {parameters(options)};"
            )
        _create(connection, options)
        found = read(connection, options.name)
        if found is None:
            raise SourceUnfit(f"publication {options.name} was dropped right after its creation")
    wrong = problem(found, options)
    if wrong is not None:
        raise SourceUnfit(f"publication {wrong[0]}: {wrong[1]}")
    return found


def problem(found: Publication, options: PublicationOptions) -> tuple[str, str] | None:
    """The problem of an existing publication, and the statement that cures it; None for none."""
    if found.fits(options):
        return None
    kinds = "inserts and truncates alone" if options.append_only else "every kind of change"
    return (
        f"{options.name} doesn't publish {kinds}",
        f"ALTER PUBLICATION {identifier(options.name)} SET {parameters(options)};",
    )


def vanished(name: str) -> TableRefused:
    """The error for a table that was dropped, or left the publication, during the check."""
    return TableMissing(
        name, "it was dropped or renamed during the catalog check", "the next check tries again"
    )


def add(connection: Connection, options: PublicationOptions, table: NamedTable) -> None:
    """Add ``table`` to the publication.

    :raises TableNotPublished: if ``create`` is off, the role may not, or another session's lock on
        the table prevents it for now.
    """
    statement = f"ALTER PUBLICATION {identifier(options.name)} ADD TABLE ONLY {table.sql_name};"
    if not options.create:
        raise TableNotPublished(
            table.qualified,
            f"it isn't in publication {options.name} and publication.create is off",
            f"run {statement}",
        )
    try:
        connection.execute(statement.encode())
    except psycopg.errors.DuplicateObject:
        return
    except _DROPPED as dropped:
        # After the catalog was read: the other tables go on.
        raise vanished(table.qualified) from dropped
    except psycopg.errors.InsufficientPrivilege as denied:
        raise TableNotPublished(
            table.qualified,
            f"it isn't in publication {options.name}, and the role may not add it"
            f" ({denied.diag.message_primary})",
            f"let the owner of publication and table run {statement}",
        ) from denied
    except _REFUSALS as refused:
        raise TableNotPublished(
            table.qualified,
            f"it can't be added to publication {options.name}: {refused.diag.message_primary}",
            "the next catalog check tries again",
        ) from refused
    _log.info("table added to publication", table=table.qualified, publication=options.name)


def by_root_statement(options: PublicationOptions) -> str:
    """The statement that publishes partitions' changes as those of their root."""
    return f"ALTER PUBLICATION {identifier(options.name)} SET (publish_via_partition_root = true);"


def follow_roots(connection: Connection, options: PublicationOptions, table: NamedTable) -> None:
    """Publish partitions' changes as those of their root.

    :raises TableNotPublished: if ``create`` is off, or the role may not.
    """
    statement = by_root_statement(options)
    reason = f"publication {options.name} publishes its partitions' changes, not its own"
    if not options.create:
        raise TableNotPublished(table.qualified, reason, f"run {statement}")
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as denied:
        raise TableNotPublished(
            table.qualified, reason, f"let the publication's owner run {statement}"
        ) from denied
    except _REFUSALS as refused:
        why = f"{reason}, and can't be altered: {refused.diag.message_primary}"
        cure = "the next catalog check tries again"
        raise TableNotPublished(table.qualified, why, cure) from refused
    _log.warning("publication altered: publish_via_partition_root set", publication=options.name)


def remove(connection: Connection, options: PublicationOptions, table: NamedTable) -> None:
    """Drop ``table`` from the publication if ``create`` is on; log an error if that is refused.

    Without a replica identity the application's UPDATE and DELETE fail as long as
    the table is published.
    """
    if not options.create:
        return
    statement = f"ALTER PUBLICATION {identifier(options.name)} DROP TABLE ONLY {table.sql_name}"
    try:
        connection.execute(statement.encode())
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.LockNotAvailable,
        psycopg.errors.ObjectNotInPrerequisiteState,  # FOR ALL TABLES
    ) as denied:
        _log.error(
            "table not dropped from publication; its UPDATE and DELETE fail",
            table=table.qualified,
            publication=options.name,
            error=str(denied),
            cure=f"let the owner run {statement};",
        )
    except (psycopg.errors.UndefinedObject, *_DROPPED):
        pass  # it isn't a member any more
    else:
        _log.warning(
            "table dropped from publication", table=table.qualified, publication=options.name
        )


def create_statement(options: PublicationOptions, tables: Iterable[NamedTable]) -> str:
    """The statement by which an owner creates the publication with these tables."""
    names = ", ".join(f"ONLY {table.sql_name}" for table in tables)
    chosen = f" FOR TABLE {names}" if names else ""
    return f"CREATE PUBLICATION {identifier(options.name)}{chosen} WITH {parameters(options)};"


def _create(connection: Connection, options: PublicationOptions) -> None:
    name = options.name
    statement = f"CREATE PUBLICATION {identifier(name)} WITH {parameters(options)}"
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as denied:
        role = connection.info.user
        raise RightsMissing(
            f"role {role} may not create publication {name} ({denied.diag.message_primary}): let an"
            f" owner run CREATE PUBLICATION {identifier(name)} FOR TABLE ..."
            f" WITH {parameters(options)}; or"
            f" GRANT CREATE ON DATABASE {identifier(connection.info.dbname)}"
            f" TO {identifier(role)};"
        ) from denied
    except psycopg.errors.DuplicateObject:
        return
    _log.info("publication created", publication=name)


# The tables in the catalog that the configured patterns match.

_SHOWN = 20
# Partitions are left out: their rows come as their root's.
_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
    AND n.nspname <> 'information_schema' AND NOT starts_with(n.nspname, 'pg_')
    AND EXISTS (
        SELECT FROM unnest(%s::text[], %s::text[]) AS pattern (of_schema, of_table)
        WHERE n.nspname LIKE of_schema AND c.relname LIKE of_table)
"""


class MatchedTables(NamedTuple):
    """The tables that some patterns match."""

    tables: frozenset[TableName]
    unnameable: frozenset[TableName]
    """Tables that can't be followed because their schema's name has a dot: the wire has
    ``schema.table``."""


def read_matching(connection: Connection, patterns: Sequence[TablePattern]) -> MatchedTables:
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
    return MatchedTables(fitting - unnameable, unnameable)


_NOTHING = MatchedTables(frozenset(), frozenset())


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

    A table counts as gone when two checks in a row don't show it: its rows are dropped then.
    """

    def __init__(
        self,
        patterns: Sequence[TablePattern],
        known: frozenset[TableName],
        interval: float,
        found: Callable[[frozenset[TableName]], None],
    ) -> None:
        """``found`` is called with all tables whenever they differ from ``known``, or from those of
        its last call."""
        self.interval = interval
        """Seconds between two calls of :meth:`check`."""
        self._patterns = tuple(patterns)
        self._known = known
        self._missing: frozenset[TableName] = frozenset()
        self._unnameable: frozenset[TableName] = frozenset()
        self._found = found

    def change(self, patterns: Sequence[TablePattern]) -> None:
        """Follow other patterns from the next check on; may be called from any thread."""
        self._patterns = tuple(patterns)

    def check(self, connection: Connection) -> None:
        """Check the catalog.

        :raises psycopg.Error: if it can't be read; nothing has changed then.
        """
        patterns = self._patterns
        now, unnameable = read_matching(connection, patterns) if patterns else _NOTHING
        if unnameable != self._unnameable:
            self._unnameable = unnameable
            _log_unnameable(unnameable)
        missing = self._known - now
        gone, self._missing = missing & self._missing, missing
        names = now | (missing - gone)
        if names != self._known:
            self._known = names
            self._found(names)
