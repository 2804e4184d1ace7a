"""Changes out of commit order: whatever comes before its turn, in the end it is as if it hadn't."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from tests.fanout.store.sample import (
    INSERT,
    TRUNCATION,
    UPDATE,
    Step,
    changes,
    delete,
    insert,
    live_table,
    open_store,
    partial,
    row,
    state_of,
    update,
)

LONG = "k" * 490


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all examples: making one takes longer than all that is done with it."""
    with open_store(tmp_path_factory.mktemp("early")) as opened:
        yield opened


class Steps:
    """One row's changes, given one by one; the table is right when all have come."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._base = store.reach
        self.table = live_table(store, "users", self._base)
        with store.transaction() as transaction:
            made = changes((self._base + 1, [insert("a", 1, 1)]))
            transaction.apply(self.table, made)
            transaction.set_position(self._base + 1, 0)

    def early(self, position: int, *steps: Step) -> None:
        with self._store.transaction() as transaction:
            made = changes((self._base + position, steps))
            assert transaction.fits_early(self.table, made)
            transaction.apply_early(self.table, made)

    def in_turn(self, position: int, *steps: Step) -> None:
        with self._store.transaction() as transaction:
            transaction.apply(self.table, changes((self._base + position, steps)))
            transaction.set_position(self._base + position, 0)

    def come(self, position: int) -> dict[bytes, bytes]:
        """All has come; the rows."""
        with self._store.transaction() as transaction:
            transaction.set_position(self._base + position, 0)
        record = self._store.tables[self.table]
        assert record.disorder is None and record.disorders
        return state_of(self._store.reader(), self.table)


def _unsent(key: str, value: int) -> Step:
    return UPDATE, key, partial(key, value)


def test_borrowed_column_is_put_right_by_what_it_skipped(store: Store) -> None:
    steps = Steps(store)
    steps.early(20, _unsent("a", 20))
    steps.early(30, _unsent("a", 30))
    steps.in_turn(10, update("a", 10, 10))
    assert steps.come(30) == {b"a": row("a", 30, 10)}


def test_borrowed_column_takes_the_newest_of_what_it_skipped(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, _unsent("a", 30))
    steps.early(20, update("a", 20, 20))
    steps.in_turn(10, update("a", 10, 10))
    assert steps.come(30) == {b"a": row("a", 30, 20)}


def test_borrowed_column_stays_as_later_changes_of_its_part_had_it(store: Store) -> None:
    steps = Steps(store)
    steps.early(20, update("a", 20, 20))
    steps.early(30, _unsent("a", 30))
    steps.in_turn(10, update("a", 10, 10))
    assert steps.come(30) == {b"a": row("a", 30, 20)}


def test_row_that_is_to_come_keeps_its_columns(store: Store) -> None:
    """It was deleted and inserted again before the update that came early."""
    steps = Steps(store)
    steps.early(30, _unsent("a", 30))
    steps.in_turn(10, delete("a"))
    steps.in_turn(20, insert("a", 20, 20))
    assert steps.come(30) == {b"a": row("a", 30, 20)}


def test_row_without_columns_to_borrow_must_wait(store: Store) -> None:
    steps = Steps(store)
    # It goes before "a" moves to its place, which is still to come.
    steps.in_turn(5, insert("gone", 5))
    with store.transaction() as transaction:
        for transactions in (
            [(40, [_unsent("b", 1)])],
            [(40, [delete("a"), _unsent("a", 1)])],
            [(40, [delete("a"), (INSERT, "b", partial("b", 1))])],
            [(40, [delete("a"), (INSERT, "gone", partial("gone", 1))])],
            [(40, [insert("b", 1)]), (50, [delete("b")]), (60, [_unsent("b", 1)])],
            [(40, [TRUNCATION])],
        ):
            assert not transaction.fits_early(steps.table, changes(*transactions))
        late = changes((40, [insert("b", 1)]), (50, [_unsent("b", 1)]))
        assert transaction.fits_early(steps.table, late)


def test_what_came_early_may_come_again_in_its_turn(store: Store) -> None:
    """The segments' plan was given up: the slot's own stream has all of it."""
    steps = Steps(store)
    steps.early(20, _unsent("a", 20), delete("a"))
    steps.early(30, insert("b", 30), update("b", 31, 31), _unsent("b", 32))
    steps.in_turn(10, update("a", 10, 10))
    steps.in_turn(20, _unsent("a", 20), delete("a"))
    steps.in_turn(30, insert("b", 30), update("b", 31, 31), _unsent("b", 32))
    assert steps.come(30) == {b"b": row("b", 32, 31)}


def test_truncate_leaves_what_later_transactions_wrote(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, insert("b", 30), insert("c", 30), insert(LONG, 30))
    steps.early(40, delete("c"))
    steps.in_turn(20, insert("d", 20), TRUNCATION, insert("c", 20), insert("e", 20))
    assert steps.come(40) == {
        key.encode(): row(key, value) for key, value in (("b", 30), ("e", 20), (LONG, 30))
    }


def test_truncate_empties_what_came_early_before_it(store: Store) -> None:
    steps = Steps(store)
    steps.early(20, insert("b", 20))
    steps.early(50, insert("c", 50))
    steps.in_turn(10, insert("d", 10))
    steps.in_turn(30, TRUNCATION)
    assert steps.come(50) == {b"c": row("c", 50)}


def test_many_rows_survive_a_truncate(store: Store) -> None:
    steps = Steps(store)
    keys = [f"k{number}" for number in range(2500)]
    steps.early(30, *(insert(key, 30) for key in keys))
    first = store.tables[steps.table].sequence + 1
    steps.in_turn(20, TRUNCATION, insert("e", 20))
    rows = {key.encode(): row(key, 30) for key in keys} | {b"e": row("e", 20)}
    assert steps.come(30) == rows
    reader = store.reader()
    records = reader.journal(steps.table, first - 1, 1 << 30)
    assert [record.open for record in records] == [True] * (len(records) - 1) + [False]
    assert {record.first_position for record in records} == {records[0].last_position}


def test_pruned_within_it_the_journal_begins_behind_all_that_went(store: Store) -> None:
    steps = Steps(store)
    steps.early(40, insert("b", 40))
    steps.in_turn(20, insert("c", 20))
    steps.in_turn(30, insert("d", 30))
    steps.come(40)
    for kept in (2, 1):
        store.prune(steps.table, kept, 1e12, 0)
        assert store.tables[steps.table].floor == store.position
    record = store.tables[steps.table]
    assert record.entries == 1
    assert not store.reader().table_by_id(steps.table).leads_on_from(store.position - 10)


def test_who_was_before_it_gets_all_of_it(store: Store) -> None:
    """By positions alone the entry that came second would be the first."""
    steps = Steps(store)
    before = store.position
    with store.transaction() as transaction:
        transaction.set_position(before + 5, 0)
    first = store.tables[steps.table].sequence + 1
    steps.early(30, insert("b", 30))
    steps.in_turn(20, insert("c", 20))
    steps.come(30)
    for position in range(before, before + 6):
        assert store.reader().sequence_after_position(steps.table, position) == first


def test_what_came_in_the_same_commit_before_it_is_before_it(store: Store) -> None:
    steps = Steps(store)
    before = store.position
    first = store.tables[steps.table].sequence + 1
    with store.transaction() as transaction:
        transaction.apply(steps.table, changes((before + 10, [insert("b", 10)])))
        transaction.apply_early(steps.table, changes((before + 30, [insert("c", 30)])))
    steps.come(40)
    assert store.reader().sequence_after_position(steps.table, before) == first


def test_row_that_moves_in_its_turn_takes_its_columns_along(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, insert("z", 30))
    steps.in_turn(10, delete("a"), (INSERT, "b", partial("b", 10)))
    assert steps.come(30) == {b"b": row("b", 10, 1), b"z": row("z", 30)}


def test_closed_table_stays_at_no_position(store: Store) -> None:
    steps = Steps(store)
    steps.early(30, insert("b", 30))
    record = store.tables[steps.table]
    with store.transaction() as transaction:
        closed = replace(record, status=Status.CLOSED, closed_at=store.position)
        transaction.put_table(closed)
        transaction.set_position(store.position + 100, 0)
    assert store.reach == store.position
    view = store.reader().table_by_id(steps.table)
    assert view.out_of_order
    assert view.position == record.disorders[-1].start
