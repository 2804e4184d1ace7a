"""Connections that break: the ingest goes on by itself, and nothing is lost or doubled."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support import drawn
from tests.support.ingest import Gate, RunningIngest
from tests.support.postgres import Database, data_directory
from tests.support.server.stuck_proxy import Proxy

Start = Callable[..., RunningIngest]


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _kill(database: Database, role: str) -> int:
    with database.connect() as connection:
        return len(
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE %s",
                (f"%{role}",),
            ).fetchall()
        )


@pytest.fixture
def filled(database: Database) -> Database:
    _run(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, a int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, g, repeat(md5(g::text), 80) FROM generate_series(1, 3000) g",
    )
    return database


@pytest.mark.parametrize("role", ["stream", "side", "copy"])
def test_connection_killed_while_copying(
    filled: Database, ingesting: Start, gate: Gate, role: str
) -> None:
    gate.close_after(500)
    ingest = ingesting("public.t", range_bytes=128 << 10, heartbeat_interval=0.1)
    with gate.holding(ingest):
        _run(filled, "UPDATE t SET a = -a WHERE id % 50 = 1", "DELETE FROM t WHERE id % 50 = 2")
        ingest.wait_until(lambda: _kill(filled, role), "killed")
        _run(filled, "UPDATE t SET a = -a WHERE id % 50 = 3", "DELETE FROM t WHERE id % 50 = 4")
        assert not ingest.is_live("public.t")
    ingest.wait_live()
    ingest.assert_equal()


def test_stream_killed_again_and_again(filled: Database, ingesting: Start) -> None:
    ingest = ingesting("public.t")
    ingest.wait_live()
    record = ingest.record("public.t")
    assert record is not None
    for number in range(5):
        _run(filled, f"UPDATE t SET a = -a WHERE id % 50 = {number}")
        ingest.wait_until(lambda: _kill(filled, "stream") == 1, "the stream is killed")
        _run(filled, f"DELETE FROM t WHERE id % 50 = {number + 20}")
    ingest.assert_equal()
    after = ingest.record("public.t")
    assert after is not None and after.id == record.id
    assert after.sequence == record.sequence + 10 * 60
    assert ingest.status.reconnects >= 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_server_restarts(tmp_path: Path, how: signal.Signals) -> None:
    with data_directory() as data, EmbeddedPostgres(data) as server:
        database = Database(server, "postgres")
        _run(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        ingest = RunningIngest(database, tmp_path / "store", ("public.t",)).start()
        try:
            ingest.wait_live()
            record = ingest.record("public.t")
            server.stop(how=how)
            ingest.wait_until(lambda: not ingest.status.connected, "it is noticed")
            ingest.wait_until(lambda: ingest.status.error, "it is said")
            server.start()
            _run(database, "INSERT INTO t VALUES (2)")
            ingest.assert_equal()
            after = ingest.record("public.t")
            assert record is not None and after is not None
            assert (after.id, after.sequence) == (record.id, record.sequence + 1)
        finally:
            ingest.stop()


def test_proxy_that_stops_forwarding_is_noticed(
    filled: Database, tmp_path: Path, proxy: Proxy
) -> None:
    # Of a connection that was cut here the server learns nothing, and keeps the slot for it.
    _run(filled, f"ALTER DATABASE {filled.name} SET wal_sender_timeout = '3s'")
    dsn = f"postgresql://postgres@/{filled.name}?host={proxy.directory}"
    ingest = RunningIngest(filled, tmp_path / "store", ("public.t",), receive_timeout=2)
    ingest.options = replace(ingest.options, connection=dsn)
    ingest.start()
    try:
        ingest.wait_live()
        proxy.stuck.set()
        _run(filled, "UPDATE t SET a = 0 WHERE id < 100")
        ingest.assert_equal()
        assert ingest.status.reconnects >= 1
    finally:
        ingest.stop()


@pytest.mark.parametrize(
    "asked",
    drawn.first(
        2,
        [
            b"transaction_timeout",
            b"START_REPLICATION",
            b"pg_publication",
            b"IDENTIFY_SYSTEM",
            b"pg_create_logical_replication_slot",
        ],
    ),
    ids=bytes.decode,
)
def test_an_answer_that_never_comes_while_the_stream_is_prepared(
    filled: Database, tmp_path: Path, proxy: Proxy, asked: bytes
) -> None:
    dsn = f"postgresql://postgres@/{filled.name}?host={proxy.directory}"
    ingest = RunningIngest(filled, tmp_path / "store", ("public.t",), receive_timeout=1)
    ingest.options = replace(ingest.options, connection=dsn, connect_timeout=1)
    proxy.stuck_after = asked
    ingest.start()
    try:
        ingest.wait_live()
        assert proxy.stuck_after is None
        ingest.assert_equal()
    finally:
        ingest.stop()


@pytest.mark.parametrize("asked", [b"transaction_timeout", b"lock_timeout"], ids=bytes.decode)
def test_a_connection_that_is_never_answered_as_it_is_opened_again(
    filled: Database, tmp_path: Path, proxy: Proxy, asked: bytes
) -> None:
    """The side connection waits for it, and the stream's end for the side connection."""
    dsn = f"postgresql://postgres@/{filled.name}?host={proxy.directory}"
    ingest = RunningIngest(filled, tmp_path / "store", ("public.t",))
    ingest.options = replace(ingest.options, connection=dsn, connect_timeout=1)
    ingest.start()
    ingest.wait_live()
    proxy.stuck_after = asked
    _kill(filled, "side")
    ingest.wait_until(lambda: proxy.stuck_after is None, "it is opened again")
    ingest.stop()
