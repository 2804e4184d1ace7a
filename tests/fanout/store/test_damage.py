"""Bytes of the store that changed on disk: they are found before anybody relies on them."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from laredo_fanout.app.processes.scrub_process import scrub
from laredo_fanout.store import data_file, environment, journal
from laredo_fanout.store.barrier import CopyComparison
from laredo_fanout.store.errors import (
    JournalDamaged,
    JournalPruned,
    RowDamaged,
    RowsDamaged,
    StoreDamaged,
    StoreError,
    StoreLimited,
)
from laredo_fanout.store.reader import Snapshot, StoreReader
from laredo_fanout.store.scrub import TableScrub
from laredo_fanout.store.transaction import Transaction
from laredo_fanout.store.writer import Store
from tests.support import drawn
from tests.support.forked import forking
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server import rot
from tests.support.server.store_sample import (
    COLUMNS,
    TRUNCATION,
    Step,
    apply,
    changes,
    commit,
    delete,
    insert,
    journal_of,
    live_table,
    open_store,
    row,
    state_of,
    update,
)

ROWS = {f"key-{n:03}": f"value-{n:03}" for n in range(100)}


@contextmanager
def rotten(path: Path, place: bytes, at: int = 0) -> Iterator[tuple[Store, int]]:
    """A store of a hundred rows whose rows rotted at ``place``; its journal was pruned before."""
    with filled(path, commits=2) as (store, table):
        store.prune(table, 1, 1e9, 0.0)
    rot.flip(path, place, at=at)
    with open_store(path) as store:
        yield store, table


@contextmanager
def filled(path: Path, commits: int = 1) -> Iterator[tuple[Store, int]]:
    """A store of a hundred rows, each a transaction of its own, in that number of commits."""
    with open_store(path) as store:
        table = live_table(store)
        inserted = [(n, [insert(*each)]) for n, each in enumerate(ROWS.items(), 10)]
        first = len(inserted) - commits + 1
        for transactions in (inserted[:first], *([each] for each in inserted[first:])):
            commit(store, table, *transactions)
        yield store, table


PLACES = {
    "value": (b'{"id":"key-050"', 10),
    "key": (b"\0\0\0\1key-050", 9),
    "prefix of the key": (b"\0\0\0\1key-050", 3),
}


@pytest.mark.parametrize("place", PLACES)
def test_damaged_rows_are_no_snapshot(tmp_path: Path, place: str) -> None:
    with rotten(tmp_path, *PLACES[place]) as (store, table):
        with pytest.raises(RowsDamaged, match=r"public\.users.*damaged on disk"):
            state_of(store.reader(), table)
        with pytest.raises(RowsDamaged):
            list(TableScrub(store.reader(), table).run())


def test_a_missing_row_is_missed(store: Store) -> None:
    """Also if the source has none any more: the readers were never sent its delete."""
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1), insert("b", 2)]))
    with store.transaction() as transaction:
        raw = transaction._context.transaction
        raw.delete(environment.prefix(store.tables[table].space) + b"a", db=store._databases.state)
    with pytest.raises(RowsDamaged, match="1 of 2 rows"):
        state_of(store.reader(), table)
    with pytest.raises(RowsDamaged):
        list(TableScrub(store.reader(), table).run())
    with pytest.raises(RowsDamaged), store.transaction() as transaction:
        copy = transaction.add_table("public", "users", 1, COLUMNS).id
        transaction.fill(copy, [b"b"], [row("b", 2)])
        transaction.publish_differences(copy, 20, 0)


@pytest.mark.parametrize("step", [update("key-050", "new"), delete("key-050")])
def test_a_damaged_row_is_nobody_s_old_row(tmp_path: Path, step: Step) -> None:
    with rotten(tmp_path, *PLACES["value"]) as (store, table):
        before = store.tables[table]
        with pytest.raises(RowDamaged, match="key-050"):
            commit(store, table, (1000, [step]))
        assert store.tables[table] == before


def copied(transaction: Transaction, more: dict[str, str]) -> int:
    copy = transaction.add_table("public", "users", 1, COLUMNS).id
    rows = ROWS | more
    lines = [row(key, value) for key, value in rows.items()]
    transaction.fill(copy, [key.encode() for key in rows], lines)
    return copy


@pytest.mark.parametrize("block", drawn.first(1, [20, 1000]))
@pytest.mark.parametrize("place", PLACES)
def test_a_copy_repairs_rows_without_a_change_for_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, block: int
) -> None:
    """They have the right rows already: the running checksum is that of their rows."""
    monkeypatch.setattr("laredo_fanout.store.barrier._BLOCK", block)
    with rotten(tmp_path, *PLACES[place]) as (store, table):
        with store.transaction() as transaction:
            transaction.put_table(replace(transaction.tables[table], damage="found"))
        with pytest.raises(RowsDamaged, match="found"):
            store.reader().snapshot(table)
        before = store.tables[table]
        with pytest.raises(RowsDamaged) as stale:
            list(_damage_ignored(store, table).batches())
        with store.transaction() as transaction:
            copy = copied(transaction, {})
            assert transaction.publish_differences(copy, 2000, 0) > 0
        assert state_of(store.reader(), table) == {
            key.encode(): row(key, value) for key, value in ROWS.items()
        }
        after = store.tables[table]
        assert (after.sequence, after.rows, after.damage) == (before.sequence, 100, "")
        assert stale.value.damage.space == before.space != after.space, (
            "a late report is known by it"
        )
        assert copy not in store.tables
        while store.reclaim():
            pass
        commit(store, table, (3000, [update("key-050", "new"), delete("key-051")]))
        assert len(state_of(store.reader(), table)) == 99


def _damage_ignored(store: Store, table: int) -> Snapshot:
    """A snapshot that was begun before the damage was known."""
    with store.transaction() as transaction:
        transaction.put_table(replace(transaction.tables[table], damage=""))
    return store.reader().snapshot(table)


def test_what_the_stream_changes_meanwhile_goes_into_both(tmp_path: Path) -> None:
    with rotten(tmp_path, *PLACES["value"]) as (store, table):
        after = store.tables[table].sequence
        with store.transaction() as transaction:
            copy = copied(transaction, {})
            step = (1000, [update("key-001", "new"), insert("more", 1), delete("key-002")])
            apply(transaction, table, step)
            transaction.apply(copy, changes(step))
            transaction.publish_differences(copy, 2000, 0)
        state = state_of(store.reader(), table)
        assert state[b"key-050"] == row("key-050", "value-050")
        assert state[b"key-001"] == row("key-001", "new")
        assert len(state) == 100
        assert len(journal_of(store.reader(), table, after)) == 3


@pytest.mark.parametrize("place", drawn.first(1, PLACES))
def test_where_more_differs_nobody_knows_the_readers_rows(tmp_path: Path, place: str) -> None:
    with rotten(tmp_path, *PLACES[place]) as (store, table):
        with pytest.raises(RowsDamaged, match="its readers may have"), store.transaction() as made:
            made.publish_differences(copied(made, {"key-003": "another"}), 2000, 0)
        assert len(store.tables) == 1
        assert store.tables[table].sequence


def test_rows_that_are_whole_take_differences_as_changes(store: Store) -> None:
    table = live_table(store)
    commit(store, table, (10, [insert(key, value) for key, value in ROWS.items()]))
    after = store.tables[table].sequence
    with store.transaction() as made:
        assert made.publish_differences(copied(made, {"key-003": "another"}), 2000, 0) == 1
    assert len(journal_of(store.reader(), table, after)) == 1
    assert state_of(store.reader(), table)[b"key-003"] == row("key-003", "another")


OTHER = {"key-003": "another"}


@pytest.mark.parametrize(
    ("rots", "more", "outcome"),
    [(True, {}, (True, True)), (False, OTHER, (True, False)), (True, OTHER, (False, False))],
    ids=["damage", "another row of the source", "both"],
)
def test_a_comparison_goes_on_over_commits_between_its_blocks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rots: bool,
    more: dict[str, str],
    outcome: tuple[bool, bool],
) -> None:
    """A relay commits other tables' changes while it compares a large one."""
    monkeypatch.setattr("laredo_fanout.store.barrier._BLOCK", 10)
    with rotten(tmp_path, *PLACES["value"]) if rots else filled(tmp_path) as (store, table):
        other = live_table(store, "other", store.position)
        with store.transaction() as transaction:
            comparison = CopyComparison(transaction, copied(transaction, more), 2000)
        blocks = 0
        for step in (comparison.compare_block, comparison.prove_block):
            goes_on = True
            while goes_on:
                with store.transaction() as transaction:
                    goes_on = step(transaction)
                    apply(transaction, other, (store.position + 1, [insert(f"{blocks}", 1)]))
                blocks += 1
        assert blocks > 10
        assert (comparison.is_proven, comparison.takes_rows) == outcome
        if comparison.is_proven:
            with store.transaction() as transaction:
                for _ in comparison.publish(transaction, 0):
                    pass
            expected = {key.encode(): row(key, value) for key, value in (ROWS | more).items()}
            assert state_of(store.reader(), table) == expected
            assert comparison.differing == 1


