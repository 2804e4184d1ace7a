"""The store as a whole: one writer, everything or nothing, restart, bad files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import lmdb
import pytest

from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import (
    MapFull,
    PositionWentBack,
    StoreBroken,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreMissing,
    StoreUnusable,
    TableUnknown,
)
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.writer import Store
from laredo_model.position import History
from tests.support.processes import PATIENCE_S, completed
from tests.support.server.store_sample import (
    COLUMNS,
    apply,
    changes,
    commit,
    insert,
    journal_of,
    live_table,
    open_store,
    row,
    state_of,
    update,
)

SOURCE = SourceIdentity(History(7300, 1, 16384), "laredo", "laredo", "token")


def in_process(program: str, *arguments: str) -> str:
    """Output of a Python program, run in a process of its own."""
    run = completed([sys.executable, "-c", program, *arguments])
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_fresh_store_knows_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path / "a" / "b") as store:
        assert (store.position, store.time_us, store.source, store.tables) == (0, 0, None, {})
        with pytest.raises(TableUnknown, match=r"public\.users"):
            store.reader().table("public.users")


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        with store.transaction() as transaction:
            transaction.set_source(SOURCE)
        table = live_table(store)
        with store.transaction() as transaction:
            apply(transaction, table, (10, [insert("a", 1), insert("", 1)]))
            transaction.set_position(0x1_0000_0010, 1_700_000_000_000_000)
        known = store.tables
    with open_store(tmp_path) as store:
        assert store.source == SOURCE
        assert (store.position, store.time_us) == (0x1_0000_0010, 1_700_000_000_000_000)
        assert store.tables == known
        reader = store.reader()
        assert state_of(reader, table) == {b"a": row("a", 1), b"": row("", 1)}
        assert len(journal_of(reader, table)) == 2
        assert reader.source() == SOURCE
        assert reader.position() == (store.position, store.time_us)


def test_a_failed_step_leaves_nothing_behind(store: Store, table: int) -> None:
    commit(store, table, (10, [insert("a", 1)]))
    before = store.tables
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
        transaction.set_source(SOURCE)
        apply(transaction, table, (20, [update("a", 2), insert("b", 2)]))
        transaction.add_table("public", "others", 2, COLUMNS)
        raise ZeroDivisionError
    assert (store.position, store.source, store.tables) == (10, None, before)
    assert state_of(store.reader(), table) == {b"a": row("a", 1)}
    commit(store, table, (20, [update("a", 2)]))
    assert [entry[1] for entry in journal_of(store.reader(), table)] == [10, 20]


def test_a_transaction_that_cannot_begin(store: Store) -> None:
    store._environment.close()
    with pytest.raises(StoreBroken), store.transaction():
        pass
    with pytest.raises(StoreBroken):  # and no transaction is open
        store.transaction().__enter__()


def test_no_file_stays_open_of_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    with lmdb.open(str(tmp_path), max_dbs=1) as environment:
        rows = environment.open_db(b"state", create=False)
        with environment.begin(write=True) as transaction:
            transaction.drop(rows)
            transaction.put(b"state", b"not a database")
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with pytest.raises(StoreDamaged):
            open_store(tmp_path)
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_the_position_never_goes_back_but_with_another_source(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.set_source(SOURCE)
        transaction.set_position(0x19F000, 50)
        transaction.set_position(0x19F000, 40)
    assert store.time_us == 50
    with store.transaction() as transaction:
        transaction.set_source(SOURCE)
        with pytest.raises(PositionWentBack, match=r"0/19F000 and can't go back to 0/19EFFF"):
            transaction.set_position(0x19EFFF, 60)
    with store.transaction() as transaction:
        transaction.set_source(SourceIdentity(History(7300, 2, 16384), "laredo", "laredo"))
        transaction.set_position(5, 60)
    assert store.position == 5


def test_a_second_server_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    program = """
import sys
from laredo_fanout.store.writer import Store
from laredo_fanout.store.errors import StoreLocked
try:
    Store.open(sys.argv[1], max_size=1 << 20)
except StoreLocked as refused:
    print(refused)
