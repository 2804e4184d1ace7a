"""Reading while the writer goes on: consistent snapshots, bounded in time, from other processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from laredo_fanout.store.errors import SnapshotClosed, SpoolFailed, TableUnknown
from laredo_fanout.store.reader import Snapshot, StoreReader
from laredo_fanout.store.writer import Store
from tests.support.processes import PATIENCE_S
from tests.support.server.store_sample import (
    COLUMNS,
    TRUNCATION,
    commit,
    delete,
    insert,
    live_table,
    row,
    state_of,
    update,
)

LONG = "L" * 600


@pytest.fixture
def table(store: Store) -> int:
    """A hundred rows and one with a long key, and a neighbour behind it."""
    table = live_table(store)
    steps = [insert(f"{n:03}", n) for n in range(100)]
    commit(store, table, (10, [*steps, insert(LONG, "long"), insert("", "empty")]))
    commit(store, live_table(store, "neighbour", 10), (10, [insert("000", "neighbour")]))
    return table


def rest(snapshot: Snapshot, size: int = 9) -> list[tuple[bytes, bytes]]:
    return [
        pair for keys, lines in snapshot.batches(size) for pair in zip(keys, lines, strict=True)
    ]


def test_rows_come_in_the_order_of_their_keys(store: Store, table: int) -> None:
    with store.reader().snapshot(table) as snapshot:
        keys = [key for key, _ in rest(snapshot)]
    assert keys == sorted(keys)
    assert LONG.encode() in keys


@pytest.mark.parametrize("size", [1, 7, 101, 102, 103, 5000])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_slow_taker_gets_the_rest_from_a_file(
    store: Store, table: int, size: int, taken: int
) -> None:
    whole = rest(store.reader().snapshot(table))
    with store.reader().snapshot(table) as snapshot:
        batches = snapshot.batches(size)
        got = []
        for keys, lines in batches:
            got += zip(keys, lines, strict=True)
            if taken == 0:
                break
            taken -= 1
        assert snapshot._transaction is not None
        snapshot.spill()
        snapshot.spill()
        commit(store, table, (20, [TRUNCATION]))
        assert snapshot._transaction is None
        # A generator that is already running goes on, and so does a new one.
        got += [pair for keys, lines in batches for pair in zip(keys, lines, strict=True)]
        got += rest(snapshot)
    assert got == whole


def test_an_open_snapshot_pins_old_pages_and_a_spilled_one_does_not(
    store: Store, table: int
) -> None:
    def growth() -> int:
        before = store.used_bytes
        for n in range(60):
            commit(store, table, (store.position + 1, [update("000", str(n) * 20_000)]))
            store.prune(table, 1, 1e9, 0)
        return store.used_bytes - before

    growth()
    with store.reader().snapshot(table) as snapshot:
        pinned = growth()
        snapshot.spill()
        store.prune(table, 1, 1e9, 0)
        assert growth() < pinned / 4
    assert pinned > 60 * 20_000


def test_a_failed_spill_leaves_the_snapshot_as_it_was(
    store: Store, table: int, tmp_path: Path
) -> None:
    """On a full disk too: tests/fanout/store/test_full_disk.py fills one."""
    whole = rest(store.reader().snapshot(table))
    with store.reader().snapshot(table, tmp_path / "missing") as snapshot:
        first = next(snapshot.batches(10))
        with pytest.raises(SpoolFailed, match="missing"):
            snapshot.spill()
        assert snapshot._transaction is not None
        assert rest(snapshot) == whole[10:]
        assert len(first[0]) == 10


def test_a_closed_snapshot_gives_no_more(store: Store, table: int) -> None:
    snapshot = store.reader().snapshot(table)
    batches = snapshot.batches(10)
    next(batches)
    snapshot.close()
    snapshot.close()
    with pytest.raises(SnapshotClosed, match=r"public\.users"):
        next(batches)
    with pytest.raises(SnapshotClosed):
        next(snapshot.batches())


def test_a_stopped_spill_never_looks_like_the_whole(store: Store, table: int) -> None:
    with store.reader().snapshot(table) as snapshot:
        next(snapshot.batches(10))
        snapshot.stop_spilling()
        snapshot.spill()
        with pytest.raises(SnapshotClosed):
            next(snapshot.batches())


def test_another_process_reads_what_is_committed(store: Store, table: int) -> None:
    program = """
import sys
from laredo_fanout.store.reader import StoreReader
from tests.support.server.store_sample import journal_of, state_of
with StoreReader.open(sys.argv[1]) as reader:
    for asked in sys.stdin:
        view = reader.table("public.users")
        state = state_of(reader, view.id)
        print(view.position, view.rows, len(state), len(journal_of(reader, view.id)), flush=True)
"""
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(store.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    try:
        for n in range(50):
            expected = f"{10 + n} {102 + n} {102 + n} {102 + n}\n"
            reader.stdin.write("\n")
            reader.stdin.flush()
            assert reader.stdout.readline() == expected
            commit(store, table, (11 + n, [insert(f"new{n}", "x" * 3000)]))
    finally:
        reader.stdin.close()
        assert reader.wait(PATIENCE_S) == 0
        reader.stdout.close()


def test_tables_that_are_gone(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        transaction.drop_table(table)
    reader: StoreReader = store.reader()
    for asked in (
        lambda: reader.table("public.users"),
        lambda: reader.table_by_id(table),
        lambda: reader.snapshot(table),
        lambda: reader.journal(table, 0),
        lambda: reader.sequence_after_position(table, 0),
    ):
        with pytest.raises(TableUnknown):
            asked()
    assert [view.name for view in reader.tables()] == ["public.neighbour"]


def test_views_change_with_the_table(store: Store, table: int) -> None:
    reader = store.reader()
    first = reader.table("public.users")
    assert (first.rows, first.entries, first.record.key_fields) == (102, 102, ("id",))
    assert state_of(reader, table)[b""] == row("", "empty")
    commit(store, table, (20, [delete("")]))
    assert first.rows == 102
    assert reader.table("public.users").rows == 101
    assert reader.table_by_id(table).entries == 103


def test_it_forgets_tables_that_are_gone(store: Store) -> None:
    """Each re-copy is one for a while."""
    reader = store.reader()
    known = reader.tables()
    for _ in range(3):
        with store.transaction() as transaction:
            gone = transaction.add_table("public", "users", 1, COLUMNS).id
        assert len(reader.tables()) == len(known) + 1
        with store.transaction() as transaction:
            transaction.drop_table(gone)
    assert len(reader.tables()) == len(reader._definitions) == len(known)
