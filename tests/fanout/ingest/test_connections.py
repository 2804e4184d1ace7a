"""Connections that break: the ingest goes on by itself, and nothing is lost or doubled."""

import signal
from pathlib import Path
from threading import Event

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.postgres.connections import Connection
from laredo_fanout.slot import slot
from tests.support import drawn
from tests.support.ingest import Gate, RunningIngest, Start, fill
from tests.support.postgres import Database, data_directory
from tests.support.processes import PATIENCE_S
from tests.support.server.stuck_proxy import Proxy


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
    fill(database, 3000)
    return database


def test_connections_killed_while_copying(filled: Database, ingesting: Start, gate: Gate) -> None:
    gate.close_after(500)
    ingest = ingesting("public.t", range_bytes=128 << 10, heartbeat_interval=0.1)
    with gate.holding(ingest):
        for turn, role in enumerate(("copy", "side", "stream")):
            changed = [
                change.format(4 * turn + part)
                for part, change in enumerate(
                    (
                        "UPDATE t SET a = -a WHERE id % 50 = {}",
                        "DELETE FROM t WHERE id % 50 = {}",
                    )
                    * 2
                )
            ]
            filled.run(*changed[:2])
            ingest.wait_until(lambda role=role: _kill(filled, role), "killed")
            filled.run(*changed[2:])
            assert not ingest.is_live("public.t")
    ingest.wait_live()
    ingest.assert_equal()


def test_a_stop_just_before_the_slot_is_created(
    filled: Database, ingesting: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creation, which waits for a transaction of others, is cancelled all the same."""
    create, reached, stopped, ended = slot.create, Event(), Event(), Event()

    def late(connection: Connection, name: str, token: str) -> int:
        reached.set()
        stopped.wait(PATIENCE_S)
        try:
            return create(connection, name, token)
        finally:
            ended.set()

    monkeypatch.setattr(slot, "create", late)
    with filled.connect() as other, other.transaction():
        other.execute("SELECT pg_current_xact_id()")
        ingest = ingesting("public.t")
        assert reached.wait(PATIENCE_S)
        ingest.ingest.stop()
        stopped.set()
        assert ended.wait(PATIENCE_S)


def test_stream_killed_again_and_again(filled: Database, live: Start) -> None:
    ingest = live("public.t")
    record = ingest.record("public.t")
    for number in range(5):
        filled.run(f"UPDATE t SET a = -a WHERE id % 50 = {number}")
        ingest.wait_until(lambda: _kill(filled, "stream") == 1, "the stream is killed")
        filled.run(f"DELETE FROM t WHERE id % 50 = {number + 20}")
    ingest.assert_equal()
    after = ingest.record("public.t")
    assert after.id == record.id
    assert after.sequence == record.sequence + 10 * 60
    assert ingest.status.reconnects >= 1


def test_server_restarts(tmp_path: Path) -> None:
    with data_directory() as data, EmbeddedPostgres(data) as server:
        database = Database(server, "postgres")
        database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        ingest = RunningIngest(database, tmp_path / "store", ("public.t",)).start()
        try:
            ingest.wait_live()
            record = ingest.record("public.t")
            for number, how in enumerate((signal.SIGINT, signal.SIGQUIT), 1):
                server.stop(how=how)
                ingest.wait_until(lambda: not ingest.status.connected, "it is noticed")
                ingest.wait_until(lambda: ingest.status.error, "it is said")
                server.start()
                database.run(f"INSERT INTO t VALUES ({number + 1})")
                ingest.assert_equal()
                after = ingest.record("public.t")
                assert (after.id, after.sequence) == (record.id, record.sequence + number)
        finally:
            ingest.stop()


@pytest.mark.parametrize(
    "asked",
    drawn.first(
        1,
        [
            b"START_REPLICATION",
            b"transaction_timeout",
            b"pg_publication",
            b"IDENTIFY_SYSTEM",
            b"pg_create_logical_replication_slot",
        ],
    ),
    ids=bytes.decode,
)
def test_an_answer_that_never_comes_while_the_stream_is_prepared(
    filled: Database, live: Start, proxy: Proxy, asked: bytes
) -> None:
    proxy.stuck_after = asked
    ingest = live("public.t", receive_timeout=1, connect_timeout=1, through=proxy.directory)
    assert proxy.stuck_after is None
    ingest.assert_equal()


@pytest.mark.parametrize(
    "asked", drawn.first(1, [b"transaction_timeout", b"lock_timeout"]), ids=bytes.decode
)
def test_a_connection_that_is_never_answered_as_it_is_opened_again(
    filled: Database, live: Start, proxy: Proxy, asked: bytes
) -> None:
    """The side connection waits for it, and the stream's end for the side connection."""
    ingest = live("public.t", connect_timeout=1, through=proxy.directory)
    proxy.stuck_after = asked
    _kill(filled, "side")
    ingest.wait_until(lambda: proxy.stuck_after is None, "it is opened again")
    ingest.stop()
