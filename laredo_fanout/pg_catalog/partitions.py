"""Partitions of a table that is published through its root, and those that *brought rows*.

The publication publishes a partition's changes as its root's (publish_via_partition_root). But
before a partition's first change in a session, and after each statement that invalidates the
server's cache of it, pgoutput sends the Relation message of the root, right after it that of the
partition (maybe_send_schema), then the row. So the stream shows which partitions bring rows.

If a partition existed when the table was last reconciled with the catalog, a comparison with the
catalog finds later DDL (:func:`moved`). Any other partition that brought rows is kept with the
table's record, in the store transaction of those rows, until a catalog snapshot accounts for it:
the partition exists, with all its rows. If it is gone, or may have lost rows, the table is repaired
(partition_repair.py). The same applies to partitions that only a chunk of a copy has read
(copy/range_reader.py).

A followed table may itself be a partition of another root for a while. Then its changes come as
that root's, and the table lacks them. The stream shows that too: it announces the table, or a
partition of it, after another root. The table's record keeps that as a leaf with the table's oid.
The table is refused while a snapshot shows it as a partition, and repaired when a snapshot shows
that it is none any more. The stream doesn't show a TRUNCATE of it: the new file does.

So a catalog snapshot verifies a partitioned table only when the stream has passed its message: then
every partition that brought rows before the message has been announced. Before that, a partition
that came and went with rows may still be announced. A snapshot doesn't verify the table either if
it lacks a partition that brought rows after the snapshot's position: other rows may have come with
that partition before. A table that is a partition of an unpublished one, or whose attributes were
written, must wait for the message too: ATTACH and DETACH write all attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from laredo_fanout.store.table import Leaf

if TYPE_CHECKING:
    from laredo_fanout.postgres.connections import Connection

# The partitions of a table that is published through its root, and the DDL that moves their rows.
#
# ATTACH, DETACH and DROP of a partition, and TRUNCATE of one alone, change the root's rows without
# a change in the stream (publish_via_partition_root). A partition that was created as one, or was
# empty when it was attached, brought no rows. A partition that comes and goes between two catalog
# snapshots is known by the rows that it brought: see AnnouncedLeaves.
# https://www.postgresql.org/docs/current/ddl-partitioning.html


class StoredPartition(NamedTuple):
    """A partition in the store's table record."""

    oid: int
    attached: str
    """The transaction that attached the partition."""
    file: int
    detaching: bool
    """True if DETACH CONCURRENTLY has begun; the partition's rows are no longer the root's."""


class Partition(NamedTuple):
    """A partition below a root, at any depth."""

    known: StoredPartition
    name: str
    """The quoted name, with the schema."""
    kind: str
    persistence: str
    replica_identity: str
    identity: frozenset[str]
    """The columns that the stream sends of a row that is updated or deleted."""
    made_in_place: bool
    """True if the partition was created as one, not attached."""
    made_by: int
    """32-bit xid of the transaction, or subtransaction, that created the partition."""
    came_empty: bool = False

    @property
    def holds_rows(self) -> bool:
        """True if it isn't itself partitioned."""
        return self.kind != "p"


# ATTACH rewrites every row in pg_attribute (attislocal), but those of the system columns.
# pg_partition_tree isn't used, because it locks every partition.
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

    A new file may come from VACUUM FULL, CLUSTER or a TRUNCATE of the root, which the stream shows;
    but it may also come from a TRUNCATE of the partition alone.
    """
    known = {each.oid: each for each in before}
    present = {each.known.oid: each for each in now}
    for oid, seen in known.items():
        there = present.get(oid)
        if there is None:
            return "a partition was detached or dropped"
        if there.known.file != seen.file:
            return f"partition {there.name} was truncated or rewritten"
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
    """Memory of the attached partitions that had never had a row when they were first seen."""

    def __init__(self) -> None:
        self._empty: dict[tuple[int, str], bool] = {}

    def with_attachments(
        self, connection: Connection, partitions: Sequence[Partition]
    ) -> tuple[Partition, ...]:
        """The partitions, which were just read, with ``came_empty`` filled in.

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
            without_a_page = connection.execute(_WITHOUT_A_PAGE, ([each.oid for each in new],))
            candidates = [oid for (oid,) in without_a_page.fetchall()]
        except psycopg.errors.LockNotAvailable:
            # One is being altered; if they count as filled, that costs at most a repair.
            return {}
        under_vacuum = connection.execute(_UNDER_VACUUM, (candidates,)).fetchall()
        files = dict(connection.execute(_NEVER_VACUUMED, (candidates,)).fetchall())
        for (oid,) in under_vacuum:
            files.pop(oid, None)
        return {each[:2]: files.get(each.oid) == each.file for each in new}


# A file without a page has never had a row, unless VACUUM truncated it, which sets reltuples. Or a
# TRUNCATE created the file after the snapshot. So the size is measured first, then the locks and
# reltuples are read, in this order: VACUUM truncates the file, writes reltuples, and then releases
# its lock.

