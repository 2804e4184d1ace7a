"""A PostgreSQL for the session, and a database of its own for each test that asks."""

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
    with data_directory() as data, EmbeddedPostgres(data) as server:
        yield server


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Made for the test; dropped after it, with the slots that were left in it."""
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
