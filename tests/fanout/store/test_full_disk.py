"""A full disk is an error with a message, never a SIGBUS; what was committed stays readable.

Each test runs in a user and mount namespace of its own, on a small tmpfs.
"""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from laredo_fanout.store.errors import DiskFull, SpoolFailed, StoreUnusable
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.writer import Store
from tests.support import drawn
from tests.support.processes import completed
from tests.support.server.small_disk import run_on_a_tmpfs
from tests.support.server.store_sample import (
    COLUMNS,
    TRUNCATION,
    UPDATE,
    apply,
    commit,
    delete,
    fold,
    insert,
    journal_of,
    live_table,
    partial,
    row,
    state_of,
)

MAP = 1 << 30
SMALL_DISK = 24 << 20
SHAPES, MORE_SHAPES = range(4, 9), (*range(4), *range(9, 12))
COMMITS = 400


def ballast(directory: Path, leave: int) -> Path:
    """A file that takes all room but ``leave`` bytes."""
    path = directory / "ballast"
    with path.open("wb") as file:
        file.write(b"\1" * max(0, shutil.disk_usage(directory).free - leave))
    return path


def fills_up_and_goes_on(directory: Path) -> None:
    filler = ballast(directory, 12 << 20)
    with Store.open(directory / "store", max_size=MAP) as store:
        table = live_table(store)
        n = 0
        try:
            while True:
                commit(store, table, (10 + n, [insert(f"{n}", n, "x" * 1500)]))
                n += 1
        except DiskFull as full:
            assert "free some space" in str(full), full
            assert str(directory / "store") in str(full), full
        assert n > 500, n
        check(store, table, n)
        filler.unlink()
        commit(store, table, (10 + n, [insert(f"{n}", n, "x" * 1500)]))
        n += 1
    with Store.open(directory / "store", max_size=MAP) as store:
        check(store, table, n)


def check(store: Store, table: int, rows: int) -> None:
    assert store.position == 9 + rows
    state = state_of(store.reader(), table)
    assert len(state) == rows == store.tables[table].rows
    assert fold(journal_of(store.reader(), table), {}) == state


