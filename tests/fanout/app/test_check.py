"""``laredo-fanout check`` against a real PostgreSQL: what is missing, and that cures cure it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from tests.fanout.app.checking import check, missing
from tests.support import drawn, processes
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, wait_until
from tests.support.server.certificates import Authority
from tests.support.server.fanout_program import CONFIG, Fanout, fanout, relay, started


def test_a_sound_set_up_lacks_nothing(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    code, found = check(tmp_path, database.dsn, "{ table = a }")
    assert (code, missing(found)) == (0, set())
    assert found["table public.a"]["detail"] == "key id"
    with database.connect() as owner:
        slots = owner.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = %s", (database.name,)
        ).fetchone()
        publications = owner.execute("SELECT count(*) FROM pg_publication").fetchone()
    assert (slots, publications) == ((0,), (0,)), "check changed something"


def test_an_archive_is_looked_at(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    place = tmp_path / "archive"
    archive = f'archive {{ store_config {{ path = "{place}" }} }}'
    tables = f"{{ table = a, targets = [ {{ {archive} }} ] }}"
    name = "tables[0].targets[0].archive"

    def found() -> dict[str, Any]:
        return check(tmp_path, database.dsn, tables)[1][name]

    place.mkdir()
    assert (found()["verdict"], "late clients" in found()["detail"]) == ("warning", True)
    manifest = place / "a" / "manifest.json"
    for table in ("public.b", "public.a"):
        TableArchive.open([LocalDestination(place)], table, key_prefix="a/")
        verdict = "ok" if table == "public.a" else "missing"
        assert found()["verdict"] == verdict, found()
        manifest.unlink()
    manifest.write_text("{")
    assert check(tmp_path, database.dsn, tables)[0] == 1
    assert "manifest is damaged" in found()["detail"]


def test_tables_that_cannot_be_replicated_each_get_their_cure(
    tmp_path: Path, database: Database
) -> None:
    with database.connect() as owner:
        owner.execute("CREATE TABLE nokey (id int)")
        owner.execute("CREATE TABLE indexed (id int NOT NULL UNIQUE)")
        owner.execute("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")
        tables = "{ table = nokey }, { table = indexed }, { table = unlogged }, { table = nosuch }"
        code, found = check(tmp_path, database.dsn, tables)
        assert code == 1
        assert missing(found) >= {
            f"table public.{name}" for name in ("nokey", "indexed", "unlogged", "nosuch")
        }
        assert "doesn't exist" in found["table public.nosuch"]["detail"]
        assert "replica identity" in found["table public.nokey"]["detail"]
        for name in ("indexed", "unlogged"):
            owner.execute(found[f"table public.{name}"]["cure"].encode())
        code, found = check(tmp_path, database.dsn, "{ table = indexed }, { table = unlogged }")
        assert (code, missing(found)) == (0, set())


def test_columns_whose_text_depends_on_something_else_are_named(
    tmp_path: Path, database: Database
) -> None:
    database.run(
        "CREATE TYPE pair AS (name text, price money)",
        "CREATE DOMAIN roles AS regrole[]",
        "CREATE TABLE a (id int PRIMARY KEY, kind regclass, roles roles, pairs pair[], n oid)",
    )
    code, found = check(tmp_path, database.dsn, "{ table = a }")
    named = {what: each for what, each in found.items() if what.startswith("column")}
    assert code == 0
    assert named.keys() == {f"column public.a.{name}" for name in ("kind", "roles", "pairs")}
    assert {each["verdict"] for each in named.values()} == {"warning"}
    assert "regrole names another object" in named["column public.a.roles"]["detail"]
    assert "lc_monetary" in named["column public.a.pairs"]["detail"]
    assert "recopy public.a" in named["column public.a.kind"]["cure"]


@pytest.mark.parametrize(("chosen", "said"), [("ALL TABLES", True), ("TABLE a", False)])
def test_what_a_new_file_costs_is_said_of_tables_that_are_not_named(
    tmp_path: Path, database: Database, chosen: str, said: bool
) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)", f"CREATE PUBLICATION laredo FOR {chosen}")
    code, found = check(tmp_path, database.dsn, "{ table = a }")
    assert code == 0
    assert ("TRUNCATE, VACUUM FULL or CLUSTER" in found["publication"]["detail"]) is said


@pytest.fixture
def reader(database: Database) -> Any:
    """A role that may log in and nothing else."""
    role = f"reader_of_{database.name}"
    with database.connect() as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN".encode())
        yield role, psycopg.conninfo.make_conninfo(database.dsn, user=role)
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_role_without_rights_gets_statements_that_cure_it(
    tmp_path: Path, database: Database, reader: tuple[str, str]
) -> None:
    role, dsn = reader
    with database.connect() as owner:
        owner.execute('CREATE SCHEMA "S x"')
        owner.execute('CREATE TABLE "S x"."T" (id int PRIMARY KEY)')
        owner.execute("CREATE TABLE b (id int PRIMARY KEY)")
        tables = '{ schema = "S x", table = T }, { table = b }'
        code, found = check(tmp_path, dsn, tables)
        assert code == 1
        assert {"server", "publication", "table S x.T"} <= missing(found)
        assert f"ALTER ROLE {role} REPLICATION" in found["server"]["cure"].replace('"', "")
        owner.execute(found["server"]["cure"].encode())
        owner.execute(found["table S x.T"]["cure"].encode())
        owner.execute(found["table public.b"]["cure"].encode())
        # All in one go: the first check's statement names tables that couldn't be read then.
        statement = found["publication"]["cure"].removeprefix("an owner runs: ").split("\nor: ")[0]
        assert statement.startswith("CREATE PUBLICATION")
        owner.execute(statement.encode())
        code, found = check(tmp_path, dsn, tables)
        assert (code, missing(found)) == (0, set())


def test_a_table_outside_a_foreign_publication(
    tmp_path: Path, database: Database, reader: tuple[str, str]
) -> None:
    role, dsn = reader
    with database.connect() as owner:
        owner.execute(f"ALTER ROLE {role} REPLICATION".encode())
        owner.execute("CREATE TABLE a (id int PRIMARY KEY)")
        owner.execute("CREATE TABLE b (id int PRIMARY KEY)")
        owner.execute(f"GRANT SELECT ON a, b TO {role}".encode())
        owner.execute("CREATE PUBLICATION laredo FOR TABLE a")
        code, found = check(tmp_path, dsn, "{ table = a }, { table = b }")
        assert (code, missing(found)) == (1, {"table public.b"})
        cure = found["table public.b"]["cure"].removeprefix("an owner runs: ")
        owner.execute(cure.encode())
        assert check(tmp_path, dsn, "{ table = a }, { table = b }")[0] == 0


def test_functions_that_a_copy_may_run_are_named(
    tmp_path: Path, database: Database, reader: tuple[str, str]
) -> None:
    """Functions whose owner may not read every followed table, however they are reached."""
    reading, dsn = reader
    owner = f"owner_of_{database.name}"
    depending = {
        "constant": "CREATE INDEX ON constant (abs(n + lie(1)))",
        "predicate": "CREATE INDEX ON predicate (n) WHERE n > lie(1)",
        "statistic": "CREATE STATISTICS s ON (n + lie(1)), id FROM statistic",
        "operators": "CREATE INDEX ON operators ((n + (n ~~~ 2)))",
        "domains": "CREATE INDEX ON domains ((n + (5::lies)::int))",
        "root": "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (9);"
        " CREATE INDEX ON leaf ((lie(n)))",
    }
    plain = {
        "built_in": "CREATE INDEX ON built_in (abs(n))",
        "trusted": "CREATE INDEX ON trusted (truth(n))",
        "others": "ALTER TABLE others ADD CHECK (lie(n) = n), ALTER n SET DEFAULT lie(1)",
    }
    with database.connect() as admin:
        admin.execute(f"ALTER ROLE {reading} REPLICATION; CREATE ROLE {owner}".encode())
        admin.execute(f"GRANT CREATE ON SCHEMA public TO {owner}".encode())
        admin.execute("CREATE TABLE secret (id int PRIMARY KEY)")
        body = "(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'"
        admin.execute(f"CREATE FUNCTION truth{body}".encode())
        admin.execute(f"SET ROLE {owner}".encode())
        admin.execute(f"CREATE FUNCTION lie{body}; CREATE FUNCTION lied{body}".encode())
        admin.execute(
            "CREATE FUNCTION lie(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'"
        )
        admin.execute("CREATE OPERATOR ~~~ (FUNCTION = lie, LEFTARG = int, RIGHTARG = int)")
        admin.execute("CREATE DOMAIN lies AS int CHECK (lied(VALUE) = VALUE)")
        for name, statement in {**depending, **plain}.items():
            ranges = " PARTITION BY RANGE (id)" if name == "root" else ""
            admin.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, n int){ranges}".encode())
            admin.execute(statement.encode())
        admin.execute("RESET ROLE")
        admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reading}".encode())
        admin.commit()
        tables = ", ".join(f"{{ table = {name} }}" for name in (*depending, *plain, "secret"))
        _, found = check(tmp_path, dsn, tables)
        named = {what for what in found if what.startswith("functions of table ")}
        assert named == {f"functions of table public.{name}" for name in depending}
        detail = found["functions of table public.domains"]["detail"]
        assert f"lied(integer) of role {owner}, who may not read every" in detail
        assert reading in detail
        # Who may read all of them learns nothing.
        admin.execute(f"GRANT SELECT ON secret TO {owner}".encode())
        admin.commit()
        _, found = check(tmp_path, dsn, tables)
        assert not [what for what in found if what.startswith("functions of table ")]


def test_a_server_that_is_away_and_files_that_cannot_be_used(tmp_path: Path) -> None:
    extra = (
        f'fanout.grpc {{ tokens_file = "{tmp_path}/none", tls {{ cert = "{tmp_path}/fanout.conf",'
        f' key = "{tmp_path}/nokey" }} }}'
    )
    dsn = f"postgresql://u:hunter2@/db?host={tmp_path}"
    code, found = check(tmp_path, dsn, "{ table = a }", extra)
    assert code == 1
    assert missing(found) == {
        "sources.pg.connection",
        "fanout.grpc.tokens_file",
        "fanout.grpc.tls.cert",
        "fanout.grpc.tls.key",
    }
    assert "hunter2" not in json.dumps(found)


def test_on_a_terminal_it_is_a_table_with_the_statements_whole(
    tmp_path: Path, database: Database
) -> None:
    name = "a_table_with_a_name_that_is_rather_long_for_one_column"
    database.run(f"CREATE TABLE {name} (identifier_of_the_row int NOT NULL UNIQUE)")
    check(tmp_path, database.dsn, f"{{ table = {name} }}")
    done = processes.run(
        "laredo-fanout",
        "--config",
        tmp_path / "fanout.conf",
        "check",
        environment={**os.environ, "COLUMNS": "60"},
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ALTER TABLE")]
    with database.connect() as owner:
        owner.execute(line.encode())
    assert check(tmp_path, database.dsn, f"{{ table = {name} }}")[0] == 0


@pytest.mark.parametrize("command", drawn.first(1, [[], ["check"], ["status"]]))
def test_a_wrong_configuration_ends_every_command_with_its_message(
    tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "fanout.conf"
    file.write_text('sources {\n pg { connection = "host=x", slotname = a } }\ntables = [ {} ]\n')
    done = processes.run("laredo-fanout", "--config", file, *command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"laredo-fanout: {file}:2: sources.pg.slotname: unknown key;"
        ' the nearest known key is "slot_name"',
        f"laredo-fanout: {file}:3: tables[0].table: is required",
    ]


def test_without_a_configuration_it_says_how_to_give_one() -> None:
    done = processes.run(
        "laredo-fanout",
        environment={key: value for key, value in os.environ.items() if key != "LAREDO_CONFIG"},
    )
    assert done.returncode == 2
    assert "--config FILE" in done.stderr


def test_the_configuration_may_be_named_by_the_environment(
    tmp_path: Path, database: Database
) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    check(tmp_path, database.dsn, "{ table = nosuch }")
    done = processes.run(
        "laredo-fanout",
        "check",
        "--set",
        "tables.0.table=a",
        environment={**os.environ, "LAREDO_CONFIG": str(tmp_path / "fanout.conf")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "public.a" in done.stdout


# ``laredo-fanout check`` finds whatever the server would refuse because of its store or slot.


TABLES = "{ table = a }"


def checked(server: Fanout, extra: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings of ``check``, which must not call all well if something isn't."""
    more = ["--set", extra] if extra else []
    done = server.run("check", "--json", *more)
    assert done.stdout, done.stderr
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    is_well = not missing(found) and "store in use" not in found
    assert ("nothing is missing" in server.run("check", *more).stdout) is is_well
    return done.returncode, found