# ---------------------------------------------------------------- the journal


def test_a_damaged_record_is_not_sent_and_dropped(tmp_path: Path) -> None:
    with filled(tmp_path, commits=100) as (store, table):
        first = store.tables[table].oldest_sequence
    # Among the rows a line is right behind its key, in the journal it isn't.
    rot.flip(tmp_path, b'{"id":"key-020"', at=10, unless_after=b"key-020")
    with open_store(tmp_path) as store:
        reader = store.reader()
        assert len(reader.journal(table, first - 1, 1)) == 1
        with pytest.raises(JournalDamaged) as found:
            journal_of(reader, table)
        after = found.value.damage.after
        assert after == first + 19
        with pytest.raises(JournalDamaged):
            list(TableScrub(reader, table).run())
        with store.transaction() as transaction:
            transaction.drop_damaged_journal(table, after)
        kept = store.tables[table]
        assert (kept.oldest_sequence, kept.sequence) == (first + 21, first + 99)
        assert kept.floor == 30, "the damaged record's position is where a reader may resume"
        assert len(journal_of(reader, table)) == 79
        assert reader.sequence_after_position(table, 30) == first + 21
        with pytest.raises(JournalPruned):
            reader.journal(table, first)
        commit(store, table, (3000, [update("key-001", "new")]))
        assert len(journal_of(reader, table)) == 80


