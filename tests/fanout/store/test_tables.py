"""Incarnations: a table copied anew beside the one that is shown, and what is left of the old."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from laredo_fanout.store.errors import TableClosed, TableHidden, TableUnknown
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from laredo_model.column import Column
from tests.support.server.store_sample import (
    COLUMNS,
    TRUNCATION,
    apply,
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
)

NEW_COLUMNS = (*COLUMNS, Column("extra", "int4", ordinal=4))


def entries_in(store: Store, name: str) -> int:
    """Number of keys in a named database, of all tables."""
    with store._environment.begin() as transaction:
        count: int = transaction.stat(getattr(store._databases, name))["entries"]
    return count


def reclaim(store: Store, step: int) -> int:
    steps = 0
    while removed := store.reclaim(step):
        assert removed <= step + 300  # a journal record counts as a hundred rows
        steps += 1
    return steps


@pytest.mark.parametrize("dropped", [False, True])
def test_a_clock_that_is_set_back_gives_no_sequence_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch, dropped: bool
) -> None:
    table = live_table(store)
    commit(store, table, (5, [insert("1", 1), insert("2", 2)]))
    before = store.tables[table].sequence
    monkeypatch.setattr("laredo_fanout.store.writer.time", lambda: 1e9)
    with store.transaction() as transaction:
        if dropped:
            transaction.drop_table(table)
        after = transaction.add_table("public", "users", 7, COLUMNS)
        assert after.sequence > before
        assert after.oldest_sequence == after.sequence + 1


def test_a_table_is_not_shown_before_its_barrier(store: Store) -> None:
    with store.transaction() as transaction:
        table = transaction.add_table("public", "users", 7, COLUMNS, copy={"token": "t"}).id
        transaction.set_position(5, 0)
    view = store.reader().table("public.users")
    assert (view.id, view.shown, view.status) == (table, False, Status.COPYING)
    with pytest.raises(TableHidden, match=r"public\.users is copying"):
        store.reader().snapshot(table)
    with store.transaction() as transaction:
        transaction.publish(table, 10, 77)
        transaction.set_position(10, 0)
    view = store.reader().table("public.users")
    assert (view.shown, view.live, view.floor, view.position) == (True, True, 10, 10)
    assert store.time_us == view.time_us == 77
    with store.transaction() as transaction, pytest.raises(TableClosed, match="a barrier"):
        transaction.publish(table, 20, 0)


def test_what_the_source_noted_is_there_after_a_restart(tmp_path: Path) -> None:
    with open_store(tmp_path) as store, store.transaction() as transaction:
        made = transaction.add_table("public", "users", 7, COLUMNS, identity="default")
        progress = {"ranges": [["1", "9"]], "token": "x"}
        transaction.put_table(replace(made, copy=progress, error="e"))
    with open_store(tmp_path) as store:
        assert store.tables[made.id] == replace(made, copy=progress, error="e")


def test_put_table_keeps_the_figures(store: Store) -> None:
    table = live_table(store)
    stale = store.tables[table]
    with store.transaction() as transaction:
        apply(transaction, table, (10, [insert("a", 1)]))
        transaction.put_table(replace(stale, identity="full"))
    assert store.tables[table].rows == 1
    assert store.tables[table].sequence == stale.sequence + 1
    assert store.tables[table].identity == "full"


def test_a_changed_schema_switches_at_the_new_barrier(store: Store) -> None:
    old = live_table(store)
    commit(store, old, (10, [insert("a", 1)]))
    sequence = store.tables[old].sequence
    with store.transaction() as transaction:
        closed = replace(transaction.tables[old], status=Status.CLOSED, closed_at=10)
        transaction.put_table(closed)
        new = transaction.add_table("public", "users", 1, NEW_COLUMNS).id
        transaction.apply(new, changes((20, [insert("b", 1)])))
        transaction.set_position(20, 0)
    view = store.reader().table("public.users")
    assert (view.id, view.position, view.live, view.shown) == (old, 10, False, True)
    assert state_of(store.reader(), old) == {b"a": row("a", 1)}

    with store.transaction() as transaction:
        transaction.publish(new, 30, 0)
        transaction.set_position(30, 0)
    view = store.reader().table("public.users")
    assert (view.id, view.floor, view.position) == (new, 30, 30)
    assert view.columns == NEW_COLUMNS
    assert store.tables[new].incarnation == 2
    # One sequence is the schema change's own.
    assert (view.sequence, view.oldest_sequence) == (sequence + 1, sequence + 2)
    with pytest.raises(TableUnknown):
        store.reader().table_by_id(old)
    commit(store, new, (40, [insert("c", 1)]))
    assert [entry[:2] for entry in journal_of(store.reader(), new)] == [(sequence + 2, 40)]


def test_a_failed_table_is_not_shown(store: Store) -> None:
    table = live_table(store)
    with store.transaction() as transaction:
        record = transaction.tables[table]
        transaction.put_table(replace(record, status=Status.FAILED, error="no identity"))
    view = store.reader().table("public.users")
    assert (view.shown, view.error) == (False, "no identity")


@pytest.mark.parametrize("block", [1, 3, 64])
@pytest.mark.parametrize("seed", range(6))
def test_differences_are_found_wherever_they_lie(
    store: Store, block: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.store.barrier._BLOCK", block)
    dice = random.Random(seed)
    names = [f"k{number:03}" for number in range(400)] + ["k" * 700]
    live = {name: 1 for name in names if dice.random() < 0.9}
    copied = dict(live)
    for name in dice.sample(names, dice.choice([0, 1, 5, 100])):
        if name in copied and dice.random() < 0.5:
            del copied[name]
        else:
            copied[name] = 2
    table = live_table(store)
    commit(store, table, (10, [insert(name, value) for name, value in live.items()]))
    # Of another table, right behind: it must not be taken for this one's.
    other = live_table(store, "other")
    commit(store, other, (11, [insert(name, 1) for name in names]))
    before = state_of(store.reader(), table)
    after = store.tables[table].sequence
    looks = 0

    def between() -> None:
        nonlocal looks
        looks += 1

    with store.transaction() as transaction:
        copy = transaction.add_table("public", "users", 1, COLUMNS).id
        lines = [row(name, value) for name, value in copied.items()]
        transaction.fill(copy, [name.encode() for name in copied], lines)
        differing = transaction.publish_differences(copy, 30, 33, between)
        transaction.set_position(30, 33)
    reader = store.reader()
    expected = {name.encode(): row(name, value) for name, value in copied.items()}
    assert state_of(reader, table) == expected
    added = journal_of(reader, table, after)
    assert fold(added, before) == expected
    found = {entry[2].key.decode() for entry in added}
    assert found == {name for name in names if live.get(name) != copied.get(name)}
    assert len(added) == len(found) == differing
    assert {entry[1] for entry in added} <= {30}
    opens = [each.open for each in reader.journal(table, after, 1 << 30)]
    assert opens == [True] * (len(opens) - 1) + [False] * bool(opens)
    assert looks >= len(live) // block
    assert copy not in store.tables
    reclaim(store, 1000)
    assert entries_in(store, "state") == len(expected) + len(names)


def test_differences_need_a_live_table(store: Store) -> None:
    with store.transaction() as transaction:
        copy = transaction.add_table("public", "users", 1, COLUMNS).id
        with pytest.raises(TableUnknown, match="that is live"):
            transaction.publish_differences(copy, 20, 0)


@pytest.mark.parametrize("step", [7, 1000])
def test_what_dropped_tables_left_goes_in_steps(store: Store, step: int) -> None:
    kept, gone = live_table(store, "kept"), live_table(store, "gone")
    with store.transaction() as transaction:
        copying = transaction.add_table("public", "copying", 1, COLUMNS).id
        for table in (kept, gone, copying):
            apply(transaction, table, (10, [insert(f"{n}", n) for n in range(30)]))
        apply(transaction, copying, (20, [delete("x"), delete("y")]))
    with store.transaction() as transaction:
        transaction.drop_table(gone)
        transaction.drop_table(copying)
    assert entries_in(store, "state") == 92
    assert reclaim(store, step) > (5 if step == 7 else 0)
    assert entries_in(store, "state") == 30
    assert [entries_in(store, name) for name in ("marks", "journal", "olds", "positions")] == [
        0,
        1,
        1,
        1,
    ]
    assert len(state_of(store.reader(), kept)) == 30


def test_a_truncated_table_is_empty_at_once_and_its_rows_go_later(store: Store) -> None:
    table = live_table(store)
    commit(store, table, (10, [insert(f"{n}", n) for n in range(300)]))
    snapshot = store.reader().snapshot(table)
    commit(store, table, (20, [TRUNCATION, insert("new", 1)]))
    assert state_of(store.reader(), table) == {b"new": row("new", 1)}
    assert entries_in(store, "state") == 301
    reclaim(store, 50)
    assert entries_in(store, "state") == 1
    assert sum(len(keys) for keys, _ in snapshot.batches()) == 300
    snapshot.close()


def test_removal_goes_on_after_a_restart(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        table = live_table(store)
        commit(store, table, (10, [insert(f"{n}", n) for n in range(300)]))
        commit(store, table, (20, [TRUNCATION]))
        store.reclaim(100)
    with open_store(tmp_path) as store:
        reclaim(store, 100)
        assert entries_in(store, "state") == 0


def test_a_dropped_table_can_come_again(store: Store) -> None:
    first = live_table(store)
    commit(store, first, (10, [insert("a", 1)]))
    sequence = store.tables[first].sequence
    with store.transaction() as transaction:
        transaction.drop_table(first)
    with pytest.raises(TableUnknown, match=r"public\.users"):
        store.reader().table("public.users")
    second = live_table(store)
    assert second != first
    assert store.tables[second].sequence > sequence
    assert state_of(store.reader(), second) == {}