def refused(server: Fanout, reason: str) -> None:
    """Start the server for real: it doesn't follow the slot, for this reason."""
    with server.program:
        wait_until(lambda: any(reason in each for each in server.problems), reason, 60)


def over(server: Fanout, database: Database, state: Path) -> Fanout:
    """The server's ports, with PostgreSQL and the server's slot, over another store."""
    file = server.directory / "over.conf"
    http = server.program.http.rpartition(":")[2]
    text = CONFIG.format(
        directory=state.parent, dsn=database.dsn, slot=f"s_{database.name}",
        grpc=server.grpc_port, http=http, tables=TABLES,
    )  # fmt: skip
    file.write_text(text)
    program = Program("laredo-fanout", file, int(http), log=server.directory / "over.log")
    return Fanout(program, server.grpc_port, server.directory)


def test_a_store_in_use_and_an_empty_one(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    fresh = fanout(tmp_path / "fresh", database, TABLES)
    with started(server):
        code, found = checked(server)
        assert (code, missing(found)) == (0, set())
        assert found["store in use"]["verdict"] == "warning"
        assert str(server.program.pid) in found["store in use"]["detail"]
        code, found = checked(fresh)
        assert (code, missing(found)) == (1, {"slot"}), "another store uses it"
    code, found = checked(server)
    assert (code, missing(found)) == (0, set()), "its own slot"


@pytest.mark.thorough
def test_slots_of_other_stores_are_refused(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    fresh = fanout(tmp_path / "fresh", database, TABLES)
    other = fanout(tmp_path / "other", database.dsn, TABLES, slot=f"o_{database.name}")
    following = relay(tmp_path / "relay", server.grpc_port, TABLES)
    with started(server):
        refused(fresh, "is in use")
        with started(following), started(other):
            pass
    for each in (following, other):
        taking = over(each, database, each.directory / "state")
        code, found = checked(taking)
        assert (code, missing(found)) == (1, {"slot"})
        refused(taking, "this store has never used it")


def test_a_lost_slot(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    with started(server):
        pass
    database.run(f"SELECT pg_drop_replication_slot('s_{database.name}')")
    code, found = checked(server)
    assert (code, found["slot"]["verdict"]) == (0, "warning")
    assert "copied again" in found["slot"]["detail"]
    fails = "sources.pg.on_slot_lost=fail"
    code, found = checked(server, fails)
    assert (code, missing(found)) == (1, {"slot"})
    file = server.program.config
    file.write_text(file.read_text() + "sources.pg.on_slot_lost = fail\n")
    refused(server, "doesn't exist any more")


def test_a_store_that_cannot_be_read(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    state = server.directory / "state"
    state.mkdir()
    (state / "data.mdb").write_bytes(b"no store" * 1000)
    code, found = checked(server)
    assert (code, missing(found)) == (1, {"store"})
    assert "is damaged" in found["store"]["detail"]


# The server's certificates in check, in the log and in the metrics.


NAME = 'laredo_certificate_expiry_timestamp_seconds{certificate="fanout.grpc.tls.cert"}'


def with_certificate(tmp_path: Path, days: int) -> Fanout:
    authority = Authority(tmp_path / "ca")
    files = authority.sign("server", days)
    tls = f'tls {{ cert = "{files.cert}", key = "{files.key}", client_ca = "{authority.pem}" }}'
    away = f"host=127.0.0.1 port={free_port()} dbname=none"
    more = f"fanout.grpc {{ host = 127.0.0.1, {tls} }}\n"
    return fanout(tmp_path / "server", away, "{ table = a }", more)


@pytest.mark.parametrize(("days", "verdict"), [(0, "missing"), (5, "warning"), (90, "ok")])
def test_check_says_when_it_expires(tmp_path: Path, days: int, verdict: str) -> None:
    found = json.loads(with_certificate(tmp_path, days).run("check", "--json").stdout)
    by_name = {each["what"]: each for each in found}
    assert by_name["fanout.grpc.tls.cert"]["verdict"] == verdict, by_name
    assert by_name["fanout.grpc.tls.client_ca"]["verdict"] == "ok"


def test_log_and_metric_follow_the_file(tmp_path: Path) -> None:
    server = with_certificate(tmp_path, 5)
    with server.program:
        wait_until(lambda: server.program.get("/health/live"), "live")
        wait_until(lambda: "certificate expires soon" in server.program.tail(10**6), "logged")
        before = server.metrics[NAME]
        Authority(tmp_path / "ca").sign("server", 400)
        assert 390 < (server.metrics[NAME] - before) / 86400 < 400
