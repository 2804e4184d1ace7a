"""verify --against: PostgreSQL computes its own side, and only what is known is said."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from laredo_archive.errors import DatabaseUnusable
from laredo_archive.maintain import compare_postgres
from laredo_archive.maintain.compare_postgres import Comparison, Database, compare
from laredo_archive.reader import Archive
from laredo_fanout.source_config import Source
from laredo_model import position as positions
from laredo_model.column import Column
from tests.support.archive.building import Builder, State
from tests.support.postgres import Database as OwnDatabase

COLUMNS = (
    Column("id", "int8", -1, False, 1, 1),
    Column("name", "text", -1, True, 2),
    Column("n", "numeric", -1, True, 3),
    Column("doc", "json", -1, True, 4),
)


class Live:
    """A table ``public.users``, and an archive of it as a snapshotter would have written it."""

    def __init__(self, database: OwnDatabase, directory: Path) -> None:
        self.dsn = database.dsn
        self.connection = database.connect()
        self.connection.autocommit = True
        self.execute(
            "CREATE TABLE users (id bigint PRIMARY KEY, name text, n numeric, doc json)",
            "INSERT INTO users SELECT i, 'näme ' || i, i / 3.0, '{\"a\": [1.50,\n2]}'"
            " FROM generate_series(1, 500) i",
        )
        with Database.connected(self.dsn) as asked:
            history = str(asked.history())
        self.built = Builder(directory, columns=COLUMNS, history=history)
        self.built.base(self.position(), self.rows())

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def position(self) -> int:
        ((text,),) = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        return positions.parse(str(text))

    def rows(self) -> State:
        """Made without our own SELECT."""
        found = self.connection.execute(
            "SELECT id::text, '{\"id\":' || id || ',\"name\":' || coalesce(to_json(name)::text,"
            " 'null') || ',\"n\":' || coalesce('\"' || n || '\"', 'null') || ',\"doc\":' ||"
            " coalesce(replace(doc::text, E'\\n', ' '), 'null') || '}' FROM users"
        ).fetchall()
        return dict(sorted((str(key).encode(), str(line).encode()) for key, line in found))

    def diff(self) -> None:
        self.built.diff(self.position(), self.rows())

    def see(self) -> None:
        self.built.seen = self.position()

    def archive(self) -> Archive:
        return Archive.at(str(self.built.write()))

    def compare(self, **more) -> compare_postgres.ComparisonResult:
        return compare(self.archive(), self.dsn, **more)


@pytest.fixture
def live(database: OwnDatabase, tmp_path: Path) -> Iterator[Live]:
    made = Live(database, tmp_path)
    yield made
    made.connection.close()


def test_equal_to_the_head(live: Live) -> None:
    assert live.compare().outcome is Comparison.EQUAL
    live.execute("UPDATE users SET name = NULL WHERE id < 20", "DELETE FROM users WHERE id > 400")
    live.diff()
    verdict = live.compare()
    assert verdict.outcome is Comparison.EQUAL
    assert "400 rows" in verdict.reason


def test_different_if_the_archive_knows_that_nothing_changed(live: Live) -> None:
    wrong = dict(live.rows())
    wrong.pop(b"7")
    live.built.diff(live.position(), wrong)
    live.execute("SELECT pg_logical_emit_message(true, 'x', 'moves the WAL on')")
    live.built.seen = live.position() + (1 << 20)
    verdict = live.compare()
    assert verdict.outcome is Comparison.DIFFERENT
    assert "the database has 500 rows" in verdict.reason
    assert "499 rows" in verdict.reason


def test_waits_for_the_archive(live: Live) -> None:
    live.execute("DELETE FROM users WHERE id = 1")
    archive = live.archive()
    waited = threading.Event()

    def catch_up(step: str) -> None:
        if "waiting for the archive" in step and not waited.is_set():
            waited.set()
            live.diff()
            live.built.write()

    verdict = compare(archive, live.dsn, wait_s=60, progress=catch_up)
    assert waited.is_set()
    assert verdict.outcome is Comparison.EQUAL


def test_undecided_where_the_table_changed_between_boundaries(live: Live) -> None:
    """The archive was past the moment of measuring, and no artifact ends there."""
    live.execute("DELETE FROM users WHERE id = 1")
    archive = live.archive()

    def go_past(step: str) -> None:
        if "waiting for the archive" in step:
            live.execute("DELETE FROM users WHERE id = 2")
            live.diff()
            live.built.write()

    verdict = compare(archive, live.dsn, wait_s=60, progress=go_past)
    assert verdict.outcome is Comparison.UNDECIDED
    assert "the table changed around" in verdict.reason


def test_lock_decides_and_keeps_writers_out(live: Live) -> None:
    live.execute("DELETE FROM users WHERE id = 1")
    archive = live.archive()
    refused: list[Exception] = []

    def write_meanwhile(step: str) -> None:
        if "waiting for the archive" in step:
            live.execute("SET lock_timeout = '50ms'")
            try:
                live.execute("DELETE FROM users WHERE id = 2")
            except psycopg.errors.LockNotAvailable as failure:
                refused.append(failure)
            live.built.seen = live.position() + (1 << 20)
            live.built.write()

    verdict = compare(archive, live.dsn, lock=True, wait_s=60, progress=write_meanwhile)
    assert refused
    assert verdict.outcome is Comparison.DIFFERENT
    live.execute("DELETE FROM users WHERE id = 2")  # the lock is gone
    live.diff()
    assert live.compare(lock=True).outcome is Comparison.EQUAL


def test_a_lock_ends_if_the_program_hangs(live: Live) -> None:
    with (
        pytest.raises(DatabaseUnusable, match="idle-in-transaction timeout"),
        Database.connected(live.dsn) as asked,
        asked.locked(asked.table("public.users", None), 0.1),
    ):
        live.execute("UPDATE users SET n = 1 WHERE id = 1")


def test_an_unreachable_server_is_noticed(live: Live) -> None:
    with Database.connected(live.dsn) as asked:
        given = asked._connection.info.get_parameters()
    assert given["keepalives_idle"] == "30"


def test_difference_isn_t_claimed_while_somebody_writes(live: Live) -> None:
    """A transaction that holds the table's lock may have committed without being visible yet."""
    live.built.diff(live.position(), {})
    live.built.seen = live.position() + (1 << 20)
    archive = live.archive()
    assert compare(archive, live.dsn).outcome is Comparison.DIFFERENT
    with psycopg.connect(live.dsn) as writer:
        writer.execute("UPDATE users SET name = 'open' WHERE id = 3")
        verdict = compare(archive, live.dsn)
    assert verdict.outcome is Comparison.UNDECIDED
    assert "transactions were writing" in verdict.reason


