"""Free bytes that the store reports, until it is full."""

from pathlib import Path

from laredo_fanout.store.errors import MapFull
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import commit, insert, live_table, open_store

MAP = 8 << 20
BATCH = 100
BIG = "x" * 2000


def filled(store: Store, table: int, position: int = 0) -> int:
    """Rows until the store is full; how many transactions it took."""
    for number in range(10_000):
        begin = position + number * BATCH
        steps = [insert(f"{begin + each}", each, BIG) for each in range(BATCH)]
        try:
            commit(store, table, (begin + 1, steps))
        except MapFull:
            return number
    raise AssertionError("it is never full")


def test_free_bytes_go_down_to_nothing_and_come_back(tmp_path: Path) -> None:
    with open_store(tmp_path, MAP) as store:
        table = live_table(store)
        empty = store.free_bytes
        assert MAP - (1 << 18) < empty < MAP
        taken = filled(store, table)
        full = store.free_bytes
        # What a transaction copies before it gives its old pages back is never left.
        assert full < MAP // 4
        assert taken * BATCH * len(BIG) < empty - full + (1 << 20)
        used = store.used_bytes
        with store.transaction() as transaction:
            transaction.drop_table(table)
        while store.reclaim(200):
            pass
        # Its pages are free within the file, which stays as large as it was.
        assert store.used_bytes >= used
        assert store.free_bytes > empty - (1 << 20)


def test_what_is_free_can_be_taken(tmp_path: Path) -> None:
    with open_store(tmp_path, MAP) as store:
        first = live_table(store)
        rows = filled(store, first)
        with store.transaction() as transaction:
            transaction.drop_table(first)
        while store.reclaim(200):
            pass
        second = live_table(store, "others", store.position)
        assert filled(store, second, 1_000_000) >= 0.8 * rows
