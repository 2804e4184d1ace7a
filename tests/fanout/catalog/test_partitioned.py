"""Partitioned tables are followed through their root; what moves rows among partitions without a
change in the stream is noticed, and what differs is repaired."""

from collections.abc import Callable

import pytest

from laredo_fanout.source_options import SourceTableOptions
from tests.support import drawn
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database, on_versions
from tests.support.server.moving_partitions import settle

Start = Callable[..., RunningIngest]

_ROOT = (
    "CREATE TABLE t (day int, id int, a text, big text, PRIMARY KEY (day, id))"
    " PARTITION BY RANGE (day)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    # Its columns lie in another order, one was dropped, and it is partitioned itself.
    "CREATE TABLE t2 (gone int, big text, id int NOT NULL, a text, day int NOT NULL)"
    " PARTITION BY LIST (day)",
    "ALTER TABLE t2 ALTER big SET STORAGE EXTERNAL",
    "ALTER TABLE t2 DROP COLUMN gone",
    "CREATE TABLE t2_even PARTITION OF t2 FOR VALUES IN (100, 102, 104, 106, 108)",
    "CREATE TABLE t2_rest PARTITION OF t2 DEFAULT",
    "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (100) TO (200)",
    "INSERT INTO t SELECT g % 200, g, 'a' || g, repeat(md5(g::text), 90)"
    " FROM generate_series(1, 600) g",
)


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _looks_pass(ingest: RunningIngest) -> None:
    """At least one whole catalog check lies in between."""
    for _ in range(2):
        passed = ingest.store.position
        ingest.wait_until(lambda passed=passed: ingest.store.position > passed, "a heartbeat")


@on_versions(14, 15, 16, 17, 18)
def test_root_is_copied_and_followed(database: Database, ingesting: Start) -> None:
    _run(database, *_ROOT)
    ingest = ingesting("public.t", range_bytes=64 << 10)
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.record("public.t").rows == 600  # type: ignore[union-attr]
    _run(
        database,
        "UPDATE t SET a = 'changed' WHERE id % 3 = 0",
        "UPDATE t2_even SET a = 'at the leaf'",
        "INSERT INTO t1 VALUES (7, 9001, 'into the leaf', 'x')",
        "UPDATE t SET day = day + 100 WHERE day < 50",  # into another partition, TOAST with it
        "UPDATE t SET id = -id WHERE day = 120",
        "DELETE FROM t WHERE id % 7 = 0",
        "DELETE FROM t2_rest WHERE id % 5 = 0",
        "UPDATE t SET big = NULL, day = 151 WHERE day = 3",
    )
    ingest.assert_equal()
    assert ingest.status.recopies == 0


MOVES = {
    "attach with rows": (
        "CREATE TABLE t3 (LIKE t INCLUDING ALL)",
        "INSERT INTO t3 VALUES (210, 1, 'brought along', 'x')",
        "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (200) TO (300)",
    ),
    "attach with rows, in one transaction": (
        "BEGIN; CREATE TABLE t3 (LIKE t INCLUDING ALL);"
        " INSERT INTO t3 VALUES (210, 1, 'brought along', 'x');"
        " ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (200) TO (300); COMMIT",
    ),
    "attach a tree with rows": (
        "CREATE TABLE t3 (LIKE t INCLUDING ALL) PARTITION BY LIST (day)",
        "CREATE TABLE t3_all PARTITION OF t3 DEFAULT",
        "INSERT INTO t3 VALUES (210, 1, 'brought along', 'x')",
        "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (200) TO (300)",
    ),
    "detach": ("ALTER TABLE t DETACH PARTITION t1",),
    "detach concurrently": ("ALTER TABLE t DETACH PARTITION t1 CONCURRENTLY",),
    "detach, write, attach": (
        "ALTER TABLE t DETACH PARTITION t1",
        "UPDATE t1 SET a = 'unseen'",
        "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (100)",
    ),
    "detach a tree's part": ("ALTER TABLE t2 DETACH PARTITION t2_even",),
    "drop": ("DROP TABLE t1",),
    "truncate": ("TRUNCATE t2_rest",),
    # The stream shows it, but not what happens to a partition alone in the same transaction.
    "truncate the root": (
        "BEGIN; INSERT INTO t VALUES (1, -1, 'x', 'y'); TRUNCATE t;"
        " INSERT INTO t VALUES (3, 1, 'after', NULL), (150, 2, 'after', 'z');"
        " TRUNCATE t2_even; INSERT INTO t VALUES (3, 7, 'x', 'y'); TRUNCATE t1; COMMIT",
    ),
    "change type": ("ALTER TABLE t ALTER a TYPE text USING a || '!'",),
}


