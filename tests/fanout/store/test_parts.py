"""Changes are applied in parts, so that wide rows that small changes replace don't fill memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.store import rows
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.server.store_sample import (
    TRUNCATION,
    Step,
    changes,
    commit,
    delete,
    insert,
    journal_of,
    partial,
    row,
    state_of,
    update,
)

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
