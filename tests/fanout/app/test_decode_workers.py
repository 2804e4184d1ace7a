"""The real server with processes that decode a backlog: killed, they are replaced; ended, it leaves
none behind."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.fanout.app.fanout_program import Fanout, fanout, started
from tests.fix_postgres import Database
from tests.processes import wait_until

_ROWS = 30_000


def _server(tmp_path: Path, database: Database) -> Fanout:
    extra = "sources.pg { decode_workers = 2, catchup.mode = off }\n"
    slot = f"s_{database.name}"
    return fanout(tmp_path / "server", database.dsn, "{ table = t }", extra, slot=slot)


@pytest.fixture
def table(database: Database) -> Database:
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int, a text)")
        owner.execute(
            "INSERT INTO t SELECT g, 0, repeat('x', 400) FROM generate_series(1, %s) g", (_ROWS,)
        )
    return database


def _workers(server: Fanout) -> list[psutil.Process]:
    children = psutil.Process(server.program.pid).children()
    return [child for child in children if _decodes(child)]


def _decodes(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("decode_worker") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _fall_behind(server: Fanout, database: Database) -> None:
    """While the server stands still."""
    psutil.Process(server.program.pid).suspend()
    with database.connect() as owner:
        for first in range(0, _ROWS, 1000):
            owner.execute(
                "UPDATE t SET v = v + 1 WHERE id > %s AND id <= %s", (first, first + 1000)
            )
    psutil.Process(server.program.pid).resume()


async def test_workers_are_killed_in_a_backlog(tmp_path: Path, table: Database) -> None:
    server = _server(tmp_path, table)
    with started(server):
        wait_until(lambda: server.status["sources"]["pg"]["decode"]["workers"] == 2, "both start")
        async with server.follower("public.t") as follower:
            await follower.until([str(number).encode() for number in range(1, _ROWS + 1)])
            for _ in range(2):
                _fall_behind(server, table)
                wait_until(
                    lambda: server.metrics['laredo_decode_blocks{source="pg"}'], "they decode"
                )
                for worker in _workers(server):
                    worker.kill()
            with table.connect() as owner:
                owner.execute("DELETE FROM t WHERE id = 1")
            await follower.until([str(number).encode() for number in range(2, _ROWS + 1)])
            assert {line.split(b'"v":')[1][:2] for line in follower.rows.values()} == {b"2,"}
        shown = server.status["sources"]["pg"]
        assert shown["decode"]["restarts"] >= 2
        assert server.metrics['laredo_decode_worker_restarts_total{source="pg"}'] >= 2
        assert shown["reconnects"] == 0, "the stream goes on without them"
        wait_until(lambda: server.status["sources"]["pg"]["decode"]["workers"] == 2, "others")
    assert "a process that decodes has ended" in server.program.log.read_text()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_none_is_left_behind(tmp_path: Path, table: Database, how: signal.Signals) -> None:
    """Ended in the middle of a backlog."""
    server = _server(tmp_path, table)
    with started(server):
        wait_until(lambda: server.status["sources"]["pg"]["decode"]["workers"] == 2, "both start")
        workers = _workers(server)
        assert len(workers) == 2
        _fall_behind(server, table)
        server.program.stop(how)
        wait_until(lambda: not any(map(_runs, workers)), "no process is left")
        server.program.start()
        server.program.wait_ready()
        wait_until(lambda: server.status["sources"]["pg"]["lag_bytes"] < 10_000, "it is level")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
