"""Silent DDL: the position up to which none can have changed a table's rows.

ALTER TYPE ... USING, ADD COLUMN ... DEFAULT, an enum's label renamed, a partition attached with
rows: they leave no trace in the stream, only in the catalog. So what is kept of a table (an
artifact of an archive, a periodic snapshot) may end at a position P only when a catalog check has
shown that no such statement, committed at or before P, is unknown.

A check reads, in this order: (a) the position up to which WAL was given out, R
(pg_current_wal_insert_lsn), (b) the locks and their holders (:func:`read`), (c) the catalog.
Let such a statement's commit record end at or before R. It was written before (a). PostgreSQL
makes a commit visible after its record is written (with synchronous_standby_names perhaps much
later) and lets its locks go after it is visible (CommitTransaction, CommitTransactionPrepared). So
at (b) either the lock was still held, by a process or by a prepared transaction, and it is seen
there; or the lock was gone, and with it the statement is visible to (c), which comes later. Hence
a table that (c) shows as it has been since its incarnation began, and on which (b) shows no such
lock, is *verified up to R*. That holds also for a check whose message the stream hasn't
reached yet: the transaction ids and files that it compares never come back. Only a partitioned
table has to wait for the message, and one that is or may have been a partition meanwhile: rows may
have come and gone with a partition, or changes have come as another table's, and what the stream
brings until there shows it (partitions.py).

Where (b) has seen a lock, the table's verified position does not advance. More locks count than
need to (any AccessExclusiveLock on the table, as VACUUM FULL takes one): what is verified too
late waits, what is verified wrongly would be wrong for good.

https://www.postgresql.org/docs/current/view-pg-locks.html
https://www.postgresql.org/docs/current/explicit-locking.html
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from laredo_fanout.pg_catalog import table_definitions

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.table_definitions import SourceTable
    from laredo_fanout.postgres.connections import Connection
    from laredo_fanout.source_options import PublicationOptions

_REACH = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8"

# ATTACH and DETACH lock the partitioned table with ShareUpdateExclusiveLock, which autovacuum
# takes on plain tables only. ALTER TYPE of an enum locks the type. ALTER PUBLICATION locks
# nothing for long, but what writes a row leaves its transaction in the row that others still see.
_LOCKS = """
SELECT 'relation', l.relation::int8, coalesce(l.pid, 0), l.mode = 'AccessExclusiveLock'
FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
WHERE l.locktype = 'relation' AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (l.mode = 'AccessExclusiveLock' OR c.relkind = 'p' AND l.mode IN (
        'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock'))
UNION ALL
SELECT 'type', 0, coalesce(l.pid, 0), true FROM pg_locks l
WHERE l.locktype = 'object' AND l.classid = 'pg_type'::regclass AND l.granted
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('ExclusiveLock', 'AccessExclusiveLock')
UNION ALL
SELECT 'publication', 0, coalesce(l.pid, 0), true FROM pg_locks l
JOIN (
    SELECT xmax FROM pg_publication WHERE pubname = ANY(%s)
    UNION ALL SELECT r.xmax FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = ANY(%s){schemas}) AS written(xmax)
    ON written.xmax = l.transactionid
WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
"""

_SCHEMAS = """
    UNION ALL SELECT n.xmax FROM pg_publication_namespace n
    JOIN pg_publication p ON p.oid = n.pnpubid AND p.pubname = ANY(%s)"""
"""Since version 15."""

PREPARED = 0
"""Placeholder for the process id of a prepared transaction, which has none."""


class DdlLocks(NamedTuple):
    """The locks that a catalog check found before it read the catalog, and who holds them."""

    reach: int = 0
    """R: the position up to which WAL was given out."""
    relations: Mapping[int, Collection[int]] = {}
    """Relations that may be being changed, with the holders' pids, PREPARED among them."""
    exclusive: frozenset[int] = frozenset()
    """Those of them that are locked exclusively."""
    types: frozenset[int] = frozenset()
    """The pids that may be changing any type."""
    publications: frozenset[int] = frozenset()
    """The pids that may be changing our publications."""

    def of(self, table: SourceTable) -> frozenset[int]:
        """The pids that may be changing this table's values by DDL."""
        held = set(self.publications)
        if table.version.types:
            held |= self.types
        for oid in (*table.oids, *table_definitions.relations_within(table.version)):
            held.update(self.relations.get(oid, ()))
        return frozenset(held)


def read(connection: Connection, publications: PublicationOptions) -> DdlLocks:
    """Read the WAL position, then the locks; the catalog must be read after it."""
    reached = connection.execute(_REACH).fetchone()
    assert reached is not None
    names = [publications.name, publications.appends.name]
    relations: dict[int, set[int]] = {}
    exclusive = set()
    others: dict[str, set[int]] = {"type": set(), "publication": set()}
    schemas = connection.info.server_version >= 150000
    statement = _LOCKS.format(schemas=_SCHEMAS if schemas else "").encode()
    named = [names] * statement.count(b"%s")
    for kind, oid, pid, against_all in connection.execute(statement, named).fetchall():
        if kind == "relation":
            relations.setdefault(oid, set()).add(pid)
            if against_all:
                exclusive.add(oid)
        else:
            others[kind].add(pid)
    return DdlLocks(
        reached[0],
        relations,
        frozenset(exclusive),
        frozenset(others["type"]),
        frozenset(others["publication"]),
    )


# Transactions that may still commit rows which neither the stream nor a chunk would show.
#
# A transaction that wrote to a table before the table's stream began holds a lock on it until its
# commit is visible, even while it waits for a synchronous standby. So the first chunk waits for all
# of them, as CREATE INDEX CONCURRENTLY does.
# https://www.postgresql.org/docs/current/view-pg-locks.html

_HOLDERS = """
SELECT DISTINCT l.virtualtransaction::text, coalesce(l.pid, 0)
FROM pg_locks l
WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY(%s::oid[])
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock')
"""

_PREPARED = "-1/"


class Holder(NamedTuple):
    """A transaction that holds a lock; ``pid`` is 0 for a prepared one."""

    transaction: str
    pid: int


def holders(connection: Connection, oids: Sequence[int]) -> frozenset[Holder]:
    """The transactions that hold a lock for writing on any of these tables."""
    rows = connection.execute(_HOLDERS, (list(oids),)).fetchall()
    return frozenset(Holder(*row) for row in rows)


def still_holding(
    connection: Connection, oids: Sequence[int], before: Collection[Holder]
) -> frozenset[Holder]:
    """Those of ``before`` that haven't ended; transactions that began later don't matter.

    PREPARE TRANSACTION gives a transaction another identity, so every prepared
    one is waited for.
    """
    if not before:
        return frozenset()
    return frozenset(
        holder
        for holder in holders(connection, oids)
        if holder in before or holder.transaction.startswith(_PREPARED)
    )
