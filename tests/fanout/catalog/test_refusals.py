"""Unfit tables are refused before they can do harm, with the cure; the others go on."""

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.errors import SourceUnfit
from laredo_fanout.pg_catalog import requirements
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import RightsMissing, SourceUnavailable
from laredo_fanout.source_options import SourceOptions
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, data_directory

UNFIT = {
    "no key": (
        "CREATE TABLE {t} (id int, a text)",
        'ALTER TABLE "public"."{t}" ADD PRIMARY KEY (...);',
    ),
    "no key but an index that could be one": (
        "CREATE TABLE {t} (id int NOT NULL UNIQUE, a text)",
        'ALTER TABLE "public"."{t}" REPLICA IDENTITY USING INDEX "{t}_id_key";',
    ),
    "identity nothing": (
        "CREATE TABLE {t} (id int PRIMARY KEY); ALTER TABLE {t} REPLICA IDENTITY NOTHING",
        'ALTER TABLE "public"."{t}" REPLICA IDENTITY DEFAULT;',
    ),
    "full, without a key": (
        "CREATE TABLE {t} (id int); ALTER TABLE {t} REPLICA IDENTITY FULL",
        "set append_only = true",
    ),
    "deferrable key": (
        "CREATE TABLE {t} (id int PRIMARY KEY DEFERRABLE)",
        "ADD PRIMARY KEY",
    ),
    "missing": ("SELECT 1", "create it, or take public.{t} out of tables"),
    "view": ("CREATE VIEW {t} AS SELECT 1 AS id", "take public.{t} out of tables"),
    "unlogged": (
        "CREATE UNLOGGED TABLE {t} (id int PRIMARY KEY)",
        'ALTER TABLE "public"."{t}" SET LOGGED;',
    ),
    "generated key": (
        "CREATE TABLE {t} (a int, id int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY)",
        "SET (publish_generated_columns = stored)",
    ),
    "partitioned, without a key": (
        "CREATE TABLE {t} (id int) PARTITION BY RANGE (id)",
        'ALTER TABLE "public"."{t}" ADD PRIMARY KEY (...);',
    ),
    "a foreign partition": (
        "CREATE TABLE {t} (id int, a text) PARTITION BY RANGE (id);"
        " CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
        " CREATE FOREIGN TABLE {t}_f PARTITION OF {t} FOR VALUES FROM (0) TO (10) SERVER s",
        'ALTER TABLE "public"."{t}" DETACH PARTITION public.{t}_f;',
    ),
    "an unlogged partition": (
        "CREATE TABLE {t} (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);"
        " CREATE UNLOGGED TABLE {t}_f PARTITION OF {t} FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE public.{t}_f SET LOGGED;",
    ),
    "a partition with another identity": (
        "CREATE TABLE {t} (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);"
        " CREATE TABLE {t}_f PARTITION OF {t} FOR VALUES FROM (0) TO (10);"
        " ALTER TABLE {t}_f REPLICA IDENTITY NOTHING",
        "ALTER TABLE public.{t}_f REPLICA IDENTITY DEFAULT;",
    ),
}


