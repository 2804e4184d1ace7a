"""The journal: what is true for the state, in records the server only forwards, and pruned."""

import time
from pathlib import Path

import pytest

from laredo_fanout.store.errors import JournalPruned, TransactionOpen
from laredo_fanout.store.journal import MAX_BYTES, MAX_CHANGES
from laredo_fanout.store.reader import RECORD_COST
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import (
    COLUMNS,
    Step,
    changes,
    commit,
    delete,
    fold,
    insert,
    journal_of,
    live_table,
    open_store,
    row,
    state_of,
    update,
)

NEVER_S = 1e9
S = 1_000_000


def test_a_table_in_its_copy_has_no_entries(store: Store) -> None:
    with store.transaction() as transaction:
        table = transaction.add_table("public", "t", 1, COLUMNS).id
        transaction.apply(table, changes((10, [insert("a", 1)])))
        transaction.publish(table, 20, 0)
    view = store.reader().table_by_id(table)
    assert (view.entries, view.floor) == (0, 20)
    assert view.oldest_sequence == view.sequence + 1


def test_a_fresh_store_starts_its_sequences_at_the_time(tmp_path: Path) -> None:
    before = int(time.time() * S)
    with open_store(tmp_path) as store:
        table = live_table(store)
        assert before <= store.tables[table].sequence <= int(time.time() * S)


def test_records_end_at_their_limits_and_say_what_goes_on(store: Store, table: int) -> None:
    many: list[Step] = [insert(f"{n}", n) for n in range(2 * MAX_CHANGES + 10)]
    commit(store, table, (10, [insert("first", 1)]), (20, many), (30, [insert("last", 1)]))
    records = store.reader().journal(table, store.tables[table].oldest_sequence - 1, 1 << 30)
    assert [len(each) for each in records] == [MAX_CHANGES, MAX_CHANGES, 12]
    assert [each.open for each in records] == [True, True, False]
    assert [each.continues for each in records] == [False, True, True]
    assert [each.decode().open for each in records] == [True, True, False]
    assert [list(each.decode().counts) for each in records] == [[1, 1499], [1500], [11, 1]]
    assert [(each.first_position, each.last_position) for each in records] == [
        (10, 20),
        (20, 20),
        (20, 30),
    ]


def test_a_transaction_that_ends_with_a_record_leaves_it_whole(store: Store, table: int) -> None:
    commit(
        store, table, (10, [insert(f"{n}", n) for n in range(MAX_CHANGES)]), (20, [insert("x", 1)])
    )
    records = store.reader().journal(table, store.tables[table].oldest_sequence - 1, 1 << 30)
    assert [(each.open, each.continues) for each in records] == [(False, False), (False, False)]


@pytest.mark.parametrize("old", [False, True])
def test_records_of_big_rows_stay_small_enough(store: Store, table: int, old: bool) -> None:
    big = "x" * 100_000
    keys = [f"{n}" for n in range(30)]
    if old:
        commit(store, table, *[(5 + n, [insert(key, 1, big)]) for n, key in enumerate(keys)])
    after = store.tables[table].sequence
    commit(store, table, (100, [delete(key) if old else insert(key, 1, big) for key in keys]))
    records = store.reader().journal(table, after, 1 << 30)
    assert len(records) == 4
    for each in records:
        assert len(each.body) < MAX_BYTES + 1000
        assert len(each.old_body) < MAX_BYTES + 1000


def test_one_row_beyond_every_limit_still_goes_in(store: Store, table: int) -> None:
    commit(store, table, (10, [insert("a", 1, "x" * 3 * MAX_BYTES), insert("b", 1)]))
    commit(store, table, (20, [update("a", 2)]))
    records = store.reader().journal(table, store.tables[table].oldest_sequence - 1, 1)
    assert [len(each) for each in records] == [1]
    assert fold(journal_of(store.reader(), table), {}) == state_of(store.reader(), table)


