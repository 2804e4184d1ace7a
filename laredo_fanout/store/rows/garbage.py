"""Removing what truncated and dropped tables left, in steps of bounded size."""

from typing import Any

from laredo_fanout.store import layout, meta
from laredo_fanout.store.disk import Reserve
from laredo_fanout.store.environment import Databases

_RECORD_WEIGHT = 100
_FREED_LIST_BYTES = 64


def any_left(transaction: Any, databases: Databases) -> bool:
    """True if there is something to remove."""
    cursor = transaction.cursor(db=databases.meta)
    return bool(cursor.set_range(meta.GARBAGE)) and cursor.key().startswith(meta.GARBAGE)


def remove_some(transaction: Any, databases: Databases, reserve: Reserve, limit: int) -> int:
    """Remove rows and journal records worth at most about ``limit`` rows; returns how many.

    :raises DiskFull: if there is no room even for that.
    """
    reserve(limit, limit * _FREED_LIST_BYTES)
    removed = 0
    cursor = transaction.cursor(db=databases.meta)
    found = cursor.set_range(meta.GARBAGE)
    while found and cursor.key().startswith(meta.GARBAGE) and removed < limit:
        key = cursor.key()
        if key.startswith(meta.GARBAGE_SPACE):
            databases_of: tuple[Any, ...]
            databases_of, weight = (databases.state, databases.marks), 1
        else:
            databases_of = (databases.positions, databases.olds, databases.journal)
            weight = _RECORD_WEIGHT
        prefix = key[-layout.PREFIX_BYTES :]
        for database in databases_of:
            most = max(1, (limit - removed) // weight)
            removed += weight * _delete_range(transaction, database, prefix, most)
        if removed >= limit:
            break
        found = cursor.delete() and bool(cursor.key())
    return removed


def _delete_range(transaction: Any, database: Any, prefix: bytes, most: int) -> int:
    cursor = transaction.cursor(db=database)
    found = cursor.set_range(prefix)
    deleted = 0
    while found and deleted < most and cursor.key().startswith(prefix):
        found = cursor.delete() and bool(cursor.key())
        deleted += 1
    return deleted
