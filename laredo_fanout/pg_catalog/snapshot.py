"""The catalog snapshot: the tables in PostgreSQL's catalog, and the locks on them.

Taking one also adds tables that may be replicated to the publication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

import psycopg

from laredo_fanout.errors import IdentityMissing, SourceUnfit, TableNotPublished, TableRefused
from laredo_fanout.pg_catalog import publication, requirements, silent_ddl, table_definitions
from laredo_fanout.pg_catalog.silent_ddl import DdlLocks
from laredo_fanout.postgres.connections import RightsMissing, SourceError
from laredo_fanout.slot import slot
from laredo_fanout.slot.slot import Slot

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.partitions import EmptyAttachments
    from laredo_fanout.pg_catalog.publication import Publication
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import SourceOptions, SourceTableOptions


class CatalogSnapshot(NamedTuple):
    """The result of one catalog check; its ``message`` follows in the stream."""

    number: int
    tables: Mapping[str, SourceTable]
    problems: Mapping[str, TableRefused]
    slot: Slot | None
    publication: str | None
    """The publication's identity; None if it is gone or doesn't publish every kind of change."""
    answers: int = 0
    """Number of the last CheckRequest before this check."""
    appends_may_stream: bool = False
    """True if a stream that begins here finds the publication of the append-only tables."""
    ddl_locks: DdlLocks = DdlLocks()
    """The locks of DDL that may not be visible yet."""
    message: str = ""
    """The content of the message that marks this check in the stream."""


def take(
    connection: Connection,
    options: SourceOptions,
    tables: Sequence[SourceTableOptions],
    number: int,
    attachments: EmptyAttachments | None = None,
) -> CatalogSnapshot:
    """Check the catalog, and add tables that may be replicated to the publication.

    :raises psycopg.Error: if the catalog can't be read.
    """
    state = slot.read(connection, options.slot_name)
    try:
        published = publication.ensure(connection, options.publication)
    except (SourceUnfit, RightsMissing) as missing:
        return CatalogSnapshot(number, {}, _publication_missing(tables, missing), state, None)
    appends, problems = _ensure_appends(connection, options, tables)
    # Before the tables are read, which the proof in silent_ddl.py requires.
    locks = silent_ddl.read(connection, options.publication)
    found = table_definitions.read_tables(connection, tables, options.publication)
    added, waits = False, LockWait(connection)
    with waits:
        for wanted in tables:
            table = found.get(wanted.qualified)
            problem = requirements.table_problem(wanted, table, connection.info.user)
            problem = problem or problems.get(wanted.qualified)
            if table is not None:
                try:
                    if problem is None and table.published is None:
                        chosen = (wanted.append_only and appends) or published
                        _publish(connection, options, chosen, table)
                        added = True
                    elif problem is not None and _harms(problem, table):
                        publication.remove(connection, options.publication, table)
                except TableRefused as refused:
                    problem = refused
                    waits.note(refused)
            if problem is not None:
                problems[wanted.qualified] = problem
    if added:
        found = table_definitions.read_tables(connection, tables, options.publication)
        problems |= _new_problems(found, tables, problems)
    found = with_attachments(connection, found, attachments)
    return CatalogSnapshot(number, found, problems, state, published.identity, ddl_locks=locks)


LOCK_TIMEOUT = "SET lock_timeout = '2s'"


class LockWait:
    """The wait for locks of one catalog check: for one table that is locked, not for each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_over = False

    def note(self, refused: TableRefused) -> None:
        """Don't wait for the tables after one that stayed locked; the next check tries again."""
        if not self._is_over and isinstance(refused.__cause__, psycopg.errors.LockNotAvailable):
            self._connection.execute("SET lock_timeout = '1ms'")
            self._is_over = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_over and not self._connection.closed:
            self._connection.execute(LOCK_TIMEOUT)


def _publish(
    connection: Connection, options: SourceOptions, published: Publication, table: SourceTable
) -> None:
    chosen = options.publication.appends if table.append_only else options.publication
    if table.partitioned and not published.via_root:
        publication.follow_roots(connection, chosen, table)
    publication.add(connection, chosen, table)


def _ensure_appends(
    connection: Connection, options: SourceOptions, tables: Sequence[SourceTableOptions]
) -> tuple[Publication | None, dict[str, TableRefused]]:
    """The publication of the append-only tables, if there are any, or the tables' errors."""
    appending = [table for table in tables if table.append_only]
    if not appending:
        return None, {}
    try:
        return publication.ensure(connection, options.publication.appends), {}
    except (SourceUnfit, RightsMissing) as missing:
        return None, _publication_missing(appending, missing)


def _publication_missing(
    tables: Sequence[SourceTableOptions], missing: SourceError
) -> dict[str, TableRefused]:
    """The tables' errors if the publication is gone or publishes too little."""
    return {
        wanted.qualified: TableNotPublished(
            wanted.qualified, str(missing).rstrip(";"), "then it is copied again"
        )
        for wanted in tables
    }


def with_attachments(
    connection: Connection, found: Mapping[str, SourceTable], attachments: EmptyAttachments | None
) -> dict[str, SourceTable]:
    """The tables, with a mark on partitions that were empty when they were attached."""
    if attachments is None:
        return dict(found)
    return {
        name: replace(table, partitions=attachments.with_attachments(connection, table.partitions))
        for name, table in found.items()
    }


def _harms(problem: TableRefused, table: SourceTable) -> bool:
    """True if the table's membership makes the application's UPDATE and DELETE fail."""
    member = table.changes_published if table.append_only else table.published is not None
    return member and isinstance(problem, IdentityMissing)


def _new_problems(
    found: Mapping[str, SourceTable],
    tables: Sequence[SourceTableOptions],
    known: Mapping[str, TableRefused],
) -> dict[str, TableRefused]:
    """The errors for tables that were dropped, renamed or locked while others were added."""
    new: dict[str, TableRefused] = {}
    for name in (wanted.qualified for wanted in tables if wanted.qualified not in known):
        table = found.get(name)
        if table is None or table.published is None:
            new[name] = publication.vanished(name)
        elif (locked := requirements.locked(table, name)) is not None:
            new[name] = locked
    return new