"""
    with open_store(tmp_path) as store:
        table = live_table(store)
        said = in_process(program, str(tmp_path))
        assert str(tmp_path) in said
        assert f"process {os.getpid()}" in said
        assert "state.path" in said
        commit(store, table, (10, [insert("a", 1)]))
        with pytest.raises(StoreLocked):
            open_store(tmp_path)
    assert in_process(program, str(tmp_path)) == ""


def test_files_that_are_no_store_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreDamaged, match="move it elsewhere"):
        open_store(tmp_path)
    with pytest.raises(StoreDamaged):
        StoreReader.open(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes().startswith(b"something else")
    (tmp_path / "data.mdb").unlink()
    open_store(tmp_path).close()  # the lock was let go


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreUnusable, match=r"state\.path must be a directory"):
            open_store(path)


def test_there_is_nothing_to_read_before_a_server_ran(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="start the server"):
        StoreReader.open(tmp_path)
    with pytest.raises(StoreMissing):
        StoreReader.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_max_size_is_an_error_and_what_was_there_stays(tmp_path: Path) -> None:
    with open_store(tmp_path, max_size=2 << 20) as store:
        table = live_table(store)
        committed = 0
        with pytest.raises(MapFull, match=r"state\.max_size \(2\.1 MB\)"):
            for n in range(10_000):
                commit(store, table, (10 + n, [insert(str(n), "x" * 1000)]))
                committed += 1
        assert committed > 100
        assert store.position == 9 + committed
        assert len(state_of(store.reader(), table)) == committed
        with pytest.raises(StoreError):
            commit(store, table, (99_999, [insert("more", "x" * 1_000_000)]))
    with open_store(tmp_path, max_size=8 << 20) as store:
        commit(store, table, (99_999, [insert("more", "x" * 1_000_000)]))
        assert store.tables[table].rows == committed + 1


def test_opening_does_not_look_at_the_rows(tmp_path: Path) -> None:
    """The counts are stored; what opening reads doesn't grow with the table."""
    with open_store(tmp_path, max_size=1 << 30) as store, store.transaction() as transaction:
        table = transaction.add_table("public", "users", 1, COLUMNS).id
        for start in range(0, 200_000, 20_000):
            keys = [f"{n:06}" for n in range(start, start + 20_000)]
            transaction.fill(table, [k.encode() for k in keys], [row(k, "v" * 50) for k in keys])
        transaction.publish(table, 5, 0)
    program = """
import resource, sys, time
from laredo_fanout.store.writer import Store
faults = resource.getrusage(resource.RUSAGE_SELF)
with Store.open(sys.argv[1], max_size=1 << 30) as store:
    assert next(iter(store.tables.values())).rows == 200_000
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_minflt + after.ru_majflt - faults.ru_minflt - faults.ru_majflt)
"""
    assert int(in_process(program, str(tmp_path))) < 1000


def test_commits_are_synced_by_lmdb_itself(tmp_path: Path) -> None:
    """With writemap only LMDB's own two-step commit is safe against a power loss."""
    with open_store(tmp_path) as store:
        flags = store._environment.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert flags["writemap"]
    assert not flags["map_async"]


def test_dead_readers_are_cleared(
    store: Store, table: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader killed in a transaction would pin every page from then on."""
    program = """
import sys, time
from laredo_fanout.store.reader import StoreReader
reader = StoreReader.open(sys.argv[1])
snapshot = reader.snapshot(int(sys.argv[2]))
next(snapshot.batches(1))
print("reading", flush=True)
time.sleep(600)
"""
    monkeypatch.setattr("laredo_fanout.store.writer._READER_CHECK_S", 0.0)
    commit(store, table, (10, [insert("a", 1)]))
    reader = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "store"), str(table)], stdout=subprocess.PIPE
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        for n in range(20):
            commit(store, table, (20 + n, [update("a", "x" * 50_000)]))
        grown = store.used_bytes
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while (
        store._environment.info()["num_readers"]
        and len(store._environment.readers().splitlines()) > 1
    ):
        assert time.monotonic() < deadline
        commit(store, table, (store.position + 1, [update("a", "x" * 50_000)]))
    store.prune(table, 1, 1e9, 0)
    for _ in range(20):
        commit(store, table, (store.position + 1, [update("a", "x" * 50_000)]))
        store.prune(table, 1, 1e9, 0)
    assert store.used_bytes <= grown * 1.5


def test_much_is_written_in_small_pieces(store: Store, table: int) -> None:
    """Between them the ingest empties the stream's socket, which would be full otherwise."""
    count = 5000
    many = changes((1, [insert(f"{key}", "v") for key in range(count)]))
    with store.transaction() as transaction:
        pieces = list(transaction.apply_in_pieces(table, many))
    assert len(pieces) > count // 200
    assert len(state_of(store.reader(), table)) == count