def test_unfit_tables_are_refused_until_they_are_cured_and_the_others_go_on(
    database: Database, ingesting: Start
) -> None:
    names = {kind: f"bad_{number}" for number, kind in enumerate(UNFIT)}
    for kind, (statement, _) in UNFIT.items():
        database.run(statement.replace("{t}", names[kind]))
    database.run("CREATE TABLE good (id int PRIMARY KEY)", "INSERT INTO good VALUES (1)")
    tables = [f"public.{name}" for name in names.values()]
    ingest = ingesting(*tables, "public.good", heartbeat_interval=0.1)
    ingest.wait_live("public.good")
    ingest.assert_equal("public.good")
    for kind, (_, cure) in UNFIT.items():
        error = ingest.status.tables[f"public.{names[kind]}"].error
        assert error is not None, kind
        assert error.startswith(f"table public.{names[kind]}: "), error
        assert cure.replace("{t}", names[kind]) in error
    with database.connect() as connection:
        published = connection.execute("SELECT tablename FROM pg_publication_tables").fetchall()
        assert published == [("good",)]
        for kind in ("no key", "identity nothing", "deferrable key"):
            for statement in (
                "INSERT INTO {t} VALUES (1)",
                "UPDATE {t} SET id = 2",
                "DELETE FROM {t}",
                "INSERT INTO {t} VALUES (3)",
            ):
                connection.execute(statement.replace("{t}", names[kind]).encode())
    for kind in ("no key", "an unlogged partition", "a partition with another identity"):
        table = f"public.{names[kind]}"
        cure = UNFIT[kind][1].replace("{t}", names[kind]).replace("...", "id")
        database.run(f"INSERT INTO {table} VALUES (1, 'a')", f"UPDATE {table} SET a = 'b'", cure)
        ingest.wait_live(table)
        ingest.assert_equal(table)
        assert ingest.status.tables[table].error is None


def test_generated_key_is_followed_where_it_is_published(database: Database, live: Start) -> None:
    """Before the table is in the publication, too: then it has no column list to go by."""
    database.run(
        "CREATE TABLE t (a int, id int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY, b text)",
        "INSERT INTO t SELECT g FROM generate_series(1, 10) g",
        f"CREATE PUBLICATION pub_{database.name} WITH (publish_generated_columns = stored)",
    )
    ingest = live("public.t")
    database.run("UPDATE t SET a = 100 WHERE a = 1", "INSERT INTO t VALUES (11, DEFAULT, 'b')")
    ingest.assert_equal()
    assert ingest.state("public.t")[b"200"] == b'{"a":100,"id":200,"b":null}'


def test_table_that_is_dropped_while_it_enters_the_publication(
    database: Database, ingesting: Start
) -> None:
    """The catalog shows it until the drop commits, and ALTER PUBLICATION waits for that."""
    database.run(
        "CREATE TABLE good (id int PRIMARY KEY)",
        "INSERT INTO good VALUES (1)",
        "CREATE SCHEMA gone",
        "CREATE TABLE gone.t (id int PRIMARY KEY)",
        "CREATE TABLE bad (id int PRIMARY KEY)",
    )
    with database.connect() as dropping, database.connect() as connection:
        dropping.execute("BEGIN; DROP TABLE bad; DROP SCHEMA gone CASCADE")
        ingest = ingesting("public.bad", "gone.t", "public.good", heartbeat_interval=0.1)
        waiting = (
            "SELECT FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE 'ALTER PUBLICATION%' AND wait_event_type = 'Lock'"
        )
        ingest.wait_until(lambda: connection.execute(waiting).fetchall(), "it waits for the drop")
        dropping.execute("COMMIT")
    ingest.wait_live("public.good")
    ingest.assert_equal("public.good")
    assert (ingest.status.error, ingest.status.reconnects) == (None, 0)
    for name in ("public.bad", "gone.t"):
        error = ingest.status.tables[name].error
        assert error is not None and error.startswith(f"table {name}: it "), error
    database.run("CREATE TABLE bad (id int PRIMARY KEY)")
    ingest.wait_live("public.bad")


def test_publication_that_we_may_not_change(database: Database, ingesting: Start) -> None:
    database.run(
        "CREATE TABLE inside (id int PRIMARY KEY)",
        "CREATE TABLE outside (id int PRIMARY KEY)",
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE inside",
    )
    ingest = ingesting("public.inside", "public.outside", create_publication=False)
    ingest.wait_live("public.inside")
    error = ingest.status.tables["public.outside"].error
    assert error is not None
    assert f'ALTER PUBLICATION "pub_{database.name}" ADD TABLE ONLY "public"."outside";' in error


