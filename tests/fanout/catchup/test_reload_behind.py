"""A reload while a split backlog is read: its tables are taken up when that is done."""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

_ROWS = 30_000
# Split as it is asked for; above the threshold, what grows behind the last segment is split again.
_CATCHUP = """
sources.pg.catchup { mode = manual, threshold_bytes = 1000000000, check_interval = 20ms,
                     min_segment_bytes = 100000 }
"""


def _is_split(server: Fanout) -> bool:
    return bool(server.status["sources"]["pg"]["catchup"]["active"])


def _fall_behind(server: Fanout, database: Database) -> None:
    """While the server stands still; its backlog is then read by segments."""
    psutil.Process(server.program.pid).suspend()
    with database.connect() as owner:
        for _ in range(8):
            owner.execute("UPDATE t SET v = v + 1")
    server.go_on_and_split()
    wait_until(lambda: _is_split(server), "the backlog is split")


@pytest.mark.thorough
async def test_other_tables_wait_for_the_end_of_a_split_backlog(
    tmp_path: Path, database: Database
) -> None:
    with database.connect() as owner:
        for table in "tu":
            owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
            owner.execute(f"INSERT INTO {table} SELECT g, 0 FROM generate_series(1, {_ROWS}) g")
    server = fanout(tmp_path / "server", database, "{ table = t }", _CATCHUP)
    with started(server):
        async with server.follower("public.t") as t:
            await until(lambda: len(t.rows) == _ROWS)
            _fall_behind(server, database)
            config = server.program.config
            both = config.read_text().replace("{ table = t }", "{ table = t }, { table = u }")
            config.write_text(both)
            done = httpx.post(f"{server.program.http}/reload", timeout=PATIENCE_S).json()
            assert done["added"] == ["public.u"]
            wait_until(lambda: server.table("public.u")["status"] == "live", "copied in the end")
            async with server.follower("public.u") as u:
                await until(lambda: len(u.rows) == _ROWS)
            await until(lambda: t.rows[b"1"] == b'{"id":1,"v":8}')
            assert len(t.handshakes) == 1
    log = server.program.log.read_text()
    asked, released, begun = (
        log.index(event)
        for event in ("public.u: waiting", "segments released", '"table": "public.u"')
    )
    assert asked < released < begun
    assert log.count('"catching up"') == 1