def test_a_damaged_newest_record_leaves_an_empty_journal(tmp_path: Path) -> None:
    with filled(tmp_path, commits=100) as (store, table):
        last = store.tables[table].sequence
    rot.flip(tmp_path, b'{"id":"key-099"', at=10, unless_after=b"key-099")
    with open_store(tmp_path) as store:
        with store.transaction() as transaction:
            transaction.drop_damaged_journal(table, last - 1)
        kept = store.tables[table]
        assert (kept.entries, kept.sequence, kept.floor) == (0, last, store.position)
        commit(store, table, (3000, [update("key-001", "new")]))
        assert len(journal_of(store.reader(), table)) == 1


def _lose(transaction: Transaction, table: int, gone: str, position: int, sequence: int) -> None:
    """Delete the entry's record, or its place in the index by position."""
    raw, databases = transaction._context.transaction, transaction._context.databases
    if gone == "journal":
        raw.delete(journal.record_key(table, sequence), db=databases.journal)
    else:
        raw.delete(journal.position_key(table, position, sequence), db=databases.positions)


@pytest.mark.parametrize("gone", ["journal", "positions"])
def test_a_lost_record_or_index_entry_is_noticed(store: Store, gone: str) -> None:
    table = live_table(store)
    for position in (10, 20, 30):
        commit(store, table, (position, [insert(f"{position}", 1)]))
    first = store.tables[table].oldest_sequence
    with store.transaction() as transaction:
        _lose(transaction, table, gone, 20, first + 1)
    with pytest.raises(JournalDamaged):
        store.reader().sequence_after_position(table, 10)
    if gone == "journal":
        with pytest.raises(JournalDamaged):
            journal_of(store.reader(), table)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_damaged_header_doesn_t_end_the_pruning(tmp_path: Path, is_cut: bool) -> None:
    """The ingest prunes, so an unexpected error there would end it after every start."""
    with filled(tmp_path, commits=100) as (store, table):
        first = store.tables[table].oldest_sequence
    key = journal.record_key(table, first + 5)
    if not is_cut:
        rot.flip(tmp_path, key, at=len(key))  # the record's last sequence
    with open_store(tmp_path) as store:
        if is_cut:
            with store.transaction() as transaction:
                context = transaction._context
                context.transaction.put(key, b"cut", db=context.databases.journal)
        for _ in range(5):  # each drops the oldest record, the last one also the damaged record
            with pytest.raises(JournalDamaged) as found:
                store.prune(table, 1, 1e9, 0.0)
            assert found.value.damage.after is not None
            with store.transaction() as transaction:
                transaction.drop_damaged_journal(table, found.value.damage.after)
        assert store.tables[table].oldest_sequence == first + 6
        store.prune(table, 1, 1e9, 0.0)
        assert store.tables[table].entries == len(journal_of(store.reader(), table)) == 1


