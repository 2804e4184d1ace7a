"""Copy while streaming: whatever happens between a chunk's reading and its writing, store and
database end up equal. The cases are those of the design's "Tests to have"."""

from laredo_fanout.source_options import CopyOptions
from tests.support.ingest import Gate, Start, beside, fill
from tests.support.oracle import Connection
from tests.support.postgres import Database, on_versions

pytestmark = on_versions(16, 18)


_SMALL_RANGES = 64 << 10


def test_rows_are_deleted_and_truncated_between_reading_and_writing(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    fill(database, 1000)
    # Few enough that they all fit into buffers: the reader's lock is gone by then.
    database.run("CREATE TABLE few AS SELECT * FROM t WHERE id <= 20")
    database.run("ALTER TABLE few ADD PRIMARY KEY (id)")
    ingest = ingesting("public.few", "public.t", copy=CopyOptions(workers=1, max_connections=2))
    with gate.holding(ingest, readers=2):
        database.run(
            "TRUNCATE few",
            "INSERT INTO few VALUES (7, 7, 'seven'), (100000, 1, 'new')",
            "DELETE FROM t WHERE id % 2 = 0",
            "UPDATE t SET a = -1 WHERE id % 3 = 0",
        )
        ingest.catch_up()
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.state("public.few").keys() == {b"7", b"100000"}


def test_key_moved_into_a_range_that_was_read_keeps_its_toast_value(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    fill(database, 1000)
    gate.close_after(200)
    ingest = ingesting("public.t", workers=1, range_bytes=_SMALL_RANGES)
    with gate.holding(ingest):
        # From ranges that aren't read yet to keys below all of them, and again, and back.
        database.run(
            "UPDATE t SET id = id - 1000000 WHERE id > 900",
            "UPDATE t SET a = -a WHERE id < 0",
            "UPDATE t SET id = id - 1000000 WHERE id % 2 = 0 AND id < 0",
            "UPDATE t SET id = 5000 + a WHERE id < -1000000",
            "UPDATE t SET a = 0 WHERE id BETWEEN 850 AND 880",
            "DELETE FROM t WHERE id = 860",
        )
        ingest.catch_up()
    ingest.wait_live()
    ingest.assert_equal()


def test_changes_of_tables_of_any_replica_identity(database: Database, live: Start) -> None:
    """Those of t leave a value in TOAST as it was."""
    fill(database, 50)
    tables = {"FULL": "whole", "USING INDEX other": "other_key", "DEFAULT": "usual"}
    for identity, name in tables.items():
        database.run(
            f"CREATE TABLE {name} (LIKE t INCLUDING ALL)",
            f"INSERT INTO {name} SELECT * FROM t",
            f"ALTER TABLE {name} ADD b text NOT NULL DEFAULT 'b'",
            f"ALTER TABLE {name} ADD c uuid NOT NULL DEFAULT gen_random_uuid()",
            f"CREATE UNIQUE INDEX {name}_other ON {name} (b, c)",
            f"ALTER TABLE {name} REPLICA IDENTITY {identity.replace('other', f'{name}_other')}",
        )
    ingest = live("public.t", *(f"public.{name}" for name in tables.values()))
    for name in tables.values():
        database.run(
            f"UPDATE {name} SET a = 1 WHERE id < 10",
            f"UPDATE {name} SET b = 'moved' WHERE id < 20",
            f"UPDATE {name} SET id = -id WHERE id > 40",
            f"DELETE FROM {name} WHERE id = 3",
        )
    database.run(
        "UPDATE t SET a = 77",
        "UPDATE t SET id = id + 1000 WHERE id < 20",
        "BEGIN; UPDATE t SET id = id + 5000 WHERE id = 30; UPDATE t SET a = 1 WHERE id = 5030; END",
    )
    ingest.assert_equal()


def test_transaction_that_was_open_when_the_table_was_added_is_waited_for(
    database: Database, live: Start
) -> None:
    fill(database, 10)
    database.run(
        "CREATE TABLE late (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    ingest = live("public.t")
    ingest.stop()
    with database.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO late VALUES (1)")
        pid = writer.info.backend_pid
        ingest.start("public.t", "public.late", "public.other")
        ingest.wait_until(
            lambda: ingest.status.tables["public.late"].waiting_for == (pid,), "the pid is named"
        )
        ingest.wait_live("public.other")
        writer.execute("INSERT INTO late VALUES (2)")
        assert not ingest.is_live("public.late")
        writer.execute("COMMIT")
    ingest.wait_live("public.late")
    ingest.assert_equal()
    assert ingest.state("public.late").keys() == {b"1", b"2"}


KEYS = {
    "int and text": ("a int, b text", "g % 7, 'k' || g"),
    "text, uuid and int": ("a text, b uuid, c int", "'x\"' || g % 3, gen_random_uuid(), g"),
    "uuid": ("a uuid", "gen_random_uuid()"),
    "char and timestamptz": ("a char(9), b timestamptz", "'c' || g, now() + g * interval '1 s'"),
    "bool, numeric and bytea": (
        "a bool, b numeric, c bytea",
        "g % 2 = 0, g / 3.0, decode(md5(g::text), 'hex')",
    ),
    "array": ("a int[]", "ARRAY[g, NULL, g % 3]"),
    "inet": ("a inet", "'10.0.0.0'::inet + g"),
}


def test_keys_of_any_types_in_ranges_under_writes(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    tables = [f"k{number}" for number in range(len(KEYS))]
    qualified = [f"public.{name}" for name in tables]
    with database.connect() as connection:

        def insert(first: int, last: int) -> None:
            for name, (_, values) in zip(tables, KEYS.values(), strict=True):
                connection.execute(
                    f"INSERT INTO {name} SELECT {values}, g, repeat(md5(g::text), 90)"
                    f" FROM generate_series({first}, {last}) g".encode()
                )

        for name, (columns, _) in zip(tables, KEYS.values(), strict=True):
            key = ", ".join(column.split()[0] for column in columns.split(", "))
            connection.execute(
                f"CREATE TABLE {name} ({columns}, v int, big text, PRIMARY KEY ({key}));"
                f" ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL".encode()
            )
        insert(1, 300)
        # Fewer than a table's rows: none is done before the gate closes.
        gate.close_after(40 * len(KEYS))
        copies = CopyOptions(workers=1, range_bytes=_SMALL_RANGES, max_connections=len(KEYS))
        ingest = ingesting(*qualified, copy=copies)
        with gate.holding(ingest):
            assert all(ingest.status.tables[name].ranges > 2 for name in qualified)
            for name in tables:
                connection.execute(f"UPDATE {name} SET v = -v WHERE v % 3 = 0".encode())
                connection.execute(f"DELETE FROM {name} WHERE v % 5 = 0".encode())
            insert(1000, 1040)
            ingest.catch_up()
        ingest.wait_live()
        ingest.assert_equal()


def test_copy_goes_on_where_it_was_stopped(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    fill(database, 2000)
    gate.close_after(1000)
    ingest = ingesting("public.t", workers=1, range_bytes=_SMALL_RANGES)
    with gate.holding(ingest):
        ingest.wait_until(lambda: ingest.status.tables["public.t"].ranges_done > 2, "ranges done")
        ranges, done = (
            getattr(ingest.status.tables["public.t"], name) for name in ("ranges", "ranges_done")
        )
        ingest.stop()
    database.run("DELETE FROM t WHERE id % 7 = 0", "UPDATE t SET a = 0 WHERE id % 11 = 0")
    ingest.start()
    ingest.wait_live()
    ingest.assert_equal()
    read_again = ingest.status.tables["public.t"].copied_rows
    assert 0 < read_again < 2000 * (ranges - done + 1) / ranges


def test_rows_that_commit_asynchronously_are_all_there(database: Database, live: Start) -> None:
    fill(database, 1000)

    def write(session: Connection, number: int) -> None:
        session.execute(
            "INSERT INTO t VALUES (%s, 0, 'x') ON CONFLICT (id) DO UPDATE SET a = t.a + 1",
            (number * 37 % 3000,),
        )
        session.execute("DELETE FROM t WHERE id = %s", (number * 91 % 3000,))

    with beside(database, write, writers=2, synchronous_commit="off"):
        ingest = live("public.t", range_bytes=_SMALL_RANGES)
    ingest.assert_equal()
