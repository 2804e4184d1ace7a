"""Power loss: whatever part of an unfinished commit reached the disk, the last one is whole.

The kernel may write a dirty page of the map at any time before the sync, and a
commit is its data, synced, then its meta page, synced. So what a disk can hold
after the power went is: the file in the middle of a transaction; or all data of
a commit and the meta pages from before it.
"""

import random
import shutil
from pathlib import Path

import pytest

from laredo_fanout.store.writer import Store
from tests.support import drawn
from tests.support.server.store_sample import (
    TRUNCATION,
    Step,
    apply,
    commit,
    delete,
    fold,
    insert,
    journal_of,
    live_table,
    open_store,
    state_of,
    update,
)

SIZE = 64 << 20
META_PAGES = 2 * 4096


def steps(chance: random.Random) -> list[Step]:
    made: list[Step] = []
    for _ in range(chance.choice([1, 5, 200])):
        key = str(chance.randrange(400))
        made.append(insert(key, chance.random(), "x" * chance.choice([1, 100, 6000])))
        if chance.random() < 0.3:
            made.append(delete(key))
    return [TRUNCATION] if chance.random() < 0.05 else made


def on_disk(store: Store) -> bytes:
    with (store.path / "data.mdb").open("rb") as file:
        return file.read(store.used_bytes + (8 << 20))


def check(path: Path, table: int, expected: dict[bytes, bytes], position: int) -> None:
    with open_store(path, SIZE) as store:
        assert store.position == position
        assert state_of(store.reader(), table) == expected
        assert store.tables[table].rows == len(expected)
        assert fold(journal_of(store.reader(), table), {}) == expected
        # And it goes on from there.
        commit(store, table, (position + 1, [insert("after", 1)]))
        commit(store, table, (position + 2, [update("after", 2), delete("0")]))
        assert b"after" in state_of(store.reader(), table)


@pytest.mark.parametrize("seed", drawn.first(1, range(6)))
def test_the_last_commit_is_whole(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    torn = tmp_path / "torn"
    with open_store(tmp_path / "store", SIZE) as store:
        table = live_table(store)
        for n in range(1, 25):
            commit(store, table, (10 * n, steps(chance)))
            store.reclaim(100)
            before = on_disk(store)
            expected, position = state_of(store.reader(), table), store.position
            with store.transaction() as transaction:
                apply(transaction, table, (10 * n + 5, steps(chance)))
                in_the_middle = on_disk(store)
            after = on_disk(store)
            if n % 6 == 0:
                for image in (in_the_middle, before[:META_PAGES] + after[META_PAGES:]):
                    torn.mkdir()
                    (torn / "data.mdb").write_bytes(image)
                    check(torn, table, expected, position)
                    shutil.rmtree(torn)
