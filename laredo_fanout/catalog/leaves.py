"""Compares the partitions that brought rows in the stream with those of a catalog snapshot.

The publication names a partition's root in its place (publish_via_partition_root). But before a
partition's first change in a session, and after each statement that invalidates what the server
has cached of it, pgoutput sends the Relation message of the root and right behind it that of the
partition (maybe_send_schema), then the row. So the stream shows which partitions bring rows.

A partition that was there when the table was last reconciled with the catalog needs no more: what
happens to it later is seen by comparing (partitions.py). Any other one that brought rows is kept
with the table's record, in the store transaction of those rows, until a catalog snapshot accounts
for it: it is there, and all its rows are. If it is gone, or may have lost rows, the table is
repaired (partition_repair.py). So are partitions that only a chunk of a copy has read
(chunk_leaves.py).

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

from laredo_fanout.store.table import Leaf

if TYPE_CHECKING:
    from laredo_fanout.catalog.partitions import Partition

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
