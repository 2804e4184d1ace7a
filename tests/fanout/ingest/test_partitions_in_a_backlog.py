"""Partitions that come, bring rows and go, however the stream's changes come: behind a backlog, in
parts before their commit; while a copy is made; and with kills."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_fanout.catchup.plan import CatchupOptions
from tests.fanout.ingest.partition_cases import CASES
from tests.support import drawn
from tests.support.ingest import Gate, RunningIngest
from tests.support.postgres import Database, on_versions
from tests.support.server.behind import splitting_little, start_behind, status_of, wait_level
from tests.support.server.moving_partitions import ROOT, History, numbered, settle, watched

Start = Callable[..., RunningIngest]

_FEW = ("drop", "detach, in one transaction", "truncate", "attach filled, insert, detach", "twice")
_AT_ONCE = "debug_logical_replication_streaming = 'immediate'"
_TOUCH = "UPDATE a SET v = v || repeat('x', 500) WHERE id < 5"
_BEFORE = "INSERT INTO a SELECT g, 'before' FROM generate_series(21, 40) g"


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _much(database: Database, number: int) -> None:
    """WAL, so that a backlog is worth splitting: single rows of a known partition."""
    with database.connect() as connection:
        for turn in range(number):
            connection.execute(
                b"UPDATE a SET v = repeat('%d', 500) WHERE id < 15" % (turn % 10)  # known rows
            )


@pytest.fixture
def options(tmp_path: Path) -> CatchupOptions:
    return splitting_little(tmp_path)


def _each(database: Database) -> list[str]:
    """Make a root for each of the few cases; their names."""
    for number in range(len(_FEW)):
        _run(database, *numbered(ROOT, number))
    return [f"public.a_{number}" for number in range(len(_FEW))]


def _run_each(database: Database, history: History) -> None:
    for number, kind in enumerate(_FEW):
        statements = numbered([f"BEGIN; {_BEFORE}; COMMIT", *CASES[kind]], number)
        history.run(database, statements, f"a_{number}")


@on_versions(18, also=(16,))
def test_in_a_split_backlog(database: Database, ingesting: Start, options: CatchupOptions) -> None:
    _run(database, *ROOT)
    tables = ["public.a", *_each(database)]
    ingest = ingesting(*tables, catchup=options, heartbeat_interval=0.2)
    ingest.wait_live()
    settle(ingest, *tables)
    ingest.stop()
    _much(database, 120)
    with watched(ingest) as history:
        _run_each(database, history)
        history.run(database, [_TOUCH] * 60)
        start_behind(ingest)
        wait_level(ingest)
        settle(ingest, *tables)
        ingest.assert_equal()
        history.assert_right_where_verified()
    assert not any(record.leaves for record in ingest.store.tables.values())
    assert not status_of(ingest).segments


@on_versions(18, also=(16,))
def test_in_parts(database: Database, ingesting: Start) -> None:
    tables = _each(database)
    _run(database, f"ALTER DATABASE {database.name} SET {_AT_ONCE}")
    ingest = ingesting(*tables, heartbeat_interval=0.2)
    ingest.wait_live()
    settle(ingest, *tables)
    with watched(ingest) as history:
        _run_each(database, history)
        settle(ingest, *tables)
        ingest.assert_equal()
        assert history.assert_right_where_verified()


@on_versions(18, also=(16,))
def test_announced_in_a_subtransaction_that_is_rolled_back(
    database: Database, ingesting: Start
) -> None:
    """The server doesn't announce it again in the same transaction, nor ever after."""
    _run(
        database,
        *ROOT,
        "CREATE TABLE b (id int PRIMARY KEY)",
        f"ALTER DATABASE {database.name} SET {_AT_ONCE}",
    )
    ingest = ingesting("public.a", "public.b", heartbeat_interval=0.2)
    ingest.wait_live()
    _run(
        database,
        "CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (100) TO (200)",
        "BEGIN; SAVEPOINT s; INSERT INTO a VALUES (101, 'no'); INSERT INTO b VALUES (1);"
        " ROLLBACK TO s; INSERT INTO a VALUES (102, 'yes'); INSERT INTO b VALUES (2); COMMIT",
        "INSERT INTO b VALUES (3)",
        "DROP TABLE a1",
    )
    settle(ingest)
    ingest.assert_equal()


@pytest.mark.parametrize("kind", drawn.first(2, CASES))
def test_while_it_is_copied(database: Database, ingesting: Start, gate: Gate, kind: str) -> None:
    _run(database, *ROOT)
    ingest = ingesting("public.a", heartbeat_interval=0.2)
    with watched(ingest) as history:
        with gate.holding(ingest):
            history.run(database, CASES[kind])
        settle(ingest)
        ingest.assert_equal()
        assert history.assert_right_where_verified()


@pytest.mark.parametrize(
    "kind",
    drawn.first(2, [*_FEW, "truncate, in one transaction", "detach, change, attach"]),
)
def test_while_it_is_put_right(database: Database, ingesting: Start, gate: Gate, kind: str) -> None:
    gate.open()
    _run(database, *ROOT, "CREATE TABLE a9 PARTITION OF a FOR VALUES FROM (900) TO (999)")
    _run(database, "INSERT INTO a VALUES (901, 'ninth')")
    ingest = ingesting("public.a", heartbeat_interval=0.2)
    ingest.wait_live()
    settle(ingest)
    before = ingest.record("public.a")
    gate.close_again()
    with watched(ingest) as history:
        history.run(database, ["DROP TABLE a9"])
        with gate.holding(ingest):
            history.run(database, CASES[kind])
            passed = ingest.store.position
            ingest.wait_until(
                lambda: ingest.store.position > passed, "a later position is in the store"
            )
        settle(ingest)
        ingest.assert_equal()
        assert history.assert_right_where_verified()
    now = ingest.record("public.a")
    assert before is not None and now is not None and now.id == before.id


_SERVER = """
import sys
from pathlib import Path
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.source_options import PublicationOptions, SourceOptions, SourceTableOptions
from laredo_fanout.store.writer import Store
dsn, path, name = sys.argv[1:]
options = SourceOptions(
    dsn, slot_name=f"slot_{name}", publication=PublicationOptions(f"pub_{name}", True),
    heartbeat_interval=0.2,
)
store = Store.open(Path(path), max_size=1 << 30)
Ingest(options, (SourceTableOptions("public", "a"),), store, lambda commit: None).run()
"""


@pytest.mark.parametrize("kind", drawn.first(1, _FEW))
@on_versions(18, also=(15, 16))
def test_killed_at_any_moment(database: Database, ingesting: Start, kind: str) -> None:
    """kill -9 after every statement, and while the table is put right."""
    chance = random.Random(kind)
    _run(database, *ROOT)
    ingest = ingesting("public.a", heartbeat_interval=0.2)
    ingest.wait_live()
    settle(ingest)
    ingest.stop()
    arguments = [sys.executable, "-c", _SERVER, database.dsn, str(ingest.path), database.name]
    for statement in (*CASES[kind], _BEFORE, "SELECT", "SELECT"):
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as server:
            try:
                server.wait(chance.uniform(0.5, 1.2))
            except subprocess.TimeoutExpired:
                _run(database, statement)
            try:
                server.wait(chance.uniform(0.0, 0.3))
            except subprocess.TimeoutExpired:
                server.kill()
            else:
                raise AssertionError("the server ended by itself")
    ingest.start()
    settle(ingest)
    ingest.assert_equal()