def every_shape_of_change(directory: Path, seeds: Sequence[int] = SHAPES) -> None:
    """No shape of change gets by what is allocated ahead: a SIGBUS would kill this process."""
    filled = 0
    for seed in seeds:
        chance = random.Random(seed)
        path = directory / "store"
        with Store.open(path, max_size=MAP) as store:
            live, copying = live_table(store), 0
            with store.transaction() as transaction:
                copying = transaction.add_table("public", "copying", 2, COLUMNS).id
            commits = 0
            width = chance.choice([1, 100, 1900, 5000, 30_000])
            key_width = chance.choice([1, 20, 470, 900])
            batch = min(chance.choice([1, 30, 500]), 1 + 100_000 // (width + key_width))
            filler = ballast(directory, chance.choice([6, 9, 16]) << 20)
            try:
                while commits < COMMITS:
                    write_some(store, (live, copying), chance, (width, key_width, batch))
                    commits += 1
            except DiskFull:
                filled += 1
            assert commits > 1, (seed, width, key_width, batch)
            assert len(state_of(store.reader(), live)) == store.tables[live].rows
        filler.unlink()
        with Store.open(path, max_size=MAP) as store:
            assert len(state_of(store.reader(), live)) == store.tables[live].rows
        shutil.rmtree(path)
    assert filled >= len(seeds) // 3, filled


def write_some(
    store: Store, tables: tuple[int, int], chance: random.Random, shape: tuple[int, int, int]
) -> None:
    width, key_width, batch = shape
    keys = [str(chance.randrange(5000)).rjust(key_width, "k") for _ in range(batch)]
    with store.transaction() as transaction:
        steps = [insert(key, 1, "x" * chance.randrange(1, width + 1)) for key in keys]
        steps += [delete(key) for key in keys if chance.random() < 0.3]
        if chance.random() < 0.02:
            steps.append(TRUNCATION)
        for table in tables:
            apply(transaction, table, (store.position + 1, steps))
        copied = sorted({str(chance.randrange(5000)).rjust(key_width, "k") for _ in range(batch)})
        lines = [row(key, 1, "x" * chance.randrange(1, width + 1)) for key in copied]
        transaction.fill(tables[1], [key.encode() for key in copied], lines)
    if chance.random() < 0.1:
        store.prune(tables[0], 5000, 1e9, 0)
    store.reclaim(200)


def no_room_to_begin(directory: Path) -> None:
    for room in (0, 4096, 20_000, 100_000, 300_000):
        filler = ballast(directory, room)
        try:
            Store.open(directory / f"store{room}", max_size=MAP).close()
        except DiskFull as full:
            assert "No space left" in str(full), full
        else:
            raise AssertionError(f"a store in {room} bytes")
        filler.unlink()
    Store.open(directory / "store4096", max_size=MAP).close()


def reads_on_a_full_disk(directory: Path) -> None:
    with Store.open(directory / "store", max_size=MAP) as store:
        table = live_table(store)
        commit(store, table, (10, [insert(f"{n}", n) for n in range(1000)]))
        ballast(directory, 0)
        program = (
            "import sys; from laredo_fanout.store.reader import StoreReader\n"
            "from tests.support.server.store_sample import state_of\n"
            "reader = StoreReader.open(sys.argv[1])\n"
            "snapshots = [reader.snapshot(int(sys.argv[2])) for _ in range(300)]\n"
            "print(len(state_of(reader, int(sys.argv[2]))))"
        )
        run = completed([sys.executable, "-c", program, str(directory / "store"), str(table)])
        assert run.stdout == "1000\n", (run.returncode, run.stderr)
    with Store.open(directory / "store", max_size=MAP) as store:
        assert len(state_of(store.reader(), table)) == 1000
        StoreReader(store.path, store._environment, store._databases, owned=False).tables()


def old_rows_need_room_too(directory: Path) -> None:
    """The journal holds what was deleted or not sent; a change of few bytes can need many."""
    big = "x" * 300_000
    for steps in (
        [delete(str(n)) for n in range(12)],
        [(UPDATE, str(n), partial(str(n), 1)) for n in range(12)],
    ):
        with Store.open(directory / "store", max_size=MAP) as store:
            table = live_table(store)
            for n in range(12):
                commit(store, table, (10 + n, [insert(str(n), 0, big)]))
            store.prune(table, 1, 1e9, 0)
            # What pruning freed is in use again, but for what two commits keep.
            commit(store, table, (30, [insert(f"more{n}", 0, big) for n in range(4)]))
            used = store.used_bytes
            filler = ballast(directory, 0)
            try:
                for _ in range(100):
                    commit(store, table, (store.position + 1, [insert("small", 1)]))
                    commit(store, table, (store.position + 1, steps))
                    again = [insert(str(n), 0, big) for n in range(12)]
                    commit(store, table, (store.position + 1, again))
            except DiskFull:
                state = state_of(store.reader(), table)
            else:
                raise AssertionError(f"no end of room: {used} then {store.used_bytes}")
            assert len(state) == store.tables[table].rows
        filler.unlink()
        shutil.rmtree(directory / "store")


def dropped_rows_leave_a_full_disk(directory: Path) -> None:
    with Store.open(directory / "store", max_size=MAP) as store:
        dropped, kept = live_table(store, "dropped"), live_table(store)
        commit(store, dropped, (10, [insert(f"{n}", 0, "x" * 500) for n in range(6000)]))
        with store.transaction() as transaction:
            transaction.drop_table(dropped)
        filler = ballast(directory, 0)
        assert store.reclaim()
        with suppress(DiskFull):
            while True:
                commit(store, kept, (store.position + 1, [insert("1", 0, "x" * 1500)]))
        while store.reclaim():
            pass  # no room for what it removes is no error
        filler.unlink()
        while store.reclaim():
            pass
        assert not store._garbage


def spilling_on_a_full_disk(directory: Path) -> None:
    with Store.open(directory / "store", max_size=MAP) as store:
        table = live_table(store)
        commit(store, table, (10, [insert(str(n), 0, "x" * 3000) for n in range(600)]))
        for room in (0, 1_000, 10_000, 400_000):
            filler = ballast(directory, room)
            with store.reader().snapshot(table, directory) as snapshot:
                taken = len(next(snapshot.batches(100))[0])
                try:
                    snapshot.spill()
                except SpoolFailed as failed:
                    assert "No space left" in str(failed), failed
                else:
                    raise AssertionError(f"spilled into {room} bytes")
                taken += sum(len(keys) for keys, _ in snapshot.batches())
            assert taken == 600, taken
            filler.unlink()


def read_only_disk(directory: Path) -> None:
    with Store.open(directory / "store", max_size=MAP) as store:
        live_table(store)
    remounted = ["mount", "-o", "remount,ro", str(directory)]
    subprocess.run(remounted, check=True)
    for name in ("store", "another"):
        try:
            Store.open(directory / name, max_size=MAP)
        except StoreUnusable as unusable:
            assert "Read-only file system" in str(unusable), unusable
            assert str(directory / name) in str(unusable), unusable
        else:
            raise AssertionError(name)


SCENES: dict[str, Callable[[Path], None]] = {
    "old_rows_need_room_too": old_rows_need_room_too,
    "dropped_rows_leave_a_full_disk": dropped_rows_leave_a_full_disk,
    "fills_up_and_goes_on": fills_up_and_goes_on,
    "every_shape_of_change": every_shape_of_change,
    "no_room_to_begin": no_room_to_begin,
    "reads_on_a_full_disk": reads_on_a_full_disk,
    "read_only_disk": read_only_disk,
    "spilling_on_a_full_disk": spilling_on_a_full_disk,
    "more_shapes_of_change": lambda directory: every_shape_of_change(directory, MORE_SHAPES),
}


@pytest.mark.parametrize("scene", drawn.first(len(SCENES) - 1, SCENES))
def test_on_a_small_disk(tmp_path: Path, scene: str) -> None:
    run_on_a_tmpfs(tmp_path, str(SMALL_DISK), "tests.fanout.store.test_full_disk", scene)


if __name__ == "__main__":
    SCENES[sys.argv[1]](Path(sys.argv[2]))
