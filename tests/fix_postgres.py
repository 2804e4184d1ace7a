"""A PostgreSQL for the session, and a database of its own for each test that asks."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

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


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres") / "data") as server:
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
