"""Transactions that may still commit rows which neither the stream nor a chunk would show.

A transaction that wrote to a table before the table's stream began holds a lock
on it until its commit is visible, even while it waits for a synchronous
standby. So the first chunk waits for all of them, as CREATE INDEX CONCURRENTLY
does. https://www.postgresql.org/docs/current/view-pg-locks.html
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

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
