"""`laredo-fanout catchup`: the real server that is behind is asked to split its backlog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.postgres import Database
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

_ROWS = 30_000
_CATCHUP = """
sources.pg.catchup { mode = %s, threshold_bytes = 200000, check_interval = 20ms,
                     min_segment_bytes = 100000 }
"""


@pytest.fixture
def table(database: Database) -> str:
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int, a text)")
        owner.execute(
            "INSERT INTO t SELECT g, 0, repeat('x', 80) FROM generate_series(1, %s) g", (_ROWS,)
        )
    return "{ table = t }"


def _server(tmp_path: Path, database: Database, table: str, mode: str) -> Fanout:
    return fanout(tmp_path / "server", database, table, _CATCHUP % mode)


def _catchup(server: Fanout) -> dict[str, Any]:
    return server.status["sources"]["pg"]["catchup"]


def test_command_has_it_split_its_backlog(tmp_path: Path, database: Database, table: str) -> None:
    server = _server(tmp_path, database, table, "manual")
    with started(server):
        program = psutil.Process(server.program.pid)
        program.suspend()
        with database.connect() as owner:
            for first in range(0, _ROWS, 100):
                owner.execute(
                    "UPDATE t SET v = v + 1 WHERE id > %s AND id <= %s", (first, first + 100)
                )
        program.resume()
        said = server.run("catchup")
        assert said.returncode == 0, said.stderr
        wait_until(
            lambda: _catchup(server)["plans"] or _catchup(server)["trouble"], "an answer to it"
        )
        metrics = server.metrics
        assert metrics['laredo_catchup_threshold_bytes{source="pg"}'] == 200_000
        assert 'laredo_catchup_active{source="pg"}' in metrics


def test_command_says_that_it_is_off(tmp_path: Path, database: Database, table: str) -> None:
    server = _server(tmp_path, database, table, "off")
    with started(server):
        said = server.run("catchup")
    assert said.returncode == 1
    assert "fall-behind mode is off" in said.stderr
