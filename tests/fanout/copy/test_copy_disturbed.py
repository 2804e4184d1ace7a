"""Changes of a table before or during its copy: renamed, recreated, another replica identity.

Seen by a client, its changes keep their order.
"""

import random
from collections.abc import Iterable

import pytest

from laredo_fanout.copy.copier import Copier
from laredo_fanout.copy.range_reader import CopyReader
from laredo_fanout.source_options import CopyOptions
from tests.support import drawn
from tests.support.ingest import Gate, Start, beside, fill
from tests.support.oracle import Connection
from tests.support.postgres import Database, on_versions
from tests.support.server.store_sample import state_of

pytestmark = on_versions(16, 18)


_SMALL_RANGES = 64 << 10


QUEUED = {
    "dropped and made again": (
        "DROP TABLE {u}",
        "CREATE TABLE {u} (id int PRIMARY KEY, b text)",
        "INSERT INTO {u} VALUES (1, 'another')",
    ),
    "another renamed to it": (
        "ALTER TABLE {u} RENAME TO {u}_former",
        "ALTER TABLE {u}_other RENAME TO {u}",
        "UPDATE {u} SET a = -a WHERE id < 10",
        "UPDATE {u}_former SET a = 0",
    ),
    "renamed there and back": (
        "ALTER TABLE {u} RENAME TO {u}_away",
        "UPDATE {u}_away SET a = -a WHERE id < 10",
        "ALTER TABLE {u}_away RENAME TO {u}",
        "DELETE FROM {u} WHERE id = 12",
    ),
    "another replica identity": (
        "ALTER TABLE {u} REPLICA IDENTITY FULL",
        "UPDATE {u} SET a = -a WHERE id < 10",
        "DELETE FROM {u} WHERE id = 12",
        "UPDATE {u} SET id = -id WHERE id > 250",
    ),
}


@pytest.mark.parametrize("begun", [False, True], ids=["queued", "being copied"])
def test_what_happens_to_tables_that_are_not_live_yet(
    database: Database, ingesting: Start, gate: Gate, *, begun: bool
) -> None:
    names = [f"u{number}" for number in range(len(QUEUED))]
    fill(database, 300)
    for name in names:
        fill(database, 300, name)
        fill(database, 100, f"{name}_other")
    tables = [f"public.{name}" for name in names]
    if begun:
        gate.close_after(100 * len(names))
        copies = CopyOptions(workers=1, range_bytes=_SMALL_RANGES, max_connections=len(names))
        ingest = ingesting(*tables, copy=copies)
    else:
        # Of the first table, whose whole chunk lies in no buffer, its one reader is not done.
        ingest = ingesting("public.t", *tables, workers=1)
    with gate.holding(ingest):
        if begun:
            assert all(ingest.status.tables[name].copy for name in tables)
        for name, statements in zip(names, QUEUED.values(), strict=True):
            database.run("SET lock_timeout = '240s'", *(each.format(u=name) for each in statements))
        ingest.catch_up()
    ingest.wait_live()
    ingest.assert_equal()


def test_rows_updated_one_after_the_other_are_never_seen_in_another_order(
    database: Database, ingesting: Start
) -> None:
    fill(database, 300)

    def write(session: Connection, number: int) -> None:
        session.execute("UPDATE t SET a = %s WHERE id = 300", (1000 + number,))
        session.execute("UPDATE t SET a = %s WHERE id = 1", (1000 + number,))

    database.run("UPDATE t SET a = 1000 WHERE id IN (1, 300)")
    seen: list[tuple[int, int]] = []
    ingest = ingesting("public.t", workers=1, range_bytes=_SMALL_RANGES)

    def look(_: object) -> None:
        reader = ingest.store.reader()
        for view in (each for each in reader.tables() if each.shown):
            rows = state_of(reader, view.id)
            assert {b"300", b"1"} <= rows.keys()
            first, second = (
                int(rows[key].split(b'"a":')[1].split(b",")[0]) for key in (b"300", b"1")
            )
            seen.append((first, second))

    ingest.on_commit = look
    with beside(database, write):
        ingest.wait_live()
        ingest.wait_until(lambda: len(seen) > 5, "it was looked at")
    ingest.assert_equal()
    assert all(first - second in (0, 1) for first, second in seen), seen


@drawn.seeds(1, 2)
def test_deletes_while_chunks_wait_at_random(
    database: Database, ingesting: Start, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    fill(database, 600)
    dice = random.Random(seed)
    pump = Copier.pump
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

    def write(session: Connection, _: int) -> None:
        nonlocal deleted
        row = dice.randint(1, 700)
        deleted += session.execute("DELETE FROM t WHERE id = %s", (row,)).rowcount
        if dice.random() < 0.3:
            session.execute(
                "INSERT INTO t VALUES (%s, 0, 'again') ON CONFLICT DO NOTHING",
                (dice.randint(1, 700),),
            )

    with beside(database, write):
        ingest = ingesting("public.t", workers=2, range_bytes=2 * _SMALL_RANGES)
        ingest.on_commit = count
        ingest.wait_live()
    ingest.assert_equal()
    assert deleted
