"""PostgreSQL servers for the session, and a database of its own for each test that asks.

A test is run on several versions by ``@on_versions(15, 18)``; it is 18 otherwise.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres

_numbers = count(1)

BIN_OF_15 = Path(os.environ.get("LAREDO_TEST_POSTGRES15", "/usr/lib/postgresql/15/bin"))


def on_versions(*versions: int) -> pytest.MarkDecorator:
    """Run a test on a database of each of these versions of PostgreSQL: 15, 16 or 18."""
    return pytest.mark.parametrize(
        "database", versions, indirect=True, ids=[f"postgres{version}" for version in versions]
    )


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


@contextmanager
def data_directory() -> Iterator[Path]:
    """For a cluster, outside pytest's own: each new pytest session takes others' rights on that.

    PostgreSQL doesn't run as root, so it would lose its files in mid-test.
    """
    with tempfile.TemporaryDirectory(prefix="laredo-data-", ignore_cleanup_errors=True) as path:
        yield Path(path) / "data"


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """Version 18."""
    with data_directory() as data, EmbeddedPostgres(data) as server:
        yield server


@pytest.fixture(scope="session")
def postgres16() -> Iterator[EmbeddedPostgres]:
    with data_directory() as data, EmbeddedPostgres(data, version=16) as server:
        yield server


@pytest.fixture(scope="session")
def postgres15() -> Iterator[EmbeddedPostgres]:
    """Debian's, which has the extensions that the wheel lacks."""
    if not (BIN_OF_15 / "postgres").exists():
        pytest.fail(f"PostgreSQL 15 isn't in {BIN_OF_15}: run tests/postgres15.sh")
    with data_directory() as data, EmbeddedPostgres(data, bin_directory=BIN_OF_15) as server:
        yield server


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Made for the test; dropped after it, with the slots that were left in it."""
    version = getattr(request, "param", 18)
    postgres = request.getfixturevalue("postgres" if version == 18 else f"postgres{version}")
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
        admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