def test_another_database_or_timeline(live: Live) -> None:
    archive = live.archive()
    history = archive.boundary().history
    assert history is not None
    for other, outcome in (
        (history._replace(database_oid=5), None),
        (history._replace(system_identifier=9), None),
        (history._replace(timeline=7), Comparison.UNDECIDED),
    ):
        artifacts = [replace(artifact, history=other) for artifact in archive.manifest.artifacts]
        archive.manifest = replace(archive.manifest, artifacts=tuple(artifacts))
        if outcome is None:
            with pytest.raises(DatabaseUnusable, match="another database"):
                compare(archive, live.dsn)
        else:
            assert compare(archive, live.dsn).outcome is outcome


def test_a_schema_that_the_archive_hasn_t_followed(live: Live) -> None:
    live.execute("ALTER TABLE users DROP COLUMN n")
    verdict = live.compare()
    assert verdict.outcome is Comparison.UNDECIDED
    assert "(n)" in verdict.reason


def test_a_column_that_isn_t_published_is_left_out(live: Live) -> None:
    live.execute(
        "ALTER TABLE users ADD COLUMN secret text DEFAULT 'x'",
        "ALTER TABLE users ADD COLUMN twice bigint GENERATED ALWAYS AS (id * 2) STORED",
    )
    live.see()
    verdict = live.compare()
    assert verdict.outcome is Comparison.EQUAL
    assert verdict.reason.endswith("(leaving out secret, which the archive doesn't have)")


