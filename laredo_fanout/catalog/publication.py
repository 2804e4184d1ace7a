"""The publication, which decides what tables the slot's stream carries: reads and changes it.

A table enters only after ``requirements.table_problem`` found nothing: without a
usable replica identity its membership alone makes the application's UPDATE and
DELETE fail. https://www.postgresql.org/docs/current/logical-replication-publication.html
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import structlog

from laredo_fanout.catalog import requirements
from laredo_fanout.errors import SourceUnfit, TableNotPublished
from laredo_fanout.postgres.errors import RightsMissing
from laredo_model.select import identifier

if TYPE_CHECKING:
    from laredo_fanout.catalog.table_definitions import SourceTable
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
"""The server's refusals of one statement: a lock, or another object since the catalog was read."""
_STATE = """
SELECT oid::int8, puballtables, pubinsert AND pubtruncate, pubupdate AND pubdelete,
    pubupdate OR pubdelete, pubviaroot
FROM pg_publication WHERE pubname = %s
"""


class Publication(NamedTuple):
    """A publication as the catalog has it."""

    name: str
    oid: int
    all_tables: bool
    additions: bool
    """Whether it publishes inserts and truncates."""
    changes: bool
    """Whether it publishes updates and deletes."""
    any_changes: bool
    via_root: bool
    """Whether a partition's changes come as the root's."""

    @property
    def identity(self) -> str:
        """Its name and oid: another one if it was dropped and made again."""
        return f"{self.name}:{self.oid}"

    def fits(self, options: PublicationOptions) -> bool:
        """Whether it publishes what it is for: every kind of change, or additions alone."""
        return self.additions and (not self.any_changes if options.append_only else self.changes)


def parameters(options: PublicationOptions) -> str:
    """The publication's parameters, as CREATE PUBLICATION takes them behind WITH."""
    kinds = "insert, truncate" if options.append_only else "insert, update, delete, truncate"
    return f"(publish = '{kinds}', publish_via_partition_root = true)"


def read(connection: Connection, name: str) -> Publication | None:
    """The publication of this name, if there is one."""
    row = connection.execute(_STATE, (name,)).fetchone()
    return None if row is None else Publication(name, *row)


def ensure(connection: Connection, options: PublicationOptions) -> Publication:
    """Read the publication; it is made (without tables) if it is missing and ``create`` is on.

    :raises RightsMissing: if it is missing and the role may not make it.
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
            raise SourceUnfit(f"publication {options.name} vanished as it was made")
    wrong = problem(found, options)
    if wrong is not None:
        raise SourceUnfit(f"publication {wrong[0]}: {wrong[1]}")
    return found


def problem(found: Publication, options: PublicationOptions) -> tuple[str, str] | None:
    """The problem of an existing publication, and the statement that cures it; None: it fits."""
    if found.fits(options):
        return None
    kinds = "inserts and truncates alone" if options.append_only else "every kind of change"
    return (
        f"{options.name} doesn't publish {kinds}",
        f"ALTER PUBLICATION {identifier(options.name)} SET {parameters(options)};",
    )


def add(connection: Connection, options: PublicationOptions, table: SourceTable) -> None:
    """Put ``table`` into the publication; it is there already if it ``published``.

    :raises TableNotPublished: if ``create`` is off, the role may not, or another one's lock on
        the table is in the way for now.
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
        raise requirements.vanished(table.qualified) from dropped
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
            f"it can't enter publication {options.name} now: {refused.diag.message_primary}",
            "it is tried again",
        ) from refused
    _log.info("table added to publication", table=table.qualified, publication=options.name)


def by_root_statement(options: PublicationOptions) -> str:
    """The statement that publishes partitions' changes as those of their root."""
    return f"ALTER PUBLICATION {identifier(options.name)} SET (publish_via_partition_root = true);"


def follow_roots(connection: Connection, options: PublicationOptions, table: SourceTable) -> None:
    """Publish partitions' changes as those of their root.

    :raises TableNotPublished: if ``create`` is off, or the role may not.
    """
    statement = by_root_statement(options)
    reason = f"publication {options.name} has its partitions' changes, not its own"
    if not options.create:
        raise TableNotPublished(table.qualified, reason, f"run {statement}")
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as denied:
        raise TableNotPublished(
            table.qualified, reason, f"let the publication's owner run {statement}"
        ) from denied
    except _REFUSALS as refused:
        why = f"{reason}, and that can't be altered now: {refused.diag.message_primary}"
        raise TableNotPublished(table.qualified, why, "it is tried again") from refused
    _log.warning("publication follows partitioned tables by their root", publication=options.name)


def remove(connection: Connection, options: PublicationOptions, table: SourceTable) -> bool:
    """Take ``table`` out again, if the publication is ours; returns whether it is out.

    For a table whose replica identity went: as long as it stays, the
    application's UPDATE and DELETE fail.
    """
    if not options.create:
        return False
    statement = f"ALTER PUBLICATION {identifier(options.name)} DROP TABLE ONLY {table.sql_name}"
    try:
        connection.execute(statement.encode())
    except (
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.LockNotAvailable,
        psycopg.errors.ObjectNotInPrerequisiteState,  # FOR ALL TABLES
    ) as denied:
        _log.error(
            "table can't be taken out of the publication; its UPDATE and DELETE fail",
            table=table.qualified,
            publication=options.name,
            error=str(denied),
            cure=f"let the owner run {statement};",
        )
        return False
    except (psycopg.errors.UndefinedObject, *_DROPPED):
        return True
    _log.warning(
        "table taken out of the publication", table=table.qualified, publication=options.name
    )
    return True


def create_statement(options: PublicationOptions, tables: Iterable[SourceTable]) -> str:
    """The statement by which an owner makes the publication with these tables."""
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
            f"role {role} may not make publication {name} ({denied.diag.message_primary}): let an"
            f" owner run CREATE PUBLICATION {identifier(name)} FOR TABLE ..."
            f" WITH {parameters(options)}; or"
            f" GRANT CREATE ON DATABASE {identifier(connection.info.dbname)}"
            f" TO {identifier(role)};"
        ) from denied
    except psycopg.errors.DuplicateObject:
        return
    _log.info("publication made", publication=name)
