"""Silent DDL, and the position up to which none can have changed a table's rows.

ALTER TYPE ... USING, ADD COLUMN ... DEFAULT, a renamed enum label, a partition attached with rows:
these leave no trace in the stream, only in the catalog. So an artifact of an archive, or a periodic
snapshot, may end at a position P only when a catalog check has shown that no unknown statement of
this kind committed at or before P.

A check reads, in this order: (a) the end of the WAL, R (pg_current_wal_insert_lsn), (b) the locks
and their holders (:func:`read`), (c) the catalog. Let such a statement's commit record end at or
before R. It was written before (a). PostgreSQL makes a commit visible after its record is written
(with synchronous_standby_names perhaps much later) and releases its locks after it is visible
(CommitTransaction, CommitTransactionPrepared). So at (b) either a process or a prepared transaction
still held the lock, which (b) shows; or the lock was released, and the statement is visible to (c),
which comes later. Hence a table that (c) shows unchanged since its incarnation began, and on which
(b) shows no such lock, is *verified up to R*. That is true even if the stream hasn't reached the
check's message yet: the transaction ids and files that are compared never come back. Only a
partitioned table, and one that is or may have been a partition, must wait for the message: rows may
have come and gone with a partition, or changes may have come as another table's, and the stream up
to the message shows that (partitions.py).

If (b) shows a lock, the table's verified position does not advance. More locks count than necessary
(any AccessExclusiveLock on the table, such as VACUUM FULL's): a late verification only delays, a
wrong one would be wrong for good.

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
# takes on plain tables only. ALTER TYPE of an enum locks the type. ALTER PUBLICATION holds no lock
# until its commit, but its xid is the xmax of the row that others still see.
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


class DdlLocks(NamedTuple):
    """The locks that a catalog check found before it read the catalog, and their holders."""

    reach: int = 0
    """R, the end of the WAL."""
    relations: Mapping[int, Collection[int]] = {}
    """Relations that DDL may be changing, with the holders' pids; 0 for a prepared transaction."""
    exclusive: frozenset[int] = frozenset()
    """The relations that are locked exclusively."""
    types: frozenset[int] = frozenset()
    """Pids of processes that may be changing a type."""
    publications: frozenset[int] = frozenset()
    """Pids of processes that may be changing our publications."""

    def of(self, table: SourceTable) -> frozenset[int]:
        """Pids of processes that may be changing this table's values by DDL."""
        held = set(self.publications)
        if table.version.types:
            held |= self.types
        for oid in (*table.oids, *table_definitions.relations_within(table.version)):
            held.update(self.relations.get(oid, ()))
        return frozenset(held)


def read(connection: Connection, publications: PublicationOptions) -> DdlLocks:
    """Read the WAL's end, then the locks; the catalog must be read afterwards."""
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
# such transactions, as CREATE INDEX CONCURRENTLY does.
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
    """The transactions of ``before`` that haven't ended, and every prepared one.

    PREPARE TRANSACTION changes a transaction's identity.
    """
    if not before:
        return frozenset()
    return frozenset(
        holder
        for holder in holders(connection, oids)
        if holder in before or holder.transaction.startswith(_PREPARED)
    )