class Interfering(psycopg.Connection):  # type: ignore[type-arg]
    """Somebody deletes a row right before the rows are summed up."""

    other: psycopg.Connection  # type: ignore[type-arg]

    def execute(self, query, *more, **options):
        if "md5" in str(query):
            self.other.execute("DELETE FROM users WHERE id = 9")
        return super().execute(query, *more, **options)


def test_rows_and_positions_are_of_one_snapshot(live: Live) -> None:
    with Interfering.connect(live.dsn, autocommit=True) as connection:
        connection.other = live.connection
        database = Database(connection)
        assert database.measure(database.table("public.users", COLUMNS)).rows == 500
    assert len(live.rows()) == 499


def test_a_database_that_can_t_be_asked(live: Live) -> None:
    archive = live.archive()
    with pytest.raises(DatabaseUnusable, match=r"host=[0-9.]+ port=1 dbname=x: ") as refused:
        compare(archive, "host=127.0.0.1 port=1 password=hush dbname=x connect_timeout=2")
    assert "hush" not in str(refused.value)
    live.execute("CREATE ROLE nobody_much LOGIN")
    try:
        with pytest.raises(DatabaseUnusable, match="grant this role SELECT"):
            compare(archive, psycopg.conninfo.make_conninfo(live.dsn, user="nobody_much"))
    finally:
        live.execute("DROP ROLE nobody_much")
    archive.manifest = replace(archive.manifest, table="public.people")
    with pytest.raises(DatabaseUnusable, match=r"no table public\.people"):
        compare(archive, live.dsn)


def test_the_role_s_time_limits_don_t_end_it(live: Live) -> None:
    """The table may be large, and --lock waits within its transaction."""
    live.execute("CREATE ROLE hasty LOGIN", "GRANT SELECT ON users TO hasty")
    server = live.connection.info.server_version
    limits = {"statement_timeout": 1, "idle_in_transaction_session_timeout": 1}
    if server >= 170000:
        # Longer: the session's first statement, which lifts it, is under it.
        limits["transaction_timeout"] = 60_000
    for limit, milliseconds in limits.items():
        live.execute(f"ALTER ROLE hasty SET {limit} = {milliseconds}")
    live.execute("INSERT INTO users SELECT i FROM generate_series(1000, 50000) i")
    live.diff()
    live.see()
    try:
        dsn = psycopg.conninfo.make_conninfo(live.dsn, user="hasty")
        with Database.connected(dsn) as asked:
            shown = asked._connection.execute(
                "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)",
                (list(limits),),
            ).fetchall()
            assert {setting for _, setting in shown} == {"0"}
        assert compare(live.archive(), dsn, lock=False).outcome is Comparison.EQUAL
    finally:
        live.execute("DROP OWNED BY hasty", "DROP ROLE hasty")


def test_rows_hidden_from_the_role_are_no_difference(live: Live) -> None:
    """Row-level security makes the query fail instead of hiding rows."""
    live.execute(
        "CREATE ROLE halfblind LOGIN", "GRANT SELECT ON users TO halfblind",
        "ALTER TABLE users ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON users TO halfblind USING (id < 10)",
    )  # fmt: skip
    try:
        with pytest.raises(DatabaseUnusable, match="row-level security"):
            compare(live.archive(), psycopg.conninfo.make_conninfo(live.dsn, user="halfblind"))
    finally:
        live.execute("DROP OWNED BY halfblind", "DROP ROLE halfblind")


def test_two_tables_of_one_written_name(live: Live) -> None:
    """Neither is compared: the archive doesn't record which of them it has."""
    live.execute('CREATE SCHEMA "a.b"', "CREATE SCHEMA a", 'CREATE TABLE "a.b".c (id int)')
    with Database.connected(live.dsn) as asked:
        asked.table("a.b.c", None)
        live.execute('CREATE TABLE a."b.c" (id int)')
        with pytest.raises(DatabaseUnusable, match=r'"a"\."b\.c" and "a\.b"\."c".*rename'):
            asked.table("a.b.c", None)


