"""Verdicts of a catalog snapshot on partitions that brought rows."""

from laredo_fanout.pg_catalog.partitions import (
    Partition,
    StoredPartition,
    account,
    merged,
    read_by_a_chunk,
)
from laredo_fanout.store.table import Leaf

_THERE = Partition(
    StoredPartition(7, "3", 7, detaching=False),
    "public.a1",
    "r",
    "p",
    "d",
    frozenset({"id"}),
    made_in_place=True,
    made_by=100,
)


def test_a_partition_that_came_again_behind_the_snapshot_was_gone_in_it() -> None:
    """Its first rows went with it; of its later ones a later snapshot says more."""
    (leaf,) = merged([Leaf(7, 101, 10, 10)], [Leaf(7, 105, 30, 30)])
    assert leaf == Leaf(7, 101, 30, 10)
    said = account([leaf], [], 20, altered=False)
    assert said.lost and said.undecided == (leaf,)
    assert account([leaf], [], 9, altered=False) == (None, (leaf,))
    assert account([leaf], [], 20, altered=True) == (None, (leaf,))


def test_a_chunk_reads_no_partition_that_its_own_transaction_emptied() -> None:
    read = read_by_a_chunk(7, 20)
    assert account([read], [_THERE], 30, altered=False) == (None, ())
    attached = _THERE._replace(made_in_place=False)
    assert account([read], [attached], 30, altered=False).lost


def test_the_stream_shows_what_a_chunk_read_before() -> None:
    """The chunk reads what is committed; the stream is behind it."""
    (leaf,) = merged([read_by_a_chunk(7, 20)], [Leaf(7, 100, 10, 10)])
    assert leaf == Leaf(7, 100, 20, 10)
    made_and_emptied = account([leaf], [_THERE], 30, altered=False)
    assert made_and_emptied.lost