_WITHOUT_A_PAGE = """
SELECT oid::int8 FROM unnest(%s::oid[]) AS t(oid) WHERE pg_relation_size(oid) = 0
"""
_UNDER_VACUUM = """
SELECT relation::int8 FROM pg_locks
WHERE locktype = 'relation' AND mode = 'ShareUpdateExclusiveLock' AND relation = ANY(%s::oid[])
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_NEVER_VACUUMED = """
SELECT oid::int8, relfilenode::int8 FROM pg_class WHERE oid = ANY(%s::oid[]) AND reltuples = -1
"""


_XIDS = 1 << 32
_GONE = "a partition was detached or dropped after its rows were streamed"
_AS_A_PARTITION = "it was a partition of another table, and its changes came as that table's"
_NOT_SHOWN = 0
"""In place of the xid with which the stream announced a partition; none is 0."""


class AnnouncedLeaves:
    """The partitions that the stream has announced in this session, by their root."""

    def __init__(self) -> None:
        self._now: set[tuple[int, int]] = set()
        """Roots and partitions of the transaction that is being decoded."""
        self._shown: dict[int, dict[int, Leaf]] = {}
        self._settled: dict[int, Sequence[Leaf]] = {}

    def announced(self, root: int, leaf: int) -> None:
        """Note a partition that was announced right after its root."""
        self._now.add((root, leaf))

    def ended(self, xid: int, position: int) -> dict[int, dict[int, Leaf]]:
        """End the transaction, and return the partitions announced in it, by their root."""
        found: dict[int, dict[int, Leaf]] = {}
        for root, oid in sorted(self._now):
            leaf = Leaf(oid, xid, position, position)
            self._shown.setdefault(root, {})[oid] = found.setdefault(root, {})[oid] = leaf
        self._now.clear()
        return found

    def of(self, root: int) -> Sequence[Leaf]:
        """The partitions of this root that are still remembered."""
        return tuple(self._shown.get(root, {}).values())

    def elsewhere(self, table: int, oids: Collection[int]) -> tuple[Leaf, ...]:
        """``table`` as a leaf of another root, if that root was announced with any of ``oids``,
        which are those of the table and its partitions."""
        return as_other_roots(table, oids, self._shown)

    def settled(self, root: int, kept: Sequence[Leaf]) -> None:
        """Keep only ``kept`` of this root once all tables are reconciled: a partition that brings
        rows again is announced again."""
        self._settled[root] = kept

    def reconciled(self) -> None:
        """Forget the partitions that no table needs any more."""
        for root, kept in self._settled.items():
            self._shown[root] = {leaf.oid: leaf for leaf in kept}
        self._settled.clear()


def as_other_roots(
    table: int, oids: Collection[int], shown: Mapping[int, Mapping[int, Leaf]]
) -> tuple[Leaf, ...]:
    """``table`` as a leaf of the other roots in ``shown`` that were announced with any of ``oids``,
    or nothing."""
    return merged(
        (),
        (
            leaf._replace(oid=table)
            for root, leaves in shown.items()
            if root != table
            for leaf in map(leaves.get, oids)
            if leaf is not None
        ),
    )


def merged(known: Iterable[Leaf], more: Iterable[Leaf]) -> tuple[Leaf, ...]:
    """Both lists in one; a partition in both keeps its first xid and the range of its positions."""
    found = {leaf.oid: leaf for leaf in known}
    for leaf in more:
        first = found.get(leaf.oid, leaf)
        found[leaf.oid] = Leaf(
            leaf.oid,
            first.xid if first.xid != _NOT_SHOWN else leaf.xid,
            max(first.position, leaf.position),
            min(first.first, leaf.first),
        )
    return tuple(found.values())


def read_by_a_chunk(oid: int, position: int) -> Leaf:
    """The leaf of a partition whose rows a chunk of a copy may have read, at ``position``."""
    return Leaf(oid, _NOT_SHOWN, position, position)


class Account(NamedTuple):
    """The comparison of partitions that brought rows with a catalog snapshot."""

    lost: str | None
    """Reason why rows of the partitions may no longer be the root's, or None."""
    undecided: tuple[Leaf, ...]
    """Partitions for which the snapshot was taken too early."""


def account(
    leaves: Iterable[Leaf],
    partitions: Sequence[Partition],
    reach: int,
    *,
    altered: bool,
    table: int = 0,
) -> Account:
    """Compare ``table``'s ``leaves`` with the ``partitions`` of a catalog snapshot.

    ``reach`` is the position up to which the snapshot shows every commit. With ``altered`` it may
    lack one of a transaction that was changing the table.
    """
    present = {each.known.oid: each for each in partitions}
    undecided = []
    lost = None
    for leaf in leaves:
        there = present.get(leaf.oid)
        if there is not None:
            lost = lost or _lost(leaf, there)
            continue
        if leaf.position > reach or altered:
            undecided.append(leaf)
        if leaf.first <= reach and not altered:
            lost = lost or (_AS_A_PARTITION if leaf.oid == table else _GONE)
    return Account(lost, tuple(undecided))


def _lost(leaf: Leaf, there: Partition) -> str | None:
    """Reason why this partition may have lost rows that it brought, or None.

    The number of a table's first file is the table's oid. TRUNCATE creates another file, except in
    the transaction, or subtransaction, that created the table.
    """
    if not there.made_in_place:
        return f"partition {there.name} was attached after its rows were streamed"
    if there.known.detaching:
        return f"partition {there.name} was detached"
    if there.known.file != there.known.oid:
        return f"partition {there.name} was truncated or rewritten after its rows were streamed"
    shown = leaf.xid != _NOT_SHOWN
    if shown and not 0 < (leaf.xid - there.made_by) % _XIDS < _XIDS // 2:
        # The first announcement may be in the transaction that created the partition; its
        # subtransactions have larger xids. A chunk reads no partition before that has committed.
        return f"rows of partition {there.name} were streamed in the transaction that created it"
    return None
