"""One spool for all slow readers of a snapshot, wherever each of them stands."""

import random
from pathlib import Path

import pytest

from laredo_fanout.store.errors import SnapshotClosed, SpoolFailed
from laredo_fanout.store.reader import Snapshot
from laredo_fanout.store.shared_spool import SharedSpools
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import commit, insert, live_table, update


def table_of(store: Store, rows: int) -> int:
    table = live_table(store)
    commit(store, table, (10, [insert(f"{n:05}", n, "x" * (n % 97)) for n in range(rows)]))
    return table


def rest(snapshot: Snapshot) -> list[bytes]:
    return [line for _, lines in snapshot.batches() for line in lines]


def take(snapshot: Snapshot, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += next(snapshot.batches(min(1000, count - len(found))))[1]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_readers_at_any_place_read_on_without_a_gap(
    store: Store, tmp_path: Path, seed: int
) -> None:
    table = table_of(store, 9000)
    chance = random.Random(seed)
    spools = SharedSpools(tmp_path)
    with store.reader().snapshot(table) as all_of_it:
        whole = rest(all_of_it)
    readers = [store.reader().snapshot(table, spools=spools) for _ in range(6)]
    got = [take(each, chance.choice([0, 1, 2000, chance.randrange(9000)])) for each in readers]
    earliest = min(map(len, got))
    for number in chance.sample(range(6), 6):
        readers[number].spill()
        assert readers[number]._transaction is None
        got[number] += take(readers[number], chance.randrange(len(whole) - len(got[number]) + 1))
    # Together they wrote what the slowest of them hadn't taken, once.
    once = sum(len(line) + 5 for line in whole[earliest:])
    assert once <= spools.bytes <= 1.5 * once
    commit(store, table, (20, [update("00001", "later")]))
    for reader, found in zip(readers, got, strict=True):
        assert found + rest(reader) == whole
        reader.close()
    assert spools.bytes == 0


def test_another_state_of_the_table_has_a_spool_of_its_own(store: Store, tmp_path: Path) -> None:
    table = table_of(store, 100)
    spools = SharedSpools(tmp_path)
    first = store.reader().snapshot(table, spools=spools)
    commit(store, table, (20, [update("00001", "later")]))
    second = store.reader().snapshot(table, spools=spools)
    first.spill()
    assert first.spooled_by_another and not second.spooled_by_another
    once = spools.bytes
    second.spill()
    assert spools.bytes > 1.9 * once
    assert rest(first) != rest(second)
    first.close()
    second.close()
    assert spools.bytes == 0


def test_there_is_an_end_to_it(store: Store, tmp_path: Path) -> None:
    table = table_of(store, 9000)
    spools = SharedSpools(tmp_path, max_bytes=300_000)
    with store.reader().snapshot(table, spools=spools) as early:
        with store.reader().snapshot(table, spools=spools) as late:
            take(late, 8000)
            late.spill()
            kept = spools.bytes
            with pytest.raises(SpoolFailed, match="spool_max_size"):
                early.spill()
            assert spools.bytes == kept
            assert len(rest(late)) == 1000
        assert spools.bytes == 0
        # It is as before: whoever closes it lets the store's pages go.
        assert len(rest(early)) == 9000


def test_a_spill_that_is_stopped_leaves_nothing_to_the_others(store: Store, tmp_path: Path) -> None:
    table = table_of(store, 3000)
    spools = SharedSpools(tmp_path)
    leaves = store.reader().snapshot(table, spools=spools)
    leaves.stop_spilling()
    leaves.spill()
    assert spools.bytes == 0 and not leaves.spooled_by_another
    with pytest.raises(SnapshotClosed):
        next(leaves.batches())
    with store.reader().snapshot(table, spools=spools) as other:
        other.spill()
        assert len(rest(other)) == 3000
    leaves.close()
    assert spools.bytes == 0


def test_a_row_larger_than_what_is_read_at_a_time(store: Store, tmp_path: Path) -> None:
    table = live_table(store)
    wide = [insert(f"{n}", n, "x" * (700_000 + n)) for n in range(3)]
    commit(store, table, (10, wide))
    with store.reader().snapshot(table, spools=SharedSpools(tmp_path)) as snapshot:
        first = take(snapshot, 1)
        snapshot.spill()
        assert [len(line) for line in first + rest(snapshot)] == sorted(
            len(line) for line in rest(store.reader().snapshot(table))
        )


@pytest.mark.parametrize("taken", [0, 1])
def test_the_row_of_an_empty_key_is_in_the_spool(store: Store, tmp_path: Path, taken: int) -> None:
    table = live_table(store)
    commit(store, table, (10, [insert("", 1, "of the empty key"), insert("a", 2, "x")]))
    with store.reader().snapshot(table) as all_of_it:
        whole = rest(all_of_it)
    with store.reader().snapshot(table, spools=SharedSpools(tmp_path)) as snapshot:
        got = take(snapshot, taken)
        snapshot.spill()
        assert got + rest(snapshot) == whole
