"""Partitions of a table that is published through its root, and those that brought rows.

The publication names a partition's root in its place (publish_via_partition_root). But before a
partition's first change in a session, and after each statement that invalidates what the server
has cached of it, pgoutput sends the Relation message of the root and right behind it that of the
partition (maybe_send_schema), then the row. So the stream shows which partitions bring rows.

A partition that was there when the table was last reconciled with the catalog needs no more: what
happens to it later is seen by comparing (partitions.py). Any other one that brought rows is kept
with the table's record, in the store transaction of those rows, until a catalog snapshot accounts
for it: it is there, and all its rows are. If it is gone, or may have lost rows, the table is
repaired (partition_repair.py). So are partitions that only a chunk of a copy has read
(copy/range_reader.py).

A table that is followed itself may be a partition of another root for a while. Its changes come as
that root's then, and the table lacks them. The stream shows that as well: it announces the table,
or a partition of it, behind another root. The table's record keeps that as a leaf with its own oid.
The table is repaired when a snapshot shows that it is no partition any more; while a snapshot shows
it as one, it is refused. The stream doesn't show a TRUNCATE of it: the new file does.

So a catalog snapshot verifies a partitioned table only when the stream has passed its message:
then every partition that brought rows before it has been shown. Before that, one that came with
rows and went with them may be about to be shown. Nor does a snapshot verify it if a partition isn't
in it that brought rows after the snapshot's position: other rows may have come with that before. A
table that is a partition of one that isn't published, or whose attributes were written, has to wait
for the message, too: ATTACH and DETACH write all attributes.
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
# a change in the stream (publish_via_partition_root). A partition that was made as one, or was
# empty when it was attached, brought no rows. What comes and goes between two catalog snapshots is
# known by what it brought: see AnnouncedLeaves.
# https://www.postgresql.org/docs/current/ddl-partitioning.html


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
    """Remembers which attached partitions had never had a row when they were first seen."""

    def __init__(self) -> None:
        self._empty: dict[tuple[int, str], bool] = {}

    def with_attachments(
        self, connection: Connection, partitions: Sequence[Partition]
    ) -> tuple[Partition, ...]:
        """These partitions, which were just read, with ``came_empty`` filled in.

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
            # One is being altered; taking them for filled costs a repair at most.
            return {}
        under_vacuum = connection.execute(_UNDER_VACUUM, (candidates,)).fetchall()
        files = dict(connection.execute(_NEVER_VACUUMED, (candidates,)).fetchall())
        for (oid,) in under_vacuum:
            files.pop(oid, None)
        return {each[:2]: files.get(each.oid) == each.file for each in new}


# A file without a page has never had a row, unless VACUUM has cut it, which leaves reltuples that
# aren't -1. It may be another file than the snapshot shows, a TRUNCATE's. So the size is measured
# first, and what has happened until then is asked for after it, in this order: VACUUM cuts the
# file, writes reltuples, then lets its lock go.

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
_GONE = "a partition that had brought rows was detached or dropped"
_AS_A_PARTITION = "its changes came as those of a table that it was a partition of"
_NOT_SHOWN = 0
"""In place of the transaction that the stream showed a partition with; none has this number."""


class AnnouncedLeaves:
    """The partitions that the stream has announced in this session, by their root."""

    def __init__(self) -> None:
        self._now: set[tuple[int, int]] = set()
        """Roots and partitions of the transaction that is being decoded."""
        self._shown: dict[int, dict[int, Leaf]] = {}
        self._settled: dict[int, Sequence[Leaf]] = {}

    def announced(self, root: int, leaf: int) -> None:
        """Note a partition that was announced right behind its root."""
        self._now.add((root, leaf))

    def ended(self, xid: int, position: int) -> dict[int, dict[int, Leaf]]:
        """End the transaction; returns the partitions that were announced in it, by their root."""
        found: dict[int, dict[int, Leaf]] = {}
        for root, oid in sorted(self._now):
            leaf = Leaf(oid, xid, position, position)
            self._shown.setdefault(root, {})[oid] = found.setdefault(root, {})[oid] = leaf
        self._now.clear()
        return found

    def of(self, root: int) -> Sequence[Leaf]:
        """The partitions of this root that weren't forgotten."""
        return tuple(self._shown.get(root, {}).values())

    def elsewhere(self, table: int, oids: Collection[int]) -> tuple[Leaf, ...]:
        """The leaf that ``table`` is of another root, if that root was announced with any of
        ``oids``: the table itself and partitions of it."""
        return as_other_roots(table, oids, self._shown)

    def settled(self, root: int, kept: Sequence[Leaf]) -> None:
        """Of this root only ``kept`` is needed when all tables are reconciled: a partition that
        brings rows again is announced again."""
        self._settled[root] = kept

    def reconciled(self) -> None:
        """Forget what no table needs any more."""
        for root, kept in self._settled.items():
            self._shown[root] = {leaf.oid: leaf for leaf in kept}
        self._settled.clear()


def as_other_roots(
    table: int, oids: Collection[int], shown: Mapping[int, Mapping[int, Leaf]]
) -> tuple[Leaf, ...]:
    """``shown``, by root and partition, as the leaf that ``table`` is of other roots, if they
    brought changes of it, or of its partitions."""
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
    """Both lists in one; a partition in both keeps its first transaction and all its positions."""
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
    """The leaf for a partition whose rows a chunk of a copy may have read, at ``position``."""
    return Leaf(oid, _NOT_SHOWN, position, position)


class Account(NamedTuple):
    """The comparison of partitions that brought rows with a catalog snapshot."""

    lost: str | None
    """Reason why rows of them may no longer be the root's, or None."""
    undecided: tuple[Leaf, ...]
    """It was taken too early to say."""


def account(
    leaves: Iterable[Leaf],
    partitions: Sequence[Partition],
    reach: int,
    *,
    altered: bool,
    table: int = 0,
) -> Account:
    """Which of ``table``'s ``leaves`` still have their rows, by a catalog snapshot that shows
    ``partitions``.

    ``reach`` is the position up to which it shows everything, but for what a transaction that was
    changing the table (``altered``) had committed and not made visible.
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

    A table's first file has the table's oid as its number; TRUNCATE gives it another one, except
    in the transaction, or subtransaction, that made the table.
    """
    if not there.made_in_place:
        return f"partition {there.name} brought rows and was attached"
    if there.known.detaching:
        return f"partition {there.name} was detached"
    if there.known.file != there.known.oid:
        return f"partition {there.name} brought rows and was truncated, or rewritten"
    shown = leaf.xid != _NOT_SHOWN
    if shown and not 0 < (leaf.xid - there.made_by) % _XIDS < _XIDS // 2:
        # Its own transaction may be the first that is shown; subtransactions have larger ids. A
        # chunk reads none before it is over.
        return f"partition {there.name} brought rows in the transaction that made it"
    return None
