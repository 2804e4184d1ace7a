"""The position up to which a catalog check proves that no silent DDL has rewritten a value."""

import threading

import pytest

from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, on_versions, waiting_for_a_standby
from tests.support.processes import wait_until

HEARTBEAT_S = 0.1
REWRITE = "ALTER TABLE t ALTER v TYPE int USING v * 2"
VERSIONS = on_versions(16, 18)


@pytest.fixture
def ingest(database: Database, live: Start) -> RunningIngest:
    database.run(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE moody (id int PRIMARY KEY, mood mood)",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted DEFAULT",
        "INSERT INTO t VALUES (1, 1)",
    )
    names = ("public.t", "public.other", "public.moody", "public.parted")
    return live(*names, heartbeat_interval=HEARTBEAT_S)


def verified(ingest: RunningIngest, table: str = "public.t") -> int:
    return ingest.record(table).verified


def wait_verified(ingest: RunningIngest, position: int, table: str = "public.t") -> None:
    ingest.wait_until(lambda: verified(ingest, table) >= position, f"{table} is verified")


def looks_pass(ingest: RunningIngest) -> None:
    """Several catalog checks have verified the table that isn't altered."""
    for _ in range(4):
        wait_verified(ingest, verified(ingest, "public.other") + 1, "public.other")


STATEMENTS = (
    ("public.t", REWRITE),
    ("public.t", "ALTER TABLE t ADD COLUMN b int DEFAULT 7"),
    ("public.moody", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    (
        "public.parted",
        "CREATE TABLE more (id int PRIMARY KEY); INSERT INTO more VALUES (7);"
        " ALTER TABLE parted ATTACH PARTITION more FOR VALUES FROM (5) TO (10)",
    ),
)


@VERSIONS
def test_while_tables_are_altered_their_verified_positions_stay(
    database: Database, ingest: RunningIngest
) -> None:
    for table, statement in STATEMENTS:
        with database.connect() as altering:
            altering.execute(f"BEGIN; {statement}".encode())
            begun = database.position()
            looks_pass(ingest)
            assert verified(ingest, table) <= begun
            held_by = ingest.status.tables[table].altered_by
            assert held_by == (altering.info.backend_pid,)
            altering.execute("ROLLBACK")
        wait_verified(ingest, begun + 1, table)
    assert ingest.status.recopies == 0


@VERSIONS
def test_a_prepared_transaction_that_alters_a_table_holds_it_up(
    database: Database, ingest: RunningIngest
) -> None:
    before = ingest.record("public.t")
    database.run(f"BEGIN; {REWRITE}; PREPARE TRANSACTION 'rewrites'")
    prepared = database.position()
    try:
        looks_pass(ingest)
        assert verified(ingest) <= prepared
        assert ingest.status.tables["public.t"].altered_by == (0,)
    finally:
        database.run("COMMIT PREPARED 'rewrites'")
    ingest.wait_copied_again(before)
    wait_verified(ingest, database.position())
    ingest.assert_equal()


@VERSIONS
def test_a_rewrite_whose_commit_waits_for_a_standby_is_not_passed(
    database: Database, ingest: RunningIngest
) -> None:
    """Its commit is in the WAL, and in no snapshot."""
    before = ingest.record("public.t")
    with waiting_for_a_standby(database):
        altering = threading.Thread(target=database.run, args=(REWRITE,))
        altering.start()
        with database.connect() as connection:
            wait_until(
                lambda: (
                    connection.execute(
                        "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                    ).fetchone()
                    is not None
                ),
                "the commit waits",
            )
        committed = database.position()
        looks_pass(ingest)
        assert verified(ingest) < committed
        now = ingest.record("public.t")
        assert now.live and now.id == before.id
    altering.join()
    ingest.wait_copied_again(before)
    ingest.assert_equal()


def test_a_closed_table_is_not_verified_any_further(
    database: Database, ingest: RunningIngest
) -> None:
    before = ingest.record("public.t")
    closed: list[tuple[int, int]] = []

    def note(_: object) -> None:
        record = ingest.store.tables.get(before.id)
        if record is not None and record.status is Status.CLOSED:
            closed.append((record.verified, record.closed_at))

    ingest.on_commit = note
    database.run(REWRITE)
    ingest.wait_copied_again(before)
    assert closed
    assert {each[0] for each in closed} == {closed[0][0]}


def test_after_a_restart_nothing_beyond_what_is_durable_is_verified(
    database: Database, ingest: RunningIngest
) -> None:
    database.run("INSERT INTO t VALUES (2, 2)")
    wait_verified(ingest, database.position())
    ingest.stop()
    with Store.open(ingest.path, max_size=4 << 30) as store:
        record = next(each for each in store.tables.values() if each.qualified == "public.t")
        with store.transaction() as transaction:
            # WAL that was written and lost with its server.
            transaction.set_verified(record.id, store.position + (1 << 40))
    ingest.start()
    ingest.wait_until(lambda: verified(ingest) < 1 << 40, "it is taken back")
