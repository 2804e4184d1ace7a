"""Copy and stream into one table: who wins, what is filled, what stays."""

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.store import environment, rows
from laredo_fanout.store.errors import ChunkStale, RowIncomplete, TableClosed
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.server.store_sample import (
    COLUMNS,
    INSERT,
    TRUNCATION,
    UPDATE,
    Step,
    apply,
    changes,
    commit,
    delete,
    insert,
    journal_of,
    live_table,
    partial,
    row,
    state_of,
    update,
)


@pytest.fixture
def copying(store: Store) -> int:
    """A table in the middle of its copy."""
    with store.transaction() as transaction:
        return transaction.add_table("public", "users", 1, COLUMNS).id


def publish(store: Store, table: int, position: int = 1000) -> dict[bytes, bytes]:
    with store.transaction() as transaction:
        transaction.publish(table, position, 0)
    return state_of(store.reader(), table)


def test_the_sweep_leaves_other_tables_tombstones(store: Store, copying: int) -> None:
    with store.transaction() as transaction:
        other = transaction.add_table("public", "others", 2, COLUMNS).id
        apply(transaction, copying, (10, [delete("a")]))
        apply(transaction, other, (10, [delete("a")]))
        transaction.publish(copying, 20, 0)
        assert transaction.fill(other, [b"a"], [row("a", "copied")]) == 0


def test_a_truncate_empties_the_table_and_makes_chunks_stale(store: Store, copying: int) -> None:
    with store.transaction() as transaction:
        transaction.fill(copying, [b"a", b"b"], [row("a", 1), row("b", 1)], generation=0)
        apply(transaction, copying, (10, [delete("b"), TRUNCATION, insert("c", 1)]))
        with pytest.raises(ChunkStale, match=r"public\.users.*generation 0,.*\(generation 1\)"):
            transaction.fill(copying, [b"a"], [row("a", 1)], generation=0)
        transaction.fill(copying, [b"b"], [row("b", 2)], generation=1)
    assert store.tables[copying].rows == 2
    assert publish(store, copying) == {b"b": row("b", 2), b"c": row("c", 1)}


def test_a_table_with_rows_missing_columns_is_not_published(store: Store, copying: int) -> None:
    with store.transaction() as transaction:
        apply(transaction, copying, (10, [(UPDATE, "a", partial("a", 1))]))
        with pytest.raises(RowIncomplete, match=r"public\.users.*b'a'"):
            transaction.publish(copying, 20, 0)
        filled = transaction._spaces.rows_of(transaction.tables[copying])
        assert filled.has_marks(environment.PARTIAL_MARK)
        transaction.fill(copying, [b"a"], [row("a", 0)])
        # A mark that stays is visited at each barrier.
        assert not filled.has_marks(environment.PARTIAL_MARK)
    assert publish(store, copying) == {b"a": row("a", 1)}


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


@pytest.mark.parametrize("status", [Status.CLOSED, Status.FAILED])
def test_tables_that_stopped_take_nothing(store: Store, copying: int, status: Status) -> None:
    with store.transaction() as transaction:
        transaction.put_table(replace(transaction.tables[copying], status=status))
        with pytest.raises(TableClosed, match=f"{status}: it can't take changes"):
            apply(transaction, copying, (10, [insert("a", 1)]))
        with pytest.raises(TableClosed, match="copied rows"):
            transaction.fill(copying, [b"a"], [row("a", 1)])


def test_a_live_table_takes_no_copied_rows(store: Store) -> None:
    table = live_table(store)
    with store.transaction() as transaction, pytest.raises(TableClosed, match="copied rows"):
        transaction.fill(table, [b"a"], [row("a", 1)])


def test_many_changes_of_one_key_in_a_batch_keep_their_order(store: Store) -> None:
    table = live_table(store)
    steps = [(INSERT if n < 7 else UPDATE, f"k{n % 7}", row(f"k{n % 7}", n)) for n in range(700)]
    commit(store, table, (10, steps))
    assert state_of(store.reader(), table) == {
        f"k{n % 7}".encode(): row(f"k{n % 7}", n) for n in range(693, 700)
    }
    olds = [change.old for _, _, change in journal_of(store.reader(), table)]
    assert olds[7:] == [row(f"k{n % 7}", n) for n in range(693)]


# Changes are applied in parts, so that wide rows that small changes replace don't fill memory.


WIDE = 20_000
ROWS = 1_500
MOST_BYTES = 32_000_000


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data(), st.booleans())
def test_parts_are_the_whole(counts: list[int], data: st.DataObject, is_open: bool) -> None:
    whole = changes(
        *((10 * number, [insert(f"{number}-{n}", n) for n in range(count)])
          for number, count in enumerate(counts, 1)),
        is_open=is_open,
    )  # fmt: skip
    met: list[tuple[bytes, int]] = []
    ends: list[int] = []
    for part in whole.parts(lambda: data.draw(st.integers(1, 5))):
        assert len(part.keys) == len(part.lines) == len(part) == sum(part.counts)
        assert len(part.counts) == len(part.positions) == len(part.times_us)
        positions = [p for p, n in zip(part.positions, part.counts, strict=True) for _ in range(n)]
        met += zip(part.keys, positions, strict=True)
        ends += part.positions[: -1 if part.open else None]
    wanted = [p for p, n in zip(whole.positions, whole.counts, strict=True) for _ in range(n)]
    assert met == list(zip(whole.keys, wanted, strict=True))
    assert ends == whole.positions[: -1 if is_open else None], "each transaction ends once"


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_applied_in_parts_it_is_the_same(
    step: int, store: Store, table: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_MOST_CHANGES", step)
    moved: list[Step] = [delete("b"), (Action.INSERT, "c", partial("c", 3))]
    transactions = [
        (10, [insert("a", 1), insert("b", 1, "kept")]),
        (20, [update("a", 2), *moved, (Action.UPDATE, "c", partial("c", 4)), delete("gone")]),
        (30, [TRUNCATION, insert("d", 5)]),
    ]
    commit(store, table, *transactions)
    reader = store.reader()
    assert list(state_of(reader, table)) == [b"d"]
    found = [(position, change) for _, position, change in journal_of(reader, table)]
    assert [position for position, _ in found] == [10, 10, 20, 20, 20, 20, 30, 30]
    last = found[5][1]
    assert (last.key, last.old, last.new) == (b"c", row("c", 3, "kept"), row("c", 4, "kept"))
    records = reader.journal(table, store.tables[table].oldest_sequence - 1, 1 << 20)
    assert not records[-1].open


def test_wide_rows_that_small_changes_replace(store: Store, table: int) -> None:
    names = [f"{number:05d}" for number in range(ROWS)]
    commit(store, table, (10, [insert(name, 0, "x" * WIDE) for name in names]))
    steps: list[list[Step]] = [
        [(Action.UPDATE, name, partial(name, 1)) for name in names],
        [delete(name) for name in names],
    ]
    for number, each in enumerate(steps):
        made: TableChanges = changes((20 + number, each))
        tracemalloc.start()
        with store.transaction() as transaction:
            transaction.apply(table, made)
            transaction.set_position(20 + number, 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_BYTES
    assert store.tables[table].rows == 0