def test_a_journal_isn_t_dropped_within_a_transaction(store: Store) -> None:
    """A reader at the floor would get the second part of it, and never the first."""
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1)]))
    last = store.tables[table].sequence
    with store.transaction() as transaction:
        transaction.apply(table, changes((20, [insert("b", 1)]), is_open=True))
        assert not transaction.drop_damaged_journal(table, last - 1)
        apply(transaction, table, (20, [insert("c", 1)]))
        assert transaction.drop_damaged_journal(table, last - 1)
    assert store.tables[table].oldest_sequence == last + 1
    assert [change.key for _, _, change in journal_of(store.reader(), table)] == [b"b", b"c"]


@pytest.mark.parametrize("sequence", [1, 1 << 62], ids=["an earlier entry", "no entry"])
def test_an_index_entry_that_points_nowhere_is_removed(store: Store, sequence: int) -> None:
    """Else every reader that resumes by position would be refused, for good."""
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1)]))
    with store.transaction() as transaction:
        raw, databases = transaction._context.transaction, store._databases
        raw.put(journal.position_key(table, 20, sequence), b"", db=databases.positions)
    with pytest.raises(JournalDamaged) as found:
        store.reader().sequence_after_position(table, 11)
    assert found.value.damage.after is not None
    with store.transaction() as transaction:
        transaction.drop_damaged_journal(table, found.value.damage.after)
    newest = store.tables[table].sequence
    assert store.reader().sequence_after_position(table, 11) == newest + 1


@pytest.mark.parametrize("gone", ["journal", "positions"])
def test_a_suspect_range_ends_beyond_a_damaged_journal(store: Store, gone: str) -> None:
    """Its first entry is looked up in the journal; the ingest must not end there."""
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1)]))
    first = store.tables[table].sequence
    with store.transaction() as transaction:
        transaction.set_verified(table, 10)
        transaction.begin_suspect_range(table, "a reason")
    for position in (20, 30):
        commit(store, table, (position, [insert(f"{position}", 1)]))
    with store.transaction() as transaction:
        _lose(transaction, table, gone, 20, first + 1)
        transaction.end_suspect_range(table, 30, 0)
    record = store.tables[table]
    assert record.suspect_range is None
    assert record.oldest_sequence == first + 2


# ---------------------------------------------------------------- the whole store


@pytest.mark.parametrize(
    ("place", "at"), [(b"figures/", 20), (b"definition/", 3), (b'"next_table"', 14)]
)
def test_damaged_definitions_are_damage_to_the_store(tmp_path: Path, place: bytes, at: int) -> None:
    with filled(tmp_path):
        pass
    rot.flip(tmp_path, place, at=at)
    with pytest.raises(StoreDamaged, match=r"is damaged: .* drop its slot"):
        open_store(tmp_path)


@pytest.mark.parametrize("size", [0, 100, 5000, 8192, 1 << 15])
def test_a_truncated_file_is_damaged(tmp_path: Path, size: int) -> None:
    with filled(tmp_path):
        pass
    os.truncate(tmp_path / "data.mdb", size)
    with pytest.raises(StoreDamaged, match="is damaged"):
        open_store(tmp_path)
    assert (tmp_path / "data.mdb").stat().st_size == size


