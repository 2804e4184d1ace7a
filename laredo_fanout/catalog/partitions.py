"""The partitions of a table that is published through its root, and the DDL that moves their rows.

ATTACH, DETACH and DROP of a partition, and TRUNCATE of one alone, change the root's rows without
a change in the stream (publish_via_partition_root). A partition that was made as one, or was
empty when it was attached, brought no rows. What comes and goes between two catalog snapshots
is known by what it brought: see leaves.py.
https://www.postgresql.org/docs/current/ddl-partitioning.html
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import psycopg

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection


class StoredPartition(NamedTuple):
    """A partition as the store's table record keeps it."""

    oid: int
    attached: str
    """The transaction that attached it."""
    file: int
    detaching: bool
    """True if DETACH CONCURRENTLY has begun; the partition's rows are no longer the root's."""


class Partition(NamedTuple):
    """A partition below a root, at any depth."""

    known: StoredPartition
    name: str
    """Quoted."""
    kind: str
    persistence: str
    replica_identity: str
    identity: frozenset[str]
    """The columns that the stream has of a row that is updated or deleted."""
    made_in_place: bool
    """It was made as a partition, not attached."""
    made_by: int
    """The transaction, or subtransaction, that made it: 32 bits."""
    came_empty: bool = False

    @property
    def holds_rows(self) -> bool:
        """True if it isn't itself partitioned."""
        return self.kind != "p"


# ATTACH rewrites every row in pg_attribute (attislocal); the system columns' rows stay as they
# were made. Not pg_partition_tree: it locks every partition.
_PARTITIONS = """
WITH RECURSIVE below(root, relation, attached, detaching) AS (
    SELECT i.inhparent, i.inhrelid, i.xmin::text, i.inhdetachpending FROM pg_inherits i
    JOIN pg_class r ON r.oid = i.inhparent
    WHERE i.inhparent = ANY(%s) AND r.relkind = 'p'
    UNION ALL
    SELECT below.root, i.inhrelid, i.xmin::text, i.inhdetachpending OR below.detaching FROM below
    JOIN pg_class r ON r.oid = below.relation AND r.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = below.relation
)
SELECT below.root::int8, c.oid::int8, below.attached, c.relfilenode::int8, below.detaching,
    format('%%I.%%I', n.nspname, c.relname), c.relkind::text, c.relpersistence::text,
    c.relreplident::text,
    (SELECT array_agg(a.attname::text) FROM pg_attribute a
     LEFT JOIN pg_index x ON x.indrelid = c.oid AND x.indimmediate AND x.indisvalid
         AND CASE c.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident END
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         AND (c.relreplident = 'f' OR a.attnum = ANY(x.indkey::int2[]))),
    EXISTS (
        SELECT FROM pg_attribute u
        JOIN pg_attribute s ON s.attrelid = u.attrelid AND s.attnum = -1
        WHERE u.attrelid = c.oid AND u.attnum > 0 AND u.xmin = s.xmin AND u.cmin = s.cmin),
    coalesce((SELECT xmin::text::int8 FROM pg_attribute WHERE attrelid = c.oid AND attnum = -1), 0)
FROM below JOIN pg_class c ON c.oid = below.relation JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY c.oid
"""


def read(connection: Connection, roots: Sequence[int]) -> dict[int, tuple[Partition, ...]]:
    """All partitions of these tables, by their root's oid."""
    found: dict[int, list[Partition]] = {}
    for root, oid, attached, file, detaching, *rest in connection.execute(
        _PARTITIONS, (list(roots),)
    ).fetchall():
        name, kind, persistence, replica_identity, identity, in_place, made_by = rest
        found.setdefault(root, []).append(
            Partition(
                StoredPartition(oid, attached, file, detaching),
                name,
                kind,
                persistence,
                replica_identity,
                frozenset(identity or ()),
                in_place,
                made_by,
            )
        )
    return {root: tuple(partitions) for root, partitions in found.items()}


def moved(before: Iterable[StoredPartition], now: Iterable[Partition]) -> str | None:
    """Reason why rows may have come or gone with partitions since ``before``, or None.

    A new file may be VACUUM FULL's, CLUSTER's or that of a TRUNCATE of the root, which the stream
    shows; but any of them may hide a TRUNCATE of the partition alone.
    """
    known = {each.oid: each for each in before}
    present = {each.known.oid: each for each in now}
    for oid, seen in known.items():
        there = present.get(oid)
        if there is None:
            return "a partition was detached or dropped"
        if there.known.file != seen.file:
            return f"partition {there.name} was truncated, or rewritten"
        if there.known != seen:
            return f"partition {there.name} was detached"
    new = [each for oid, each in present.items() if oid not in known]
    with_theirs = any(not each.holds_rows and not each.made_in_place for each in new)
    for each in new:
        in_place = each.made_in_place and not with_theirs
        if each.holds_rows and not each.came_empty and not in_place:
            return f"partition {each.name} was attached with its rows"
    return None


class EmptyAttachments:
    """Remembers which attached partitions were empty when they were first seen."""

    def __init__(self) -> None:
        self._empty: dict[tuple[int, str], bool] = {}

    def with_attachments(
        self, connection: Connection, partitions: Sequence[Partition]
    ) -> tuple[Partition, ...]:
        """These partitions, which were just read, with ``came_empty`` filled in.

        A file without a page never had a row, so there was none at the ATTACH.

        :raises psycopg.Error: if the connection is cut.
        """
        if all(each.made_in_place for each in partitions):
            return tuple(partitions)
        new = [each.known for each in partitions if each.known[:2] not in self._empty]
        self._empty |= self._measured_empty(connection, new)
        return tuple(
            each._replace(came_empty=self._empty.get(each.known[:2], False)) for each in partitions
        )

    def _measured_empty(
        self, connection: Connection, new: Sequence[StoredPartition]
    ) -> dict[tuple[int, str], bool]:
        if not new:
            return {}
        try:
            rows = connection.execute(
                "SELECT oid::int8, pg_relation_size(oid) FROM unnest(%s::oid[]) AS t(oid)",
                ([each.oid for each in new],),
            ).fetchall()
        except psycopg.errors.LockNotAvailable:
            # One is being altered; taking them for filled costs a copy at most.
            return {}
        sizes = dict(rows)
        return {each[:2]: sizes.get(each.oid) == 0 for each in new}
