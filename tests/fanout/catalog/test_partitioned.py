"""Partitioned tables are followed through their root; what moves rows among partitions without a
change in the stream is noticed, and what differs is repaired."""

from laredo_fanout.source_options import SourceTableOptions
from tests.support.ingest import Start
from tests.support.postgres import Database, on_versions
from tests.support.server.moving_partitions import settle

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


@on_versions(14, 15, 16, 17, 18)
def test_root_is_copied_and_followed(database: Database, live: Start) -> None:
    database.run(*_ROOT)
    ingest = live("public.t", range_bytes=64 << 10)
    ingest.assert_equal()
    assert ingest.record("public.t").rows == 600
    database.run(
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


def test_partitions_that_bring_no_rows_cost_no_copy(database: Database, live: Start) -> None:
    database.run(*_ROOT)
    ingest = live("public.t", heartbeat_interval=0.1)
    before = ingest.record("public.t")
    database.run(
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300)",
        "INSERT INTO t VALUES (210, 1, 'new', 'x')",
    )
    ingest.move_on(2)
    database.run(
        "CREATE TABLE t4 (LIKE t INCLUDING ALL)",
        "ALTER TABLE t ATTACH PARTITION t4 FOR VALUES FROM (300) TO (400)",
    )
    ingest.move_on(2)
    database.run("INSERT INTO t VALUES (310, 1, 'new', 'x')", "ANALYZE t", "VACUUM t4")
    ingest.move_on(2)
    ingest.assert_equal()
    assert ingest.status.recopies == 0 and ingest.record("public.t").id == before.id
    assert not ingest.status.tables["public.t"].repaired
    # Rows that go with a part of a known tree are put right.
    for number, statement in enumerate(
        ("ALTER TABLE t2 DETACH PARTITION t2_even", "TRUNCATE t2_rest"), 1
    ):
        database.run(statement)
        settle(ingest, "public.t")
        ingest.assert_equal()
        assert ingest.status.tables["public.t"].repaired == number
    ingest.restart()
    ingest.wait_live()
    ingest.move_on(2)
    ingest.assert_equal()
    assert ingest.record("public.t").id == before.id


def test_move_while_the_server_is_down(database: Database, live: Start) -> None:
    database.run(*_ROOT)
    ingest = live("public.t")
    before = ingest.record("public.t")
    ingest.stop()
    database.run("TRUNCATE t1", "INSERT INTO t VALUES (3, 1, 'after', 'x')")
    ingest.start()
    settle(ingest, "public.t")
    ingest.assert_equal()
    assert ingest.record("public.t").id == before.id


def test_who_writes_to_a_partition_alone_is_waited_for(database: Database, live: Start) -> None:
    database.run(*_ROOT)
    with database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t1 VALUES (1, -1, 'before', 'x')")
        database.run(f"CREATE PUBLICATION pub_{database.name}")
        # A slot is made only when the writer is done, so the table comes after it.
        writer.execute("COMMIT")
        database.run("CREATE TABLE first (id int PRIMARY KEY)")
        ingest = live("public.first")
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


def test_partition_that_is_attached_without_identity_leaves_the_publication(
    database: Database, live: Start
) -> None:
    """The application's UPDATE of that partition would fail as long as the root is published."""
    database.run(*_ROOT)
    ingest = live("public.t", heartbeat_interval=0.1)
    database.run(
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300)",
        "ALTER TABLE t3 REPLICA IDENTITY NOTHING",
        "INSERT INTO t VALUES (210, 1, 'x', 'y')",
    )
    ingest.wait_until(lambda: ingest.status.tables["public.t"].error, "it is refused")
    database.run("UPDATE t SET a = 'z' WHERE day = 210", "ALTER TABLE t3 REPLICA IDENTITY FULL")
    ingest.wait_live()
    database.run("UPDATE t SET a = 'full', id = 2 WHERE day = 210")
    ingest.assert_equal()


def test_publication_without_roots(database: Database, ingesting: Start) -> None:
    database.run(
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
    database.run(cure.format(f"pub_{database.name}"))
    ingest.wait_live()
    ingest.assert_equal()


def test_row_filter_of_the_root_holds_in_copy_and_stream(database: Database, live: Start) -> None:
    database.run(
        *_ROOT,
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE t (day, id, a) WHERE (day > 110)"
        " WITH (publish_via_partition_root)",
    )
    ingest = live("public.t", create_publication=False, range_bytes=64 << 10)
    database.run(
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


def test_partitions_whose_root_is_published_are_refused(
    database: Database, ingesting: Start
) -> None:
    database.run(*_ROOT)
    ingest = ingesting("public.t", heartbeat_interval=0.1)
    ingest.stop()
    ingest.tables += (
        SourceTableOptions("public", "t1"),
        SourceTableOptions("public", "t2_even", by_pattern=True),
    )
    ingest.start()
    ingest.wait_live("public.t")
    for table, cure in {
        "public.t1": "take public.t1 out of tables, and list public.t",
        "public.t2_even": "it is left out from the next check on; list public.t, unless a pattern",
    }.items():
        ingest.wait_until(lambda table=table: ingest.status.tables[table].error, "it is refused")
        error = ingest.status.tables[table].error
        assert error is not None and cure in error
    ingest.assert_equal("public.t")
