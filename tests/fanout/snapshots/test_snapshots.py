"""Periodic snapshot files: whole or not there, verified, listed, read back, removed in time."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from laredo_fanout import snapshots
from laredo_fanout.snapshots import (
    Retention,
    SnapshotBusy,
    SnapshotDirectory,
    SnapshotFileDamaged,
    SnapshotInfo,
    SnapshotUnknown,
    SnapshotUnverified,
    SnapshotUnwritable,
    TakenSnapshot,
    take,
)
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import TableHidden, TableUnknown
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from laredo_model.checksum import StateChecksum
from laredo_model.position import History
from tests.support.processes import wait_until
from tests.support.server.small_disk import run_on_a_tmpfs
from tests.support.server.store_sample import (
    COLUMNS,
    commit,
    delete,
    insert,
    live_table,
    open_store,
    row,
    state_of,
    update,
)

KEEP = Retention(keep_count=3, max_age_s=3600)
TABLE = "public.users"
POSITION = 0x19F000


@pytest.fixture
def table(store: Store) -> int:
    with store.transaction() as transaction:
        source = SourceIdentity(History(7300, 1, 16384), "laredo", "laredo")
        transaction.set_source(source)
    table = live_table(store)
    rows = [insert(f"{n:04}", n) for n in range(2999)]
    commit(store, table, (POSITION, [*rows, insert("z", "two\u2028lines")]))
    return table


@pytest.fixture
def shelf(tmp_path: Path) -> SnapshotDirectory:
    return SnapshotDirectory(tmp_path / "snapshots" / TABLE)


def take_now(store: Store, shelf: SnapshotDirectory, keep: Retention = KEEP) -> TakenSnapshot:
    return take(store.reader(), TABLE, shelf.path, keep)


def change(store: Store, table: int) -> None:
    commit(store, table, (store.position + 8, [update("0000", store.position)]))


def lines_of(shelf: SnapshotDirectory, snapshot: SnapshotInfo, rows: int = 1000) -> list[bytes]:
    pieces = list(shelf.read(snapshot, rows))
    assert all(len(lines) <= rows for lines in pieces)
    return [line for lines in pieces for line in lines]


def test_a_snapshot_is_the_table_at_its_position(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    before = int(time.time() * 1e6)
    taken = take_now(store, shelf)
    assert taken.written
    made = taken.snapshot
    state = state_of(store.reader(), table)
    for rows in (1, 7, 2999, 3000, 3001):
        assert lines_of(shelf, made, rows) == [state[key] for key in sorted(state)]
    checksum = StateChecksum()
    checksum.add(list(state.values()))
    assert (made.rows, made.state_checksum) == (3000, checksum.hex())
    assert (made.sequence, made.position) == (store.tables[table].sequence, 0x19F000)
    assert made.history == "7300:1:16384"
    assert made.columns == COLUMNS
    assert made.snapshot_id == f"{TABLE}@0_19F000-{made.sequence}"
    assert snapshots.table_of(made.snapshot_id) == TABLE
    assert before <= made.created_at_us <= int(time.time() * 1e6)
    text = shelf.rows_file(made).read_bytes()
    assert len(text) == made.size_bytes
    assert text.endswith(row("z", "two\u2028lines") + b"\n")
    assert text.count(b"\n") == 3000
    assert shelf.snapshots() == [made] == [shelf.newest()]
    assert shelf.find(made.snapshot_id) == made


def test_an_empty_table_has_a_snapshot_too(store: Store, shelf: SnapshotDirectory) -> None:
    live_table(store)
    made = take_now(store, shelf).snapshot
    assert (made.rows, made.size_bytes, made.history) == (0, 0, "")
    assert lines_of(shelf, made) == []


def test_unchanged_rows_are_not_written_again(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    first = take_now(store, shelf)
    with store.transaction() as transaction:
        transaction.set_position(0x1A0000, 0)
    again = take_now(store, shelf)
    assert (again.written, again.snapshot) == (False, first.snapshot)
    change(store, table)
    assert take_now(store, shelf).written
    assert len(shelf.snapshots()) == 2


def test_a_table_copied_again_is_written_again(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    take_now(store, shelf)
    live_table(store, position=0x1B0000)
    taken = take_now(store, shelf)
    assert (taken.written, taken.snapshot.rows) == (True, 0)
    assert shelf.newest() == taken.snapshot


def test_the_newest_come_first_and_only_so_many_stay(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    made = []
    for n in range(5):
        change(store, table)
        taken = take_now(store, shelf)
        made.append(taken.snapshot)
        assert taken.removed == ((made[n - 3].snapshot_id,) if n >= 3 else ())
    assert shelf.snapshots() == made[:1:-1]
    assert len(list(shelf.path.glob("*.jsonl"))) == len(list(shelf.path.glob("*.json"))) == 3
    with pytest.raises(SnapshotUnknown, match="list them"):
        shelf.find(made[0].snapshot_id)
    with pytest.raises(SnapshotUnknown):
        next(shelf.read(made[0]))


class TestRetention:
    @staticmethod
    def infos(*ages_s: int) -> list[SnapshotInfo]:
        blank = SnapshotInfo("", TABLE, 1, 1, 1, "", 0, 0, "", "", 0, ())
        return [
            replace(blank, snapshot_id=str(age), created_at_us=(10_000 - age) * 1_000_000)
            for age in ages_s
        ]

    @pytest.mark.parametrize(
        ("ages", "gone"),
        [
            ((), []),
            ((0,), []),
            ((9999,), []),
            ((9998, 9999), ["9999"]),
            ((1, 2, 3), []),
            ((1, 2, 3, 4, 5), ["5", "4"]),
            ((1, 99, 100, 101), ["101"]),
            ((1, 101, 102), ["102", "101"]),
        ],
    )
    def test_by_count_and_age_but_never_the_newest(
        self, ages: tuple[int, ...], gone: list[str]
    ) -> None:
        expired = Retention(3, 100).expired(self.infos(*ages), 10_000 * 1_000_000)
        assert [each.snapshot_id for each in expired] == gone


Damage = Callable[[SnapshotDirectory, SnapshotInfo], None]


def damage_size(shelf: SnapshotDirectory, made: SnapshotInfo) -> None:
    with shelf.rows_file(made).open("ab") as file:
        file.write(b"{}\n")


def damage_rows_gone(shelf: SnapshotDirectory, made: SnapshotInfo) -> None:
    shelf.rows_file(made).unlink()


def linked(target: str, suffix: str) -> Damage:
    """A file that can't be read: of this process's memory the first byte gives EIO."""

    def damage(shelf: SnapshotDirectory, made: SnapshotInfo) -> None:
        path = shelf.info_file(made).with_suffix(suffix)
        path.unlink()
        path.symlink_to(target.format(path=path))

    return damage


def info_damaged(change: Callable[[bytes], bytes]) -> Damage:
    def damage(shelf: SnapshotDirectory, made: SnapshotInfo) -> None:
        path = shelf.info_file(made)
        path.write_bytes(change(path.read_bytes()))

    return damage


damage_info_empty = info_damaged(lambda _: b"{}")


def damage_info_of_another(shelf: SnapshotDirectory, made: SnapshotInfo) -> None:
    shelf.info_file(made).write_bytes(replace(made, sequence=made.sequence + 1).to_bytes())


@pytest.mark.parametrize(
    "damage",
    [
        damage_size,
        damage_rows_gone,
        damage_info_empty,
        damage_info_of_another,
        linked("/proc/self/mem", ".json"),
        linked("{path}", ".jsonl"),
        info_damaged(lambda info: info[:40]),
        info_damaged(lambda _: b"[1]"),
        info_damaged(lambda info: info.replace(b"0/19F", b"x/19F")),
        info_damaged(lambda info: info.replace(b'"format": 1', b'"format": 2')),
    ],
)
def test_a_damaged_snapshot_is_left_out_with_one_log_line(
    store: Store, table: int, shelf: SnapshotDirectory, damage: Damage
) -> None:
    made = take_now(store, shelf).snapshot
    change(store, table)
    good = take_now(store, shelf).snapshot
    damage(shelf, made)
    with capture_logs() as logs:
        for _ in range(3):
            assert shelf.snapshots() == [good]
    assert len(logs) == 1
    assert logs[0]["log_level"] == "warning"
    assert str(shelf.path) in logs[0]["error"]
    with pytest.raises(SnapshotUnknown):
        shelf.find(made.snapshot_id)
    change(store, table)
    assert take_now(store, shelf).written


@pytest.mark.parametrize(
    "damage",
    [
        damage_size,
        damage_rows_gone,
        damage_info_empty,
        damage_info_of_another,
        linked("{path}", ".jsonl"),
    ],
)
@pytest.mark.parametrize("keep", [KEEP, Retention(100, 3600)], ids=["count", "age"])
def test_a_damaged_snapshot_expires(
    store: Store, table: int, shelf: SnapshotDirectory, damage: Damage, keep: Retention
) -> None:
    made = take_now(store, shelf, keep).snapshot
    damage(shelf, made)
    foreign = shelf.path / "notes.json", shelf.path / "old-0_19F000-1.json"
    for path in foreign:
        path.write_bytes(b"{}")
    for _ in range(2):
        change(store, table)
        take_now(store, shelf, keep)
    assert shelf.info_file(made).exists()
    if keep is not KEEP:
        for path in (*foreign, shelf.info_file(made)):
            os.utime(path, (0, 0))
    change(store, table)
    take_now(store, shelf, keep)
    assert not shelf.info_file(made).exists() and not shelf.rows_file(made).exists()
    assert len(shelf.snapshots()) == 3
    assert all(path.exists() for path in foreign)


def test_damage_of_the_same_size_is_found_while_reading(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    made = take_now(store, shelf).snapshot
    path = shelf.rows_file(made)
    stored = path.read_bytes()
    path.write_bytes(stored.replace(b'"17"', b'"71"', 1))
    assert shelf.snapshots() == [made]
    with pytest.raises(SnapshotFileDamaged, match="sha256"):
        lines_of(shelf, made)
    path.write_bytes(stored.replace(b"\n", b" ", 1))
    with pytest.raises(SnapshotFileDamaged, match="2999 rows, 3000 were written"):
        lines_of(shelf, made)
    linked("/proc/self/mem", ".jsonl")(shelf, made)
    with pytest.raises(SnapshotFileDamaged, match=r"can't be read \(Input/output error\)"):
        lines_of(shelf, made)


def test_reading_goes_on_while_the_snapshot_is_removed(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    made = take_now(store, shelf).snapshot
    reading = shelf.read(made, 100)
    first = next(reading)
    for _ in range(3):
        change(store, table)
        take_now(store, shelf)
    assert made not in shelf.snapshots()
    assert len(first) + sum(map(len, reading)) == 3000


def test_a_directory_that_is_not_there_has_no_snapshots(tmp_path: Path) -> None:
    shelf = SnapshotDirectory(tmp_path / "none")
    assert shelf.snapshots() == []
    assert shelf.newest() is None
    assert not shelf.path.exists()


def test_a_directory_that_cannot_be_read_is_left_out_with_one_log_line(tmp_path: Path) -> None:
    shelf = SnapshotDirectory(tmp_path / ("too long a name" * 20))
    with capture_logs() as logs:
        assert shelf.snapshots() == shelf.snapshots() == []
    (line,) = logs
    assert "can't be read (File name too long)" in line["error"]


def test_tables_that_cannot_be_taken(store: Store, shelf: SnapshotDirectory) -> None:
    with pytest.raises(TableUnknown):
        take_now(store, shelf)
    with store.transaction() as transaction:
        transaction.add_table("public", "users", 1, COLUMNS)
    with pytest.raises(TableHidden, match="copying"):
        take_now(store, shelf)
    assert shelf.snapshots() == []


def test_two_processes_do_not_write_into_one_directory(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    shelf.path.mkdir(parents=True)
    with (shelf.path / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SnapshotBusy, match=r"store_config\.path"):
            take_now(store, shelf)
    assert take_now(store, shelf).written


def test_a_directory_that_cannot_be_made(store: Store, table: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SnapshotUnwritable, match="Not a directory"):
        take(store.reader(), TABLE, tmp_path / "file" / "snapshots", KEEP)


WRITER = """
import sys
from pathlib import Path
from laredo_fanout.snapshots import Retention
from laredo_fanout.snapshots import take
from laredo_fanout.store.reader import StoreReader
with StoreReader.open(sys.argv[1]) as reader:
    print("taking", flush=True)
    take(reader, "public.users", Path(sys.argv[2]), Retention(2, 3600))
