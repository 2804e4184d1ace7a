"""The server where connections and file descriptors run out: it waits, says so, and goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.server.states import States

LIMIT = 512
WITH_FEW_DESCRIPTORS = ("sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh")
ENDED = 'laredo_http_connections_ended_total{reason="full"}'
FAILURES = "laredo_http_accept_failures_total"


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)")
    made = fanout(tmp_path / "server", database, "{ table = a }")
    made.program.wrapper = WITH_FEW_DESCRIPTORS
    return made


HALF = b"POST /catchup HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextmanager
def half_sent(port: int, count: int, sent: bytes = HALF) -> Iterator[None]:
    """``count`` connections, each with a request that isn't whole."""
    with ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.socket())
            connection.settimeout(PATIENCE_S)
            connection.connect(("127.0.0.1", port))
            connection.send(sent)
        yield


def http_port(server: Fanout) -> int:
    return int(server.program.http.rpartition(":")[2])


def cut_every_connection(database: Database) -> None:
    database.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )


@pytest.mark.thorough
def test_half_sent_requests_hold_up_nobody(server: Fanout, database: Database) -> None:
    with started(server), half_sent(http_port(server), LIMIT + 76):
        wait_until(lambda: server.metrics[ENDED] > LIMIT / 2, "most are ended")
        # What took descriptors and found none ended the server.
        cut_every_connection(database)
        database.run("INSERT INTO a SELECT i, repeat('x', 1000) FROM generate_series(1, 9) i")
        wait_until(lambda: server.table("public.a")["rows"] == 9, "the rows")
        assert server.program.is_running()
        assert server.metrics[FAILURES] == 0
        assert server.program.log.stat().st_size < 100_000


@pytest.mark.thorough
def test_no_descriptors_left_are_waited_for(server: Fanout, database: Database) -> None:
    with started(server):
        process = psutil.Process(server.program.pid)
        # Below what is open: not even a descriptor that is given back can be used again.
        process.rlimit(psutil.RLIMIT_NOFILE, (3, LIMIT))
        cut_every_connection(database)
        with half_sent(http_port(server), 3):
            wait_until(lambda: "Too many open files" in server.program.tail(99_999), "told")
            wait_until(lambda: "restart scheduled" in server.program.tail(99_999), "given up")
            wait_until(lambda: "no HTTP connection can be" in server.program.tail(99_999), "so")
        assert server.program.is_running()
        process.rlimit(psutil.RLIMIT_NOFILE, (LIMIT, LIMIT))
        database.run("INSERT INTO a VALUES (1, 'afterwards')")
        server.program.wait_ready()
        wait_until(lambda: server.table("public.a")["rows"] == 1, "the row")
        assert server.metrics[FAILURES] > 0
        assert server.program.log.stat().st_size < 100_000


async def test_silent_connections_to_both_ports_hold_up_nobody(
    server: Fanout, database: Database
) -> None:
    port = free_port()
    config = server.program.config
    config.write_text(config.read_text() + f"fanout.connect.port = {port}")
    with started(server), database.connect() as owner:
        async with (
            server.follower("public.a") as before,
            States(port, "public.a", "connect", transport="connect") as by_connect,
        ):
            await before.until_keys([])
            (child,) = psutil.Process(server.program.pid).children()
            with (
                half_sent(port, LIMIT // 2 + 50, b""),
                half_sent(server.grpc_port, LIMIT // 2 + 50, b""),
            ):
                assert child.num_fds() < LIMIT * 7 / 8
                owner.execute("INSERT INTO a VALUES (1, 'x')")
                await before.until_keys([b"1"])
                await by_connect.until_keys([b"1"])
                async with (
                    server.follower("public.a", "late") as late,
                    States(port, "public.a", "late", transport="connect") as late_by_connect,
                ):
                    await late_by_connect.until_keys([b"1"])
                    await late.until_keys([b"1"])
            assert child.is_running()
    assert "Traceback" not in server.program.log.read_text()
