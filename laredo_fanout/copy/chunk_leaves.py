"""Which partitions a chunk of a copy may have read: a row in front of theirs names them.

A filled table that is attached and detached again between two catalog snapshots, with no change
through the root, is in neither the stream nor the catalog; a chunk that reads the root in between
brings its rows. So each chunk names the leaves that it may read, in front of its rows, and those
that the copy's catalog snapshot doesn't have are kept with the table's record like leaves that
brought rows in the stream (leaves.py), no later than the chunk's first row. A chunk that is cut
off leaves rows, too: what it may have read must not be known at its end only.

The plan is made, and has locked each partition that it reads, before pg_partition_tree is called:
DETACH and DROP need AccessExclusiveLock on a partition before it leaves pg_inherits, so none of
them can be missing. pg_partition_tree reads pg_inherits as it is then, not as the transaction's
snapshot has it: one that is attached after the snapshot was taken and before the SELECT is planned
is there. DETACH CONCURRENTLY hides a partition from both alike, by the snapshot of the SELECT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson

from laredo_fanout.catalog import leaves

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from laredo_fanout.catalog.table_definitions import SourceTable
    from laredo_fanout.store.transaction import Transaction


class ChunkLeaves(NamedTuple):
    """The leaf partitions that a chunk may read."""

    position: int
    """A WAL position that was reached when it began to read."""
    leaves: Sequence[int]
    """Their oids."""


_FRONT = b"\0\2\xff\xff\xff\xff"
"""Of the row that names them, in COPY's binary format: two fields, and the first of them, the key,
is NULL. No row of a table has such a key."""
_LENGTH_BYTES = 4


def with_leaves(table: SourceTable, rows: str) -> str:
    """The SELECT ``rows`` of key and line, behind the row that names its leaves.

    Rows of a UNION ALL come in its order, unless workers share it: a CTE keeps them out. OFFSET
    lets them share the second half.
    """
    return (
        "WITH tree AS MATERIALIZED (SELECT json_build_array("
        "(pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8,"
        " coalesce(json_agg(relid::oid::int8), '[]'::json)) AS leaves"
        f" FROM pg_partition_tree({table.oid}::oid::regclass) WHERE isleaf)"
        f" SELECT NULL::text AS key, leaves AS line FROM tree UNION ALL ({rows} OFFSET 0)"
    )


def parse(row: bytes) -> ChunkLeaves | None:
    """The leaves that this row of COPY's binary format names; None: it is a row of the table."""
    if not row.startswith(_FRONT):
        return None
    position, oids = orjson.loads(row[len(_FRONT) + _LENGTH_BYTES :])
    return ChunkLeaves(position, oids)


def keep(found: ChunkLeaves, known: Set[int], table_id: int, transaction: Transaction) -> None:
    """Keep with the table's record those leaves that the copy's catalog snapshot doesn't have
    (``known`` are those that it has), until a later one accounts for them."""
    new = [leaves.read_by_a_chunk(oid, found.position) for oid in found.leaves if oid not in known]
    if new:
        record = transaction.tables[table_id]
        transaction.set_leaves(record.id, leaves.merged(record.leaves, new))