def test_the_environment_s_options_hold_too(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=77MB -c row_security=on")
    with Database.connected(live.dsn) as asked:
        assert asked._one("SHOW work_mem") == ("77MB",)
        assert asked._one("SHOW row_security") == ("off",)


def test_partitioned_table_and_odd_names(database: OwnDatabase, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.autocommit = True
        connection.execute(
            'CREATE TABLE "we ird.tab""le" (k int, "v al" text, "laredo row" int, t text,'
            " PRIMARY KEY (k))"
            " PARTITION BY RANGE (k)"
        )
        connection.execute(
            'CREATE TABLE part PARTITION OF "we ird.tab""le" FOR VALUES FROM (0) TO (100)'
        )
        connection.execute("""INSERT INTO "we ird.tab""le" VALUES (1, 'x'), (2, NULL)""")
    with Database.connected(database.dsn) as asked:
        history = str(asked.history())
        position = asked.measure(asked.table('public.we ird.tab"le', None)).before
    columns = (
        Column("k", "int4", -1, False, 1, 1),
        Column("v al", "text", -1, True, 2),
        Column("laredo row", "int4", -1, True, 3),
        Column("t", "text", -1, True, 4),
    )
    built = Builder(tmp_path, columns=columns, history=history, key_fields=("k",))
    rest = b',"laredo row":null,"t":null}'
    rows = {b"1": b'{"k":1,"v al":"x"' + rest, b"2": b'{"k":2,"v al":null' + rest}
    built.base(position, rows)
    archive = Archive.at(str(built.write()))
    archive.manifest = replace(archive.manifest, table='public.we ird.tab"le')
    with Database.connected(database.dsn) as asked:
        measured = asked.measure(asked.table(archive.manifest.table, columns))
        with asked.locked(asked.table(archive.manifest.table, columns), 60) as locked:
            assert (locked.rows, locked.checksum) == (measured.rows, measured.checksum)
    last = archive.boundary().last
    assert (measured.rows, measured.checksum) == (last.rows, last.state_checksum)


# Passwords are hidden wherever a connection string is shown, however it is written.


_STRINGS = (
    "postgresql://reader:hunter2@127.0.0.1:1/app",
    "postgresql://reader:hun%40ter2@127.0.0.1:1/app",
    "postgresql://reader@127.0.0.1:1/app?password=hunter2",
    "postgres://127.0.0.1:1/app?user=reader&sslpassword=hunter2&sslmode=disable",
    "host=127.0.0.1 port=1 user=reader password=hunter2",
    "host=127.0.0.1 port=1 user=reader password='hun ter2 \\' x'",
    "host=127.0.0.1 port=1 password = hunter2",
    "host=127.0.0.1 port=1 options='-c my.secret=hunter2'",
    "postgresql://reader:hun/ter2@127.0.0.1:1/app",
    "postgresql://reader:hunter2@127.0.0.1:1/app?passwrd=ter2",
    "host=127.0.0.1 port=1 hunter2",
    "host=127.0.0.1 port=hunter2",
    "host=127.0.0.1 port=1 password='hunter2",
    "hunter2",
)


@pytest.mark.parametrize("dsn", _STRINGS)
def test_no_password_is_shown(dsn: str) -> None:
    assert "ter2" not in compare_postgres.shown(dsn)
    with pytest.raises(DatabaseUnusable) as raised, Database.connected(dsn):
        pass
    assert "ter2" not in str(raised.value)
    try:
        source = Source(connection=dsn)
    except ValueError as refused:
        assert "ter2" not in "".join(error["msg"] for error in refused.errors())  # type: ignore[attr-defined]
    else:
        assert "ter2" not in f"{source!r}{source.model_dump_json()}"


def test_what_names_the_database_is_shown() -> None:
    shown = compare_postgres.shown("postgresql://reader:x@db.internal:5433/app?sslmode=require")
    assert sorted(shown.split()) == ["dbname=app", "host=db.internal", "port=5433", "user=reader"]
    assert compare_postgres.shown("") == "the default connection"
