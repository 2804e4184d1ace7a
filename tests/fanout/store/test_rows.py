"""Copy and stream into one table: who wins, what is filled, what stays."""

from pathlib import Path

import pytest

from laredo_fanout.store import environment
from laredo_fanout.store.errors import ChunkStale, RowIncomplete, TableClosed
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from tests.support.server.store_sample import (
    COLUMNS,
    INSERT,
    TRUNCATION,
    UPDATE,
    apply,
    changes,
    commit,
    delete,
    insert,
    journal_of,
    live_table,
    open_store,
    partial,
    row,
    state_of,
    update,
)


@pytest.fixture
def table(store: Store) -> int:
    """A table in the middle of its copy."""
    with store.transaction() as transaction:
        return transaction.add_table("public", "users", 1, COLUMNS).id


def publish(store: Store, table: int, position: int = 1000) -> dict[bytes, bytes]:
    with store.transaction() as transaction:
        transaction.publish(table, position, 0)
    return state_of(store.reader(), table)


def test_copied_rows_fill_only_absent_keys(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [update("a", "streamed")]))
        added = transaction.fill(table, [b"b", b"a"], [row("b", "copied"), row("a", "copied")])
    assert added == 1
    assert store.tables[table].rows == 2
    assert publish(store, table) == {b"a": row("a", "streamed"), b"b": row("b", "copied")}


def test_a_deleted_row_does_not_come_back_from_the_copy(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [delete("a")]))
        transaction.fill(table, [b"a"], [row("a", "copied")])
    assert store.tables[table].rows == 0
    assert publish(store, table) == {}


def test_a_row_inserted_again_over_its_tombstone_stays_after_the_sweep(
    store: Store, table: int
) -> None:
    with store.transaction() as transaction:
        transaction.fill(table, [b"a"], [row("a", "copied")])
        apply(transaction, table, (10, [delete("a")]), (20, [insert("a", "again")]))
    assert store.tables[table].rows == 1
    assert publish(store, table) == {b"a": row("a", "again")}


def test_the_sweep_leaves_other_tables_tombstones(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        other = transaction.add_table("public", "others", 2, COLUMNS).id
        apply(transaction, table, (10, [delete("a")]))
        apply(transaction, other, (10, [delete("a")]))
        transaction.publish(table, 20, 0)
        assert transaction.fill(other, [b"a"], [row("a", "copied")]) == 0


def test_a_truncate_empties_the_table_and_makes_chunks_stale(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        transaction.fill(table, [b"a", b"b"], [row("a", 1), row("b", 1)], generation=0)
        apply(transaction, table, (10, [delete("b"), TRUNCATION, insert("c", 1)]))
        with pytest.raises(ChunkStale, match=r"public\.users.*generation 0,.*\(generation 1\)"):
            transaction.fill(table, [b"a"], [row("a", 1)], generation=0)
        transaction.fill(table, [b"b"], [row("b", 2)], generation=1)
    assert store.tables[table].rows == 2
    assert publish(store, table) == {b"b": row("b", 2), b"c": row("c", 1)}


def test_copied_columns_fill_only_what_the_stream_did_not_send(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [(UPDATE, "a", partial("a", "streamed"))]))
        assert list(transaction.partial_keys(table)) == [b"a"]
        assert transaction.fill(table, [b"a"], [row("a", "copied", "toast")]) == 0
        assert list(transaction.partial_keys(table)) == []
    assert store.tables[table].rows == 1
    assert publish(store, table) == {b"a": row("a", "streamed", "toast")}


def test_partial_rows_survive_a_restart(tmp_path: Path) -> None:
    with open_store(tmp_path) as store, store.transaction() as transaction:
        table = transaction.add_table("public", "users", 1, COLUMNS).id
        apply(transaction, table, (10, [(UPDATE, "a", partial("a", 1))]), (20, [delete("t")]))
    with open_store(tmp_path) as store:
        with store.transaction() as transaction:
            assert list(transaction.partial_keys(table)) == [b"a"]
            rows = [row("a", 0, "toast"), row("t", 0)]
            transaction.fill(table, [b"a", b"t"], rows)
        assert publish(store, table) == {b"a": row("a", 1, "toast")}


def test_a_partial_update_takes_its_columns_from_the_row(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        transaction.fill(table, [b"a"], [row("a", 0, "toast")])
        apply(transaction, table, (10, [(UPDATE, "a", partial("a", 1))]))
        assert list(transaction.partial_keys(table)) == []
    assert publish(store, table) == {b"a": row("a", 1, "toast")}


def test_a_delete_clears_the_mark_of_a_partial_row(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [(UPDATE, "a", partial("a", 1)), delete("a")]))
        assert list(transaction.partial_keys(table)) == []
        transaction.fill(table, [b"a"], [row("a", 0)])
    assert publish(store, table) == {}


def test_a_table_with_rows_missing_columns_is_not_published(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [(UPDATE, "a", partial("a", 1))]))
        with pytest.raises(RowIncomplete, match=r"public\.users.*b'a'"):
            transaction.publish(table, 20, 0)


def test_a_row_that_the_stream_wrote_moves_with_its_columns(store: Store, table: int) -> None:
    moved = [delete("a"), (INSERT, "z", partial("z", 2))]
    with store.transaction() as transaction:
        apply(transaction, table, (5, [insert("a", 1, "toast")]), (10, moved))
        assert list(transaction.partial_keys(table)) == []
    assert publish(store, table) == {b"z": row("z", 2, "toast")}


