"""A proxy before the session's server, an empty store, and short waits of an ingest in the test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.ingest import loop
from laredo_fanout.pg_catalog import side_connection
from laredo_fanout.store.writer import Store
from tests.support.postgres import Database
from tests.support.server.store_sample import live_table, open_store
from tests.support.server.stuck_proxy import Proxy


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests wait for positions and catalog checks all the time, and programs seldom."""
    monkeypatch.setattr(loop, "_POSITION_INTERVAL_S", 0.02)
    monkeypatch.setattr(side_connection, "_PAUSE_AT_LEAST", 0.02)
    monkeypatch.setattr(side_connection, "_PAUSE_SHARE", 4)


@pytest.fixture
def proxy(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    path = tmp_path_factory.mktemp("proxy")
    proxy = Proxy(str(postgres.socket_directory / ".s.PGSQL.5432"), path)
    yield proxy
    proxy.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def table(store: Store) -> int:
    """A live table without rows."""
    return live_table(store)


@pytest.fixture
def filled(database: Database) -> Database:
    """A database with a table ``t`` of 500 rows."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 500) g",
    )
    return database