@pytest.mark.parametrize("kind", drawn.first(5, MOVES))
def test_rows_that_move_without_a_change(database: Database, ingesting: Start, kind: str) -> None:
    _run(database, *_ROOT, "CREATE TABLE other (id int PRIMARY KEY)")
    ingest = ingesting("public.t", "public.other", heartbeat_interval=0.1)
    ingest.wait_live()
    before, other = ingest.record("public.t"), ingest.record("public.other")
    assert before is not None and other is not None
    _run(database, *MOVES[kind], "INSERT INTO t VALUES (130, 777, 'after', 'x')")
    settle(ingest, "public.t")
    ingest.assert_equal()
    assert ingest.status.tables["public.t"].repaired
    assert ingest.record("public.t").id == before.id  # type: ignore[union-attr]
    assert ingest.record("public.other").id == other.id  # type: ignore[union-attr]


def test_partitions_that_bring_no_rows_cost_no_copy(database: Database, ingesting: Start) -> None:
    _run(database, *_ROOT)
    ingest = ingesting("public.t", heartbeat_interval=0.1)
    ingest.wait_live()
    before = ingest.record("public.t")
    assert before is not None
    _run(
        database,
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300)",
        "INSERT INTO t VALUES (210, 1, 'new', 'x')",
    )
    _looks_pass(ingest)
    _run(
        database,
        "CREATE TABLE t4 (LIKE t INCLUDING ALL)",
        "ALTER TABLE t ATTACH PARTITION t4 FOR VALUES FROM (300) TO (400)",
    )
    _looks_pass(ingest)
    _run(database, "INSERT INTO t VALUES (310, 1, 'new', 'x')", "ANALYZE t", "VACUUM t4")
    _looks_pass(ingest)
    ingest.assert_equal()
    assert ingest.status.recopies == 0 and ingest.record("public.t").id == before.id  # type: ignore[union-attr]
    assert not ingest.status.tables["public.t"].repaired
    ingest.restart()
    ingest.wait_live()
    _looks_pass(ingest)
    ingest.assert_equal()
    assert ingest.record("public.t").id == before.id  # type: ignore[union-attr]


def test_move_while_the_server_is_down(database: Database, ingesting: Start) -> None:
    _run(database, *_ROOT)
    ingest = ingesting("public.t")
    ingest.wait_live()
    before = ingest.record("public.t")
    assert before is not None
    ingest.stop()
    _run(database, "TRUNCATE t1", "INSERT INTO t VALUES (3, 1, 'after', 'x')")
    ingest.start()
    settle(ingest, "public.t")
    ingest.assert_equal()
    assert ingest.record("public.t").id == before.id  # type: ignore[union-attr]


def test_who_writes_to_a_partition_alone_is_waited_for(
    database: Database, ingesting: Start
) -> None:
    _run(database, *_ROOT)
    with database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t1 VALUES (1, -1, 'before', 'x')")
        _run(database, f"CREATE PUBLICATION pub_{database.name}")
        # A slot is made only when the writer is done, so the table comes after it.
        writer.execute("COMMIT")
        _run(database, "CREATE TABLE first (id int PRIMARY KEY)")
        ingest = ingesting("public.first")
        ingest.wait_live()
        ingest.stop()
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t1 VALUES (1, -2, 'before', 'x')")
        ingest.start("public.first", "public.t")
        pid = writer.info.backend_pid
        ingest.wait_until(
            lambda: ingest.status.tables["public.t"].waiting_for == (pid,), "the pid is named"
        )
        writer.execute("INSERT INTO t1 VALUES (1, -3, 'after', 'x')")
        writer.execute("COMMIT")
    ingest.wait_live()
    ingest.assert_equal()