def test_a_copied_row_may_be_later_than_its_move(store: Store, table: int) -> None:
    """A chunk's row replaced the moved row, so it lacks the moved row's columns."""
    moved = [delete("a"), (INSERT, "z", partial("z", 2)), insert("a", 3, "another's")]
    with store.transaction() as transaction:
        transaction.fill(table, [b"a"], [row("a", 3, "another's")])
        apply(transaction, table, (10, moved))
        assert list(transaction.partial_keys(table)) == [b"z"]
        transaction.fill(table, [b"z"], [row("z", 2, "toast")])
    assert publish(store, table) == {b"a": row("a", 3, "another's"), b"z": row("z", 2, "toast")}


def test_a_row_moved_before_it_was_copied_stays_partial_until_its_new_key_is_read(
    store: Store, table: int
) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [delete("a"), (INSERT, "z", partial("z", 2))]))
        assert list(transaction.partial_keys(table)) == [b"z"]
        transaction.fill(table, [b"a", b"z"], [row("a", 1, "toast"), row("z", 2, "toast")])
    assert publish(store, table) == {b"z": row("z", 2, "toast")}


def test_a_live_row_moves_with_its_columns_across_pieces(store: Store) -> None:
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1, "toast")]))
    with store.transaction() as transaction:
        transaction.apply(table, changes((20, [delete("a")]), is_open=True))
        transaction.apply(table, changes((20, [(INSERT, "z", partial("z", 2))])))
    assert state_of(store.reader(), table) == {b"z": row("z", 2, "toast")}
    new = [change.new for _, _, change in journal_of(store.reader(), table)]
    assert new[-1] == row("z", 2, "toast")


def test_a_live_table_never_takes_a_partial_row(store: Store) -> None:
    table = live_table(store)
    with pytest.raises(RowIncomplete, match=r"public\.users"):
        commit(store, table, (10, [(UPDATE, "a", partial("a", 1))]))
    assert store.tables[table].rows == 0
    assert state_of(store.reader(), table) == {}


def test_a_partial_update_in_the_same_batch_as_its_insert(store: Store) -> None:
    table = live_table(store)
    commit(store, table, (10, [insert("a", 1, "toast"), (UPDATE, "a", partial("a", 2))]))
    assert state_of(store.reader(), table) == {b"a": row("a", 2, "toast")}


@pytest.mark.parametrize("status", [Status.CLOSED, Status.FAILED])
def test_tables_that_stopped_take_nothing(store: Store, table: int, status: Status) -> None:
    from dataclasses import replace

    with store.transaction() as transaction:
        transaction.put_table(replace(transaction.tables[table], status=status))
        with pytest.raises(TableClosed, match=f"{status}: it can't take changes"):
            apply(transaction, table, (10, [insert("a", 1)]))
        with pytest.raises(TableClosed, match="copied rows"):
            transaction.fill(table, [b"a"], [row("a", 1)])


def test_a_live_table_takes_no_copied_rows(store: Store) -> None:
    table = live_table(store)
    with store.transaction() as transaction, pytest.raises(TableClosed, match="copied rows"):
        transaction.fill(table, [b"a"], [row("a", 1)])


LONG = "k" * 600


@pytest.mark.parametrize("key", ["", "x" * environment.LONGEST_KEY, LONG, LONG + "1", "ü" * 400])
def test_keys_of_any_length(store: Store, table: int, key: str) -> None:
    near = [LONG + "2", "x" * (environment.LONGEST_KEY - 1)]
    with store.transaction() as transaction:
        transaction.fill(
            table, [each.encode() for each in near], [row(each, "near") for each in near]
        )
        apply(transaction, table, (10, [insert(key, 1), update(key, 2)]))
    rows = publish(store, table)
    expected = {each.encode(): row(each, "near") for each in near} | {key.encode(): row(key, 2)}
    assert rows == expected
    commit(store, table, (2000, [delete(key)]))
    assert key.encode() not in state_of(store.reader(), table)
    assert [change.key for _, _, change in journal_of(store.reader(), table)] == [key.encode()]


def test_long_partial_keys_are_given_back_whole(store: Store, table: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, table, (10, [(UPDATE, LONG, partial(LONG, 1))]))
        assert list(transaction.partial_keys(table)) == [LONG.encode()]


def test_rows_of_one_table_end_where_the_next_begins(store: Store) -> None:
    first, second = live_table(store, "a"), live_table(store, "b")
    with store.transaction() as transaction:
        apply(transaction, first, (10, [insert(str(n), 1) for n in range(50)]))
        apply(transaction, second, (10, [insert(str(n), 2) for n in range(40)]))
    reader = store.reader()
    assert len(state_of(reader, first)) == 50
    assert set(state_of(reader, second).values()) == {row(str(n), 2) for n in range(40)}


def test_many_changes_of_one_key_in_a_batch_keep_their_order(store: Store) -> None:
    table = live_table(store)
    steps = [(INSERT if n < 7 else UPDATE, f"k{n % 7}", row(f"k{n % 7}", n)) for n in range(700)]
    commit(store, table, (10, steps))
    assert state_of(store.reader(), table) == {
        f"k{n % 7}".encode(): row(f"k{n % 7}", n) for n in range(693, 700)
    }
    olds = [change.old for _, _, change in journal_of(store.reader(), table)]
    assert olds[7:] == [row(f"k{n % 7}", n) for n in range(693)]
