"""Changes of a table before or during its copy: renamed, recreated, another replica identity.

Seen by a client, its changes keep their order.
"""

import random
import threading
from collections.abc import Callable, Iterable

import pytest

from laredo_fanout.copy.copier import Copier
from laredo_fanout.copy.range_reader import CopyReader
from tests.support.ingest import Gate, RunningIngest
from tests.support.postgres import Database, on_versions

pytestmark = on_versions(16, 18)

Start = Callable[..., RunningIngest]

_SMALL_RANGES = 64 << 10


def _make(database: Database, name: str, rows: int = 300) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, a int, big text)".encode())
        connection.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL".encode())
        connection.execute(
            f"INSERT INTO {name} SELECT g, g, repeat(md5(g::text), 100)"
            f" FROM generate_series(1, {rows}) g".encode()
        )


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


QUEUED = {
    "dropped and made again": (
        "DROP TABLE u",
        "CREATE TABLE u (id int PRIMARY KEY, b text)",
        "INSERT INTO u VALUES (1, 'another')",
    ),
    "another renamed to it": (
        "ALTER TABLE u RENAME TO former",
        "ALTER TABLE other RENAME TO u",
        "UPDATE u SET a = -a WHERE id < 10",
        "UPDATE former SET a = 0",
    ),
    "renamed there and back": (
        "ALTER TABLE u RENAME TO away",
        "UPDATE away SET a = -a WHERE id < 10",
        "ALTER TABLE away RENAME TO u",
        "DELETE FROM u WHERE id = 12",
    ),
    "another replica identity": (
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "UPDATE u SET a = -a WHERE id < 10",
        "DELETE FROM u WHERE id = 12",
        "UPDATE u SET id = -id WHERE id > 250",
    ),
}


@pytest.mark.parametrize("what", QUEUED)
@pytest.mark.parametrize("begun", [False, True], ids=["queued", "being copied"])
def test_what_happens_to_a_table_that_is_not_live_yet(
    database: Database, ingesting: Start, gate: Gate, what: str, *, begun: bool
) -> None:
    for name in ("t", "u", "other"):
        _make(database, name, 100 if name == "other" else 300)
    if begun:
        gate.close_after(100)
        ingest = ingesting("public.u", workers=1, range_bytes=_SMALL_RANGES)
    else:
        # Of the first table, whose whole chunk lies in no buffer, its one reader is not done.
        ingest = ingesting("public.t", "public.u", workers=1)
    with gate.holding(ingest):
        _run(database, "SET lock_timeout = '240s'", *QUEUED[what])
        ingest.catch_up()
    ingest.wait_live()
    ingest.assert_equal()


def test_rows_updated_one_after_the_other_are_never_seen_in_another_order(
    database: Database, ingesting: Start
) -> None:
    _make(database, "t")
    stop = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            number = 1000
            while not stop.is_set():
                number += 1
                connection.execute("UPDATE t SET a = %s WHERE id = 300", (number,))
                connection.execute("UPDATE t SET a = %s WHERE id = 1", (number,))

    _run(database, "UPDATE t SET a = 1000 WHERE id IN (1, 300)")
    writer = threading.Thread(target=write)
    seen: list[tuple[int, int]] = []
    ingest = ingesting("public.t", workers=1, range_bytes=_SMALL_RANGES)

    def look(_: object) -> None:
        reader = ingest.store.reader()
        for view in (each for each in reader.tables() if each.shown):
            with reader.snapshot(view.id) as snapshot:
                rows = {
                    key: line
                    for keys, lines in snapshot.batches()
                    for key, line in zip(keys, lines, strict=True)
                }
            assert {b"300", b"1"} <= rows.keys()
            first, second = (
                int(rows[key].split(b'"a":')[1].split(b",")[0]) for key in (b"300", b"1")
            )
            seen.append((first, second))

    ingest.on_commit = look
    writer.start()
    try:
        ingest.wait_live()
        ingest.wait_until(lambda: len(seen) > 5, "it was looked at")
    finally:
        stop.set()
        writer.join()
    ingest.assert_equal()
    assert all(first - second in (0, 1) for first, second in seen), seen


@pytest.mark.parametrize("seed", [1, 2])
def test_deletes_while_chunks_wait_at_random(
    database: Database, ingesting: Start, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    _make(database, "t", 600)
    dice = random.Random(seed)
    pump = Copier.pump
    stop = threading.Event()
    deleted = 0

    commits, until = 0, 0

    def late(copier: Copier, ready: Iterable[CopyReader]) -> int:
        # What was read waits, while the stream's changes are written.
        nonlocal until
        readers = list(ready)
        if readers and commits >= until and dice.random() < 0.4:
            until = commits + dice.randint(1, 3)
        return 0 if commits < until else pump(copier, readers)

    monkeypatch.setattr(Copier, "pump", late)

    def count(_: object) -> None:
        nonlocal commits
        commits += 1

    def write() -> None:
        nonlocal deleted
        with database.connect() as connection:
            while not stop.is_set():
                number = dice.randint(1, 700)
                deleted += connection.execute("DELETE FROM t WHERE id = %s", (number,)).rowcount
                if dice.random() < 0.3:
                    connection.execute(
                        "INSERT INTO t VALUES (%s, 0, 'again') ON CONFLICT DO NOTHING",
                        (dice.randint(1, 700),),
                    )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        ingest = ingesting("public.t", workers=2, range_bytes=2 * _SMALL_RANGES)
        ingest.on_commit = count
        ingest.wait_live()
    finally:
        stop.set()
        writer.join()
    ingest.assert_equal()
    assert deleted
