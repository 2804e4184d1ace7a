"""The role that check's statements make has the rights that the server needs, and no others."""

from pathlib import Path

import psycopg
import pytest

from laredo_archive.maintain.compare_postgres import Database as Measuring
from tests.fanout.app.checking import check, missing
from tests.support import drawn
from tests.support.clusters import Clusters
from tests.support.postgres import Database
from tests.support.processes import wait_until
from tests.support.server.fanout_program import fanout, started


@pytest.mark.parametrize("version", drawn.first(1, [18, 15]))
def test_a_server_runs_as_the_role_that_check_makes(
    clusters: Clusters, tmp_path: Path, version: int
) -> None:
    database = clusters.lead_to(clusters.new(version))
    with database.connect() as owner:
        owner.execute('CREATE SCHEMA "S x"')
        owner.execute('CREATE TABLE "S x"."T" (id int PRIMARY KEY, v text)')
        owner.execute("CREATE TABLE a (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)")
        owner.execute("CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (1000)")
        owner.execute("CREATE TABLE log (v text)")
        owner.execute("CREATE TABLE secret (v text)")
        for table in ('"S x"."T"', "a"):
            owner.execute(
                f"INSERT INTO {table} SELECT g, 'x' FROM generate_series(1, 99) g".encode()
            )
        owner.execute("INSERT INTO log VALUES ('one')")
    tables = '{ schema = "S x", table = T }, { table = a }, { table = log, append_only = true }'
    _, found = check(tmp_path, database.dsn, tables)
    assert found["role"]["verdict"] == "warning"
    assert "postgres is a superuser" in found["role"]["detail"]
    statements = found["role"]["cure"].removeprefix("as an owner: ").split("; ")
    with database.connect() as owner:
        for statement in statements:
            if not statement.startswith("Then"):
                owner.execute(statement.encode())
    dsn = psycopg.conninfo.make_conninfo(database.dsn, user="laredo")
    code, found = check(tmp_path, dsn, tables)
    assert (code, missing(found)) == (0, set())
    assert found["role"]["detail"] == "laredo: not a superuser"
    server = fanout(tmp_path / "server", dsn, tables)
    with started(server):
        with database.connect() as owner:
            owner.execute("INSERT INTO a VALUES (500, 'later')")
            owner.execute("INSERT INTO log VALUES ('two')")
            for name, rows in (("S x.T", 99), ("public.a", 100), ("public.log", 2)):
                wait_until(lambda name=name, rows=rows: server.table(name)["rows"] == rows, name)
        with Measuring.connected(dsn) as measuring:
            assert measuring.measure(measuring.table("public.a", None)).rows == 100
    with psycopg.connect(dsn, autocommit=True) as role:
        for refused in (
            "SELECT FROM secret",
            "INSERT INTO a VALUES (1001, 'x')",
            "ALTER TABLE a ADD COLUMN x int",
            "CREATE ROLE x",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                role.execute(refused.encode())


@pytest.mark.parametrize("encoding", drawn.first(1, ["LATIN1", "SQL_ASCII"]))
def test_another_encoding_is_refused(tmp_path: Path, database: Database, encoding: str) -> None:
    name = f"{database.name}_{encoding}".lower()
    database.run(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        other = Database(database.server, name)
        with other.connect() as owner:
            owner.execute("CREATE TABLE a (id int PRIMARY KEY)")
        code, found = check(tmp_path, other.dsn, "{ table = a }")
        assert code == 1
        assert f"encoded in {encoding}, UTF8 is needed" in found["server"]["detail"]
        server = fanout(tmp_path / "server", other.dsn, "{ table = a }")
        with server.program:
            wait_until(
                lambda: any(f"encoded in {encoding}" in each for each in server.problems),
                "it says so",
            )
        with other.connect() as owner:
            row = owner.execute(
                "SELECT count(*) FROM pg_replication_slots WHERE database = %s", (name,)
            ).fetchone()
        assert row == (0,)
    finally:
        database.run(f"DROP DATABASE {name} WITH (FORCE)")


def test_check_tells_of_slots_that_arent_ours(tmp_path: Path, database: Database) -> None:
    """A slot of this database that the empty store can't have used, and the default elsewhere."""
    database.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE DATABASE elsewhere")
    try:
        elsewhere = Database(database.server, "elsewhere")
        with elsewhere.connect() as owner:
            owner.execute("SELECT pg_create_logical_replication_slot('laredo', 'pgoutput')")
        code, found = check(tmp_path, database.dsn, "{ table = a }")
        assert (code, missing(found)) == (0, set())
        assert "slot laredo (pgoutput, database elsewhere" in found["slot_name"]["detail"]
        assert found["slot"]["detail"].startswith("laredo_")
        with elsewhere.connect() as owner:
            owner.execute("SELECT pg_drop_replication_slot('laredo')")
        database.run("SELECT pg_create_logical_replication_slot('laredo', 'pgoutput')")
        code, found = check(tmp_path, database.dsn, "{ table = a }")
        assert code == 1
        assert "it has never used that slot" in found["slot"]["detail"]
        assert "SELECT pg_drop_replication_slot('laredo')" in found["slot"]["cure"]
    finally:
        database.run("DROP DATABASE elsewhere WITH (FORCE)")