def test_pieces_of_one_transaction_are_one_transaction(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        transaction.apply(table, changes((10, [insert("a", 1)]), is_open=True))
        transaction.apply(table, changes((10, [insert("b", 1)]), is_open=True))
        transaction.apply(table, changes((10, [insert("c", 1)]), (20, [insert("d", 1)])))
        transaction.set_position(20, 20)
    records = store.reader().journal(table, store.tables[table].oldest_sequence - 1)
    assert [(each.open, each.continues) for each in records] == [
        (True, False),
        (True, True),
        (False, True),
    ]
    assert list(records[2].decode().counts) == [1, 1]


def test_an_empty_piece_ends_a_transaction(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        transaction.apply(table, changes((10, [insert("a", 1)]), is_open=True))
        transaction.apply(table, changes())
    (record,) = store.reader().journal(table, store.tables[table].oldest_sequence - 1)
    assert not record.open
    assert not record.decode().open
    assert list(record.decode().lines) == [row("a", 1)]


def test_a_transaction_is_never_committed_in_the_middle(store: Store, table: int) -> None:
    with pytest.raises(TransactionOpen, match=r"public\.users"), store.transaction() as transaction:
        transaction.apply(table, changes((10, [insert("a", 1)]), is_open=True))
    assert store.reader().table_by_id(table).entries == 0
    assert state_of(store.reader(), table) == {}


def test_reading_starts_anywhere_in_a_record(store: Store, table: int) -> None:
    commit(
        store,
        table,
        (10, [insert("a", 1), insert("b", 1)]),
        (20, [update("a", 2), delete("b"), insert("c", 1)]),
    )
    commit(store, table, (30, [insert("d", 1), insert("e", 1)]))
    commit(store, table, (40, [insert("f", 1)]))
    whole = journal_of(store.reader(), table)
    assert len(whole) == 8
    first = whole[0][0]
    for skipped in range(9):
        assert journal_of(store.reader(), table, first - 1 + skipped) == whole[skipped:]
    cut = store.reader().journal(table, first)[0]
    assert (cut.continues, list(cut.decode().counts)) == (True, [1, 3])
    cut = store.reader().journal(table, first + 1)[0]
    assert (cut.continues, list(cut.decode().counts), cut.first_position) == (False, [3], 20)
    assert store.reader().journal(table, first + 7) == []


def test_reading_without_old_rows(store: Store, table: int) -> None:
    commit(store, table, (10, [insert("a", 1)]), (20, [update("a", 2), delete("a")]))
    first = store.tables[table].oldest_sequence
    for after in (first - 1, first):
        (record,) = store.reader().journal(table, after, with_old=False)
        assert record.old_body == b""
        assert list(record.decode().old_lines) == []
        assert list(record.decode().lines)[-2:] == [row("a", 2), b""]


def test_a_record_body_and_its_old_rows_are_one_message(store: Store, table: int) -> None:
    commit(store, table, (10, [insert("a", 1)]), (20, [update("a", 2)]))
    (record,) = store.reader().journal(table, store.tables[table].oldest_sequence - 1)
    assert record.decode().SerializeToString() == record.body + record.old_body


def test_reading_stops_at_about_max_bytes(store: Store, table: int) -> None:
    for position in range(10, 20):
        commit(store, table, (position, [insert(str(position), 1, "x" * 1000)]))
    after = store.tables[table].oldest_sequence - 1
    assert len(store.reader().journal(table, after, 1)) == 1
    assert len(store.reader().journal(table, after, 3500 + 3 * RECORD_COST)) == 3
    assert len(journal_of(store.reader(), table, after, 3500)) == 10


def test_entries_are_found_by_position(store: Store, table: int) -> None:
    first = store.tables[table].oldest_sequence
    many = [insert(f"{n}", n) for n in range(MAX_CHANGES)]
    commit(store, table, (10, [insert("a", 1)]), (20, [insert("b", 1), insert("c", 1)]))
    commit(store, table, (30, [insert("d", 1)]), (40, many), (50, [insert("e", 1)]))
    found = store.reader().sequence_after_position
    end = first + 3 + 1 + MAX_CHANGES + 1
    for position, beyond, at in [
        (5, 0, 0),
        (10, 1, 0),
        (15, 1, 1),
        (20, 3, 1),
        (30, 4, 3),
        (40, 4 + MAX_CHANGES, 4),
        (50, end - first, 4 + MAX_CHANGES),
        (60, end - first, end - first),
    ]:
        assert found(table, position) == first + beyond
        assert found(table, position, inclusive=True) == first + at


class TestPruning:
    """By whole transactions, never the newest one; by entries, and for pins, see test_model.py."""

    @pytest.fixture
    def ten(self, store: Store, table: int) -> int:
        """Ten transactions of two entries, positions and seconds 10..100, in three records."""
        numbers = list(range(1, 11))
        for part in (numbers[:4], numbers[4:7], numbers[7:]):
            piece = changes(*[(10 * n, [insert(f"{n}a", 1), insert(f"{n}b", 1)]) for n in part])
            piece.times_us = [10 * n * S for n in part]
            with store.transaction() as transaction:
                transaction.apply(table, piece)
        return store.tables[table].oldest_sequence

    @pytest.mark.parametrize(("now", "kept"), [(50, 20), (110, 20), (115, 18), (165, 8), (9999, 2)])
    def test_by_age(self, store: Store, table: int, ten: int, now: int, kept: int) -> None:
        store.prune(table, 1000, 100, now)
        view = store.reader().table_by_id(table)
        assert (view.entries, view.oldest_sequence) == (kept, ten + 20 - kept)
        assert view.floor == (20 - kept) // 2 * 10
        if kept < 20:
            assert view.record.oldest_time_us == (view.floor + 10) * S

    def test_what_went_is_refused(self, store: Store, table: int, ten: int) -> None:
        store.prune(table, 10, NEVER_S, 0)
        with pytest.raises(JournalPruned, match=rf"public\.users.*begins at {ten + 10}"):
            store.reader().journal(table, ten + 8)
        assert len(journal_of(store.reader(), table, ten + 9)) == 10

    def test_a_giant_transaction_goes_as_a_whole(self, store: Store, table: int) -> None:
        giant = [insert(f"{n}", n) for n in range(3 * MAX_CHANGES)]
        commit(store, table, (10, [insert("a", 1)]), (20, giant))
        assert store.prune(table, 10, NEVER_S, 0) == 1
        commit(store, table, (30, [insert("b", 1)]))
        assert store.prune(table, 10, NEVER_S, 0) == 3 * MAX_CHANGES
        assert [entry[1] for entry in journal_of(store.reader(), table)] == [30]
        assert store.tables[table].floor == 20

    def test_many_records_go_in_steps_and_all_of_them(self, store: Store, table: int) -> None:
        with store.transaction() as transaction:
            for n in range(200):
                transaction.apply(table, changes((10 + n, [insert(f"{n}", n)])))
        assert store.prune(table, 5, NEVER_S, 0) == 195
        assert len(journal_of(store.reader(), table)) == 5
        with store._environment.begin() as transaction:
            for name in ("journal", "olds", "positions"):
                database = getattr(store._databases, name)
                assert transaction.stat(database)["entries"] == 5


@pytest.mark.parametrize(
    "pieces",
    [
        (
            changes((10, [insert("a", 1)]), is_open=True),
            changes((10, [delete("unknown")])),
            changes((20, [delete("a")])),
        ),
        (
            changes((10, [insert("a", 1)]), (20, [delete("unknown")]), is_open=True),
            changes((20, [insert("b", 1)])),
        ),
    ],
    ids=["the rest of an open transaction", "an open piece"],
)
def test_what_has_no_effect_neither_opens_a_transaction_nor_keeps_it_open(
    store: Store, table: int, pieces: tuple[TableChanges, ...]
) -> None:
    with store.transaction() as transaction:
        for piece in pieces:
            transaction.apply(table, piece)
        transaction.set_position(20, 20)
    records = store.reader().journal(table, store.tables[table].oldest_sequence - 1)
    assert [(each.open, each.continues) for each in records] == [(False, False)] * 2
    assert store.prune(table, 0, 1e12, 0, None) == 1