def test_a_file_whose_reading_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each server that is started, although the one before was killed while it waited."""
    with filled(tmp_path):
        pass
    killed = forking().Process(target=open_store, args=(tmp_path,))
    with (tmp_path / "lock.mdb").open("r+b") as held:
        # Another process that opens the environment waits for this lock.
        fcntl.lockf(held, fcntl.LOCK_EX)
        killed.start()
        assert killed.pid is not None
        [reading] = wait_until(psutil.Process(killed.pid).children, "a process reads")
        killed.kill()
        killed.join()
        lock = str(tmp_path / "server.lock")
        wait_until(lambda: lock not in [file.path for file in reading.open_files()], "no lock")
        monkeypatch.setattr(data_file, "PATIENCE_S", 0.5)
        with pytest.raises(StoreLimited, match=r"takes longer than 0.5 s; check its disk"):
            open_store(tmp_path)
    reading.wait(PATIENCE_S)


LIMITED = """
import resource, sys
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.writer import Store
resource.setrlimit(resource.{0}, ({1}, {1}))
try:
    Store.open(sys.argv[1], max_size=1 << 40)
except StoreError as refused:
    print(type(refused).__name__, refused)
"""


@pytest.mark.parametrize(
    ("limit", "most", "cure"),
    [("RLIMIT_AS", 1 << 36, "ulimit -v"), ("RLIMIT_NOFILE", 4, "ulimit -n")],
)
def test_a_limit_is_called_a_limit(tmp_path: Path, limit: str, most: int, cure: str) -> None:
    program = LIMITED.format(limit, most)
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith("StoreLimited"), ended
    assert cure in ended.stdout
    assert "elsewhere" not in ended.stdout


OPENED = """
import sys
from laredo_fanout.store.errors import StoreError
from laredo_fanout.store.writer import Store
try:
    with Store.open(sys.argv[1], max_size=1 << 24) as store:
        with store.transaction() as transaction:
            transaction.set_position(store.position + 1, 0)
    print("opened")
except StoreError as refused:
    print("refused", refused)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(40))
def test_bits_of_the_first_pages_never_end_in_a_traceback(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    with open_store(tmp_path, 1 << 24) as store:
        commit(store, live_table(store), (10, [insert("a", 1)]))
    for _ in range(draw.choice((1, 1, 4, 64))):
        rot.flip_at(tmp_path, draw.randrange(2 * 4096), draw.randrange(8))
    ended = subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended
    assert ended.stdout.startswith(("opened", "refused")), ended


# ---------------------------------------------------------------- the scrub


@pytest.mark.parametrize("seed", range(8))
def test_a_scrub_sees_through_what_changes_meanwhile(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.store.scrub._PART_BYTES", 150)
    draw = random.Random(seed)
    table, position = live_table(store), 10
    commit(store, table, (position, [insert(key, value) for key, value in ROWS.items()]))
    there = set(ROWS)
    scrub = TableScrub(store.reader(), table)
    parts = 0
    for _ in scrub.run():
        parts += 1
        if parts > 60:
            continue
        position += 10
        steps: list[Step] = []
        for key in draw.sample(sorted(ROWS), 5):
            gone = key in there and draw.random() < 0.5
            steps.append(delete(key) if gone else update(key, draw.random()))
            (there.discard if gone else there.add)(key)
        if draw.random() < 0.05:
            steps, there = [TRUNCATION], set()
        commit(store, table, (position, steps))
        if draw.random() < 0.1:
            store.prune(table, 1, 1e9, 0.0)
    assert parts > 2
    assert len(state_of(store.reader(), table)) == len(there)


def test_a_scrub_that_passes_over_known_damage_says_so(store: Store) -> None:
    """Else its end would be taken for that of a whole one."""
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1)]))
    for damage, unrepaired in (("found", 1), ("", 0)):
        with store.transaction() as transaction:
            transaction.put_table(replace(transaction.tables[table], damage=damage))
        *_, end = scrub(store.reader(), {"bytes_per_second": 10**9})
        assert (end["done"], end["unrepaired"]) == (True, unrepaired)


def test_a_reader_opens_what_is_whole_alone(tmp_path: Path) -> None:
    with filled(tmp_path):
        pass
    rot.flip(tmp_path, b'"next_table"', at=14)
    with pytest.raises(StoreError):
        StoreReader.open(tmp_path)
