"""Memory stays flat whatever a transaction's size; so does every step of what it leaves behind."""

import sys
from pathlib import Path

import pytest

from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.support.processes import completed
from tests.support.server.store_sample import (
    COLUMNS,
    TRUNCATION,
    changes,
    commit,
    live_table,
    open_store,
    row,
)

CHANGES = 40_000
PIECE = 1_000
ALLOWED_GROWTH_KB = 24_000


def anonymous_kb() -> int:
    """This process's anonymous resident memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def giant(store: Store, table: int, action: Action, position: int) -> int:
    """One PostgreSQL transaction in pieces; the most memory seen meanwhile."""
    peak = 0
    with store.transaction() as transaction:
        for start in range(0, CHANGES, PIECE):
            names = [str(n * 7919 % CHANGES) for n in range(start, start + PIECE)]
            steps = [(action, each, row(each, position, "x" * 800)) for each in names]
            piece = changes((position, steps), is_open=start + PIECE < CHANGES)
            transaction.apply(table, piece)
            peak = max(peak, anonymous_kb())
        transaction.set_position(position, position)
    return peak


def scene(path: Path) -> None:
    with open_store(path, 4 << 30) as store:
        table = live_table(store)
        with store.transaction() as transaction:
            other = transaction.add_table("public", "copying", 2, COLUMNS).id
        before = anonymous_kb()
        peak = max(
            giant(store, table, Action.INSERT, 10),
            giant(store, table, Action.UPDATE, 20),
            giant(store, other, Action.INSERT, 30),
        )
        with store.reader().snapshot(table) as snapshot:
            assert sum(len(keys) for keys, _ in snapshot.batches()) == CHANGES
            peak = max(peak, anonymous_kb())
        commit(store, table, (40, [TRUNCATION]))
        while store.reclaim(10_000):
            peak = max(peak, anonymous_kb())
        store.prune(table, 1, 1e9, 0)
        peak = max(peak, anonymous_kb())
        assert store.tables[table].entries == 1
        assert store.tables[other].rows == CHANGES
    assert peak - before < ALLOWED_GROWTH_KB, f"grew from {before} to {peak} KB"


@pytest.mark.thorough
def test_giant_transactions_and_what_they_leave(tmp_path: Path) -> None:
    run = completed([sys.executable, "-m", "tests.fanout.store.test_memory", str(tmp_path)])
    assert run.returncode == 0, run.stdout + run.stderr


if __name__ == "__main__":
    scene(Path(sys.argv[1]))