def test_column_list_and_row_filter_hold_in_the_copy(database: Database, live: Start) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, shown text, hidden text)",
        "INSERT INTO t SELECT g, 's' || g, 'h' || g FROM generate_series(1, 20) g",
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE t (id, shown) WHERE (id > 10)",
    )
    ingest = live("public.t", create_publication=False)
    database.run("INSERT INTO t VALUES (-5, 'no', 'x'), (50, 'yes', 'x')")
    ingest.catch_up()
    state = ingest.state("public.t")
    assert state.keys() == {str(number).encode() for number in (*range(11, 21), 50)}
    assert state[b"50"] == b'{"id":50,"shown":"yes"}'
    assert state[b"11"] == b'{"id":11,"shown":"s11"}'


def test_plain_replication_role_is_told_what_an_owner_must_run(
    database: Database, tmp_path: Path
) -> None:
    """Row level security is refused, too, rather than that a part is copied."""
    role = f"plain_{database.name}"
    database.run(
        f"DROP ROLE IF EXISTS {role}",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "INSERT INTO t VALUES (1)",
    )
    ingest = RunningIngest(database, tmp_path, ("public.t",))
    ingest.options = replace(
        ingest.options,
        connection=database.dsn.replace("postgres@", f"{role}@"),
        heartbeat_interval=0.1,
    )

    def refused_with(cure: str) -> None:
        ingest.wait_until(
            lambda: cure in (ingest.status.tables["public.t"].error or ""), "it is refused"
        )

    try:
        ingest.start()
        ingest.wait_until(lambda: ingest.status.error, "it says what is missing")
        assert "CREATE PUBLICATION" in ingest.status.error
        database.run(f"CREATE PUBLICATION {ingest.options.publication.name} FOR TABLE t")
        refused_with(f'GRANT SELECT ON "public"."t" TO "{role}";')
        database.run(f"GRANT SELECT ON t TO {role}")
        refused_with(f'ALTER ROLE "{role}" BYPASSRLS;')
        database.run(f"ALTER ROLE {role} BYPASSRLS")
        ingest.wait_live()
        ingest.assert_equal()
    finally:
        ingest.stop()
        database.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_role_without_replication_is_named_with_its_cure(database: Database) -> None:
    role = f"weak_{database.name}"
    database.run(f"DROP ROLE IF EXISTS {role}", f"CREATE ROLE {role} LOGIN")
    dsn = database.dsn.replace("postgres@", f"{role}@")
    with psycopg.connect(dsn, autocommit=True) as connection:
        problems = requirements.server_problems(connection)
    assert [str(problem) for problem in problems if isinstance(problem, RightsMissing)] == [
        f'role {role} may not replicate: ALTER ROLE "{role}" REPLICATION;'
    ]
    with pytest.raises(RightsMissing, match="grant the right"):
        connections.connect(SourceOptions(dsn), role="stream", replication=True)
    database.run(f"DROP ROLE {role}")


def test_wal_level_is_named_with_its_cure() -> None:
    settings = {"wal_level": "replica", "max_replication_slots": "0"}
    with (
        data_directory() as data,
        EmbeddedPostgres(data, settings=settings) as server,
        server.connect() as connection,
    ):
        problems = requirements.server_problems(connection)
    assert all(isinstance(problem, SourceUnfit) for problem in problems)
    texts = " ".join(map(str, problems))
    assert "ALTER SYSTEM SET wal_level = 'logical'" in texts
    assert "max_replication_slots" in texts


def test_server_that_is_away(tmp_path: Path) -> None:
    options = SourceOptions(f"postgresql://postgres@/none?host={tmp_path}")
    with pytest.raises(SourceUnavailable, match="can't be reached"):
        connections.connect(options, role="stream")


def test_server_that_answers_with_an_error_was_reached(database: Database) -> None:
    with (
        connections.connect(SourceOptions(database.dsn), role="side") as connection,
        pytest.raises(SourceUnavailable, match=r"answered with an error \(divide\): division by"),
        connections.translated("divide"),
    ):
        connection.execute("SELECT 1 / 0")