"""


def test_killed_while_writing(store: Store, table: int, shelf: SnapshotDirectory) -> None:
    """Whatever moment a kill -9 hits, the snapshots that are listed are whole."""
    chance = random.Random()
    killed = 0
    for n in range(5):
        steps = [update(f"{key:04}", n, "x" * 3000) for key in range(1500)]
        commit(store, table, (store.position + 8, steps))
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(store.path), str(shelf.path)],
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.06))  # the moment of the kill
        os.kill(writer.pid, signal.SIGKILL)
        killed += writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        for each in shelf.snapshots():
            assert len(lines_of(shelf, each)) == 3000
    assert killed
    change(store, table)
    with capture_logs() as logs:
        made = take_now(store, shelf, Retention(1, 3600)).snapshot
    assert shelf.snapshots() == [made]
    left = {path.name for path in shelf.path.iterdir()}
    assert left == {".lock", made.name + ".jsonl", made.name + ".json"}
    assert all(each["event"] == "unfinished snapshot removed" for each in logs)


def on_a_full_disk(directory: Path) -> None:
    """Part of a test that runs on the small tmpfs."""
    with open_store(directory / "store") as store:
        table = live_table(store)
        commit(store, table, (10, [insert("small", 1)]))
        shelf = SnapshotDirectory(directory / "snapshots")
        good = take_now(store, shelf).snapshot
        steps = [insert(f"{n}", n, "x" * 10_000) for n in range(300)]
        commit(store, table, (20, steps), (30, [delete("small")]))
        ballast = directory / "ballast"
        free = os.statvfs(directory)
        ballast.write_bytes(b"\1" * (free.f_bavail * free.f_bsize - 1_000_000))
        try:
            take_now(store, shelf)
        except SnapshotUnwritable as full:
            assert "No space left" in str(full), full
        else:
            raise AssertionError("it fitted")
        assert shelf.snapshots() == [good]
        assert lines_of(shelf, good) == [row("small", 1)]
        assert not list(shelf.path.glob(".unfinished*"))
        ballast.unlink()
        assert take_now(store, shelf).snapshot.rows == 300


def test_a_full_disk_leaves_the_snapshots_that_are_there(tmp_path: Path) -> None:
    run_on_a_tmpfs(tmp_path, "64m", "tests.fanout.snapshots.test_snapshots")


if __name__ == "__main__":
    on_a_full_disk(Path(sys.argv[1]))


def verify(store: Store, table: int, position: int) -> None:
    with store.transaction() as transaction:
        transaction.set_verified(table, position)


def take_within(store: Store, shelf: SnapshotDirectory, seconds: float) -> TakenSnapshot:
    return take(store.reader(), TABLE, shelf.path, KEEP, verified_within_s=seconds)


def test_it_waits_until_its_position_is_verified(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    verify(store, table, POSITION - 1)
    taken: list[TakenSnapshot] = []
    taking = threading.Thread(target=lambda: taken.append(take_within(store, shelf, 30)))
    taking.start()
    wait_until(lambda: list(shelf.path.glob("[!.]*")), "the rows are written")
    assert shelf.newest() is None
    verify(store, table, POSITION)
    taking.join()
    assert taken[0].written
    assert shelf.newest() == taken[0].snapshot


def test_it_is_given_up_without_a_catalog_check_and_when_the_table_is_closed(
    store: Store, table: int, shelf: SnapshotDirectory
) -> None:
    with pytest.raises(SnapshotUnverified, match="no catalog check has verified that position"):
        take_within(store, shelf, 0.1)
    assert shelf.newest() is None
    with store.transaction() as transaction:
        closed = replace(store.tables[table], status=Status.CLOSED, closed_at=POSITION)
        transaction.put_table(closed)
    with pytest.raises(SnapshotUnverified, match="it is closed"):
        take_within(store, shelf, 30)
    assert shelf.newest() is None
