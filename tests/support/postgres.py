"""PostgreSQL servers for the session, and a database of its own for each test that asks.

A test is run on several versions by ``@on_versions(15, 18)``; otherwise on 18, or on the one that
LAREDO_TEST_VERSION names: 14 to 18. LAREDO_TEST_POSTGRES14 and so on are where the programs are.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support import drawn
from tests.support.processes import wait_until

_numbers = count(1)

VERSION = int(os.environ.get("LAREDO_TEST_VERSION", "18"))
_OF_THE_WHEEL = (16, 18)
_DIRECTORY = "laredo-data-"
_OWNER = "owner"
"""File that a directory's process has locked for as long as it lives."""
_FETCHED = Path(__file__).parents[2] / "build" / "postgres"


def on_versions(*versions: int, also: tuple[int, ...] = ()) -> pytest.MarkDecorator:
    """Run a test on a database of each of these versions of PostgreSQL, 14 to 18.

    `make test` runs on the last of ``versions`` alone; `make test-long` on those of ``also`` too
    (LAREDO_TEST_ALL).
    """
    chosen = sorted({*versions, *(also if "LAREDO_TEST_ALL" in os.environ else ())}, reverse=True)
    return pytest.mark.parametrize(
        "database",
        drawn.first(1, chosen),
        indirect=True,
        ids=[f"postgres{version}" for version in chosen],
    )


def new_server(
    data: Path, version: int, settings: Mapping[str, str] | None = None
) -> EmbeddedPostgres:
    """One of this version over the cluster in ``data``, not started.

    The wheel brings 16 and 18. 15 is Debian's, which has the extensions that the wheel lacks; 14
    and 17 are wherever they were found, or the test is skipped.
    """
    if version in _OF_THE_WHEEL:
        return EmbeddedPostgres(data, version=version, settings=settings)
    named = os.environ.get(f"LAREDO_TEST_POSTGRES{version}")
    installed = Path(f"/usr/lib/postgresql/{version}/bin")
    places = [Path(named)] if named else [_FETCHED / str(version) / "bin", installed]
    for place in places:
        if (place / "postgres").exists():
            return EmbeddedPostgres(data, bin_directory=place, settings=settings)
    if version == 15:
        pytest.fail(f"PostgreSQL 15 isn't in {installed}: run tests/postgres15.sh")
    pytest.skip(f"PostgreSQL {version} isn't there: run tests/postgres_14_17.sh")


@dataclass(frozen=True)
class Database:
    """One database of the session's server."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return self.server.connect(self.name)

    def run(self, *statements: str) -> None:
        """Run the statements, each in a transaction of its own."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def make(self, *tables: str, rows: int = 50) -> None:
        """Make these tables, with rows from 1 on: ``id``, and ``v`` that is 'v' and the id."""
        for table in tables:
            self.run(
                f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
                f"INSERT INTO {table} SELECT i, 'v' || i FROM generate_series(1, {rows}) i",
            )

    def drop_slots(self) -> None:
        """Drop its slots; a walsender may outlast its client by a moment."""
        with self.connect() as owner:
            _drop_slots(owner, self.name)

    def number(self, query: str, *parameters: object) -> int:
        """The one number that the query selects."""
        with self.connect() as connection:
            row = connection.execute(query.encode(), parameters or None).fetchone()
        assert row is not None
        return int(str(row[0]))

    def position(self) -> int:
        """Position at or after the end of the last commit."""
        return self._lsn("pg_current_wal_insert_lsn()")

    def confirmed(self, slot: str = "") -> int:
        """Position that this slot, or a test's ingest's one, is confirmed to."""
        return self._lsn(
            "(SELECT confirmed_flush_lsn FROM pg_replication_slots"
            f" WHERE slot_name = '{slot or f'slot_{self.name}'}')"
        )

    def streamed(self) -> int:
        """Number of transactions that the slot of a test's ingest was sent in parts."""
        return self.number(
            "SELECT coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots"
            f" WHERE slot_name = 'slot_{self.name}'"
        )

    def _lsn(self, selected: str) -> int:
        return self.number(f"SELECT {selected} - '0/0'::pg_lsn")


@contextmanager
def data_directory() -> Iterator[Path]:
    """For a cluster, outside pytest's own: each new pytest session takes others' rights on that.

    PostgreSQL doesn't run as root, so it would lose its files in mid-test.
    """
    with owned_directory() as path:
        yield path / "data"


@contextmanager
def owned_directory() -> Iterator[Path]:
    """A temporary directory; if this process is killed, the next session removes it."""
    with (
        tempfile.TemporaryDirectory(prefix=_DIRECTORY, ignore_cleanup_errors=True) as path,
        Path(path, f".{_OWNER}").open("w") as lock,
    ):
        # It has the name once it is locked: before that anybody could lock it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(lock.name).rename(Path(path, _OWNER))
        yield Path(path)


def remove_abandoned() -> None:
    """Remove the directories of processes that are gone: their locks can be taken."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*/{_OWNER}"):
        with suppress(OSError), owner.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    """Remove what sessions left that were killed."""
    if not hasattr(config, "workerinput"):
        remove_abandoned()


@pytest.fixture(scope="session")
def postgres(of_version: Callable[[int], EmbeddedPostgres]) -> EmbeddedPostgres:
    """Version 18, if LAREDO_TEST_VERSION names no other."""
    return of_version(VERSION)


@pytest.fixture(scope="session")
def of_version() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    """The session's server of a version, started at the first time."""
    with ExitStack() as stack:
        running: dict[int, EmbeddedPostgres] = {}

        def started(version: int) -> EmbeddedPostgres:
            if version not in running:
                data = stack.enter_context(data_directory())
                running[version] = stack.enter_context(new_server(data, version))
            return running[version]

        yield started


@pytest.fixture
def database(
    request: pytest.FixtureRequest, of_version: Callable[[int], EmbeddedPostgres]
) -> Iterator[Database]:
    """Made for the test."""
    with new_database(of_version(getattr(request, "param", VERSION))) as made:
        yield made


@contextmanager
def new_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Made for the block; dropped after it, with the slots that were left in it."""
    name = f"test_{next(_numbers)}"
    with postgres.connect() as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield Database(postgres, name)
    with postgres.connect() as admin:
        _drop_slots(admin, name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _drop_slots(admin: "psycopg.Connection[tuple[object, ...]]", database: str) -> None:
    slots = admin.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (database,)
    ).fetchall()
    for slot, pid in slots:
        if pid is not None:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
        with suppress(psycopg.errors.UndefinedObject):  # a temporary one ends with its backend
            admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


@contextmanager
def waiting_for_a_standby(database: Database) -> Iterator[None]:
    """Commits of its server wait for a synchronous standby that never comes."""
    with database.connect() as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
        try:
            wait_until(
                lambda: (
                    connection.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",)
                ),
                "the setting holds",
            )
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