UNFIT = {
    "a foreign partition": (
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        " CREATE FOREIGN TABLE f PARTITION OF bad FOR VALUES FROM (0) TO (10) SERVER s",
        'ALTER TABLE "public"."bad" DETACH PARTITION public.f;',
    ),
    "an unlogged partition": (
        "CREATE UNLOGGED TABLE f PARTITION OF bad FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE public.f SET LOGGED;",
    ),
    "a partition with another identity": (
        "CREATE TABLE f PARTITION OF bad FOR VALUES FROM (0) TO (10);"
        " ALTER TABLE f REPLICA IDENTITY NOTHING",
        "ALTER TABLE public.f REPLICA IDENTITY DEFAULT;",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_unfit_partition_is_refused_with_its_cure(
    database: Database, ingesting: Start, kind: str
) -> None:
    statement, cure = UNFIT[kind]
    _run(
        database,
        "CREATE TABLE bad (id int, a text) PARTITION BY RANGE (id)"
        if kind.startswith("a foreign")
        else "CREATE TABLE bad (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        statement,
        "CREATE TABLE good (id int PRIMARY KEY)",
    )
    ingest = ingesting("public.bad", "public.good", heartbeat_interval=0.1)
    ingest.wait_live("public.good")
    error = ingest.status.tables["public.bad"].error
    assert error is not None and cure in error
    if not kind.startswith("a foreign"):
        _run(database, "INSERT INTO bad VALUES (1, 'a')", "UPDATE bad SET a = 'b'", cure)
        ingest.wait_live()
        ingest.assert_equal()


def test_partition_that_is_attached_without_identity_leaves_the_publication(
    database: Database, ingesting: Start
) -> None:
    """The application's UPDATE of that partition would fail as long as the root is published."""
    _run(database, *_ROOT)
    ingest = ingesting("public.t", heartbeat_interval=0.1)
    ingest.wait_live()
    _run(
        database,
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300)",
        "ALTER TABLE t3 REPLICA IDENTITY NOTHING",
        "INSERT INTO t VALUES (210, 1, 'x', 'y')",
    )
    ingest.wait_until(lambda: ingest.status.tables["public.t"].error, "it is refused")
    _run(database, "UPDATE t SET a = 'z' WHERE day = 210", "ALTER TABLE t3 REPLICA IDENTITY FULL")
    ingest.wait_live()
    _run(database, "UPDATE t SET a = 'full', id = 2 WHERE day = 210")
    ingest.assert_equal()


def test_publication_without_roots(database: Database, ingesting: Start) -> None:
    _run(
        database,
        *_ROOT,
        "CREATE TABLE single (id int PRIMARY KEY)",
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE single, t",
    )
    ingest = ingesting(
        "public.t", "public.single", create_publication=False, heartbeat_interval=0.1
    )
    ingest.wait_live("public.single")
    cure = "ALTER PUBLICATION {} SET (publish_via_partition_root = true);"
    error = ingest.status.tables["public.t"].error
    assert error is not None and cure.format(f'"pub_{database.name}"') in error
    _run(database, cure.format(f"pub_{database.name}"))
    ingest.wait_live()
    ingest.assert_equal()


def test_row_filter_of_the_root_holds_in_copy_and_stream(
    database: Database, ingesting: Start
) -> None:
    _run(
        database,
        *_ROOT,
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE t (day, id, a) WHERE (day > 110)"
        " WITH (publish_via_partition_root)",
    )
    ingest = ingesting("public.t", create_publication=False, range_bytes=64 << 10)
    ingest.wait_live()
    _run(
        database,
        "INSERT INTO t VALUES (5, 9000, 'no', 'x'), (150, 9001, 'yes', 'x')",
        "UPDATE t SET day = 20 WHERE day = 130",
        "UPDATE t SET day = 140 WHERE day = 30",
    )
    ingest.catch_up()
    with database.connect() as connection:
        found = connection.execute(
            "SELECT json_build_array(day, id)::text FROM t WHERE day > 110"
        ).fetchall()
    state = ingest.state("public.t")
    assert state.keys() == {str(key).replace(" ", "").encode() for (key,) in found}
    assert state[b"[150,9001]"] == b'{"day":150,"id":9001,"a":"yes"}'


@pytest.mark.parametrize(
    ("by_pattern", "cure"),
    [
        (False, "take public.t1 out of tables, and list public.t"),
        (True, "it is left out from the next check on; list public.t, unless a pattern"),
    ],
    ids=["listed", "of a pattern"],
)
def test_partition_whose_root_is_published_is_refused(
    database: Database, ingesting: Start, by_pattern: bool, cure: str
) -> None:
    _run(database, *_ROOT)
    ingest = ingesting("public.t", heartbeat_interval=0.1)
    ingest.stop()
    ingest.tables += (SourceTableOptions("public", "t1", by_pattern=by_pattern),)
    ingest.start()
    ingest.wait_live("public.t")
    ingest.wait_until(lambda: ingest.status.tables["public.t1"].error, "the partition is refused")
    error = ingest.status.tables["public.t1"].error
    assert error is not None and cure in error
    ingest.assert_equal("public.t")
