"""The store alone: copy, changes in order and at random, snapshot, restart.

``python -m benchmarks.store``
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.writer import Store
from laredo_model.column import Column
from laredo_model.line import Action

COLUMNS = [Column("id", "int8", nullable=False, ordinal=1, key_ordinal=1), Column("v", "text")]
CHUNK = 10_000


def line(key: int, value: int) -> bytes:
    """About 280 bytes."""
    return b'{"id":%d,"v":"%d%s"}' % (key, value, b"x" * 250)


def measured(name: str, count: int, work: Callable[[], None]) -> None:
    """Print how many a second."""
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    print(f"{name:<44}{count / took:>12,.0f}/s {took:>8.2f} s", flush=True)


def copy(store: Store, rows: int) -> int:
    """A table, filled as the copy does."""
    with store.transaction() as transaction:
        table = transaction.add_table("public", "bench", 1, COLUMNS)
    for start in range(0, rows, CHUNK * 10):
        with store.transaction() as transaction:
            for first in range(start, min(rows, start + CHUNK * 10), CHUNK):
                keys = list(range(first, min(rows, first + CHUNK)))
                transaction.fill(table.id, [b"%d" % k for k in keys], [line(k, 0) for k in keys])
    with store.transaction() as transaction:
        transaction.publish(table.id, 1, 1)
        transaction.set_position(1, 1)
    return table.id


def updates(store: Store, table_id: int, keys: list[int], commit: int, piece: int) -> None:
    """Updates of one row a transaction; `commit` changes per durable commit."""
    stamp = int(time.time() * 1_000_000)
    position = store.position
    for start in range(0, len(keys), commit):
        with store.transaction() as transaction:
            for first in range(start, min(len(keys), start + commit), piece):
                part = keys[first : first + piece]
                changes = TableChanges(
                    bytearray([Action.UPDATE]) * len(part),
                    [b"%d" % key for key in part],
                    [line(key, position) for key in part],
                    [1] * len(part),
                    list(range(position + 1, position + 1 + len(part))),
                    [stamp] * len(part),
                )
                position += len(part)
                transaction.apply(table_id, changes)
            transaction.set_position(position, stamp)


def main() -> None:
    """Run them all on a fresh store."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=options.directory))
    rows, changes = options.rows, options.changes
    try:
        store = Store.open(directory, max_size=64 << 30)
        ids: list[int] = []
        measured("copy, 100,000 rows a commit", rows, lambda: ids.append(copy(store, rows)))
        ordered = list(range(changes))
        shuffled = random.sample(range(rows), changes)
        for name, keys in (("in order", ordered), ("random", shuffled)):
            for commit in (1_000, 20_000, 100_000):
                part = keys if commit > 1_000 else keys[: changes // 10]
                measured(
                    f"updates {name}, {commit:,} a commit",
                    len(part),
                    lambda part=part, commit=commit: updates(
                        store, ids[0], part, commit, min(commit, 20_000)
                    ),
                )

        def prune() -> None:
            store.prune(ids[0], changes, 1e9, time.time())

        measured("prune", store.tables[ids[0]].entries - changes, prune)
        with store.reader().snapshot(ids[0]) as snapshot:
            measured("snapshot", rows, lambda: [None for _ in snapshot.batches()])
        store.close()
        began = time.perf_counter()
        store = Store.open(directory, max_size=64 << 30)
        print(f"open: {(time.perf_counter() - began) * 1000:.1f} ms")
        print(f"used: {store.used_bytes / (1 << 20):.0f} MB")
        store.close()
        with Path("/proc/self/status").open() as status:
            print("".join(one for one in status if one.startswith(("RssAnon", "RssFile"))))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
