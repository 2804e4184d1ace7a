"""A table's re-copy as operators ask for it: by command and by POST, shown while it is under way,
killed in the middle; its readers see ordinary changes alone."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from laredo_fanout.app.http import application
from laredo_fanout.errors import RecopyRefused
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, eventually, wait_until
from tests.support.server.fanout_program import Fanout, fanout, relay, started

ROWS = 900
THROTTLED = "\nsources.pg.copy { workers = 1, max_rows_per_second = 45 }"
"""A re-copy then lasts for twenty seconds: long enough for a slow machine to see it at work."""


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """One table."""
    database.make("a", rows=ROWS)
    database.run("ANALYZE a")
    return fanout(tmp_path / "server", database, "{ table = a }")


def _recopy(server: Fanout) -> dict[str, Any]:
    return server.table("public.a")["recopy"] or {}


def _post(server: Fanout, table: str) -> httpx.Response:
    return httpx.post(f"{server.program.http}/tables/{table}/recopy", timeout=PATIENCE_S)


async def test_a_table_that_is_removed_while_its_recopy_is_asked_for_is_unknown() -> None:
    unused: Any = None
    for outcome in (None, RecopyRefused("public.a", "it isn't replicated just now", "wait")):
        asked, tables = Future[None](), {"public.a": None}
        app = application(
            **dict.fromkeys(("problems", "unserved", "silent", "metrics", "catch_up"), unused),
            **dict.fromkeys(("promote", "reload", "lag", "status"), unused),
            recopy_status=tables.__getitem__,
            recopy=lambda _, answer=asked: answer,
        )
        tables.clear()
        asked.set_exception(outcome) if outcome else asked.set_result(None)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            answer = await client.post("/tables/public.a/recopy")
        assert answer.status_code == 404, answer.text
        assert "no table public.a is configured" in answer.json()["error"]


async def test_readers_see_what_differed_as_changes_although_the_server_is_killed(
    server: Fanout, database: Database
) -> None:
    with started(server):
        assert _post(server, "public.other").status_code == 404
    server.spoil()
    with server.program.config.open("a") as config:
        config.write(THROTTLED)
    with started(server):
        async with server.follower("public.a") as follower:
            await follower.until_keys([b"%d" % n for n in (*range(1, ROWS + 1), 5000) if n != 8])
            assert b"wrong" in follower.rows[b"7"]
            seen = len(follower.positions)
            asked = _post(server, "public.a")
            assert asked.status_code == 202
            assert asked.json()["recopy"]["active"]
            refused = _post(server, "public.a")
            assert refused.status_code == 409
            assert refused.json()["recopy"]["active"]
            wait_until(
                lambda: (_recopy(server)["progress"] or {}).get("ranges_done"), "a range is done"
            )
            shown = _recopy(server)["progress"]
            assert 0 < shown["rows"] < ROWS
            assert 0 < shown["fraction"] < 1
            assert server.metrics['laredo_recopy_active{table="public.a"}'] == 1
            server.program.kill()
            database.run("DELETE FROM a WHERE id = 20")
            config = server.program.config
            config.write_text(config.read_text().replace(THROTTLED, ""))
            server.program.start()
            server.program.wait_ready()
            await follower.until_keys([b"%d" % n for n in range(1, ROWS + 1) if n != 20])
            assert follower.rows[b"7"] == b'{"id":7,"v":"v7"}'
            wait_until(lambda: not _recopy(server)["active"], "it is done")
            assert _recopy(server)["last"]["differing"] == 3
            differing = 'laredo_recopy_differing_rows_total{table="public.a"}'
            eventually(lambda: server.metrics[differing], 3)
            assert len(follower.positions) == seen + 2
            assert server.table("public.a")["status"] == "live"
        watched = server.run("recopy", "public.a", "--watch")
        assert watched.returncode == 0, watched.stderr
        assert "public.a: 0 rows differed" in watched.stdout
        assert "rows/s" in watched.stdout


def test_a_relay_s_recopy_is_watched_from_its_request_on(server: Fanout, tmp_path: Path) -> None:
    follower = relay(tmp_path / "relay", server.grpc_port, "{ table = a }")
    config = server.program.config
    often = "{ table = a, targets = [ { heartbeat_interval = 200ms } ] }"
    config.write_text(config.read_text().replace("{ table = a }", often))
    with started(server), started(follower):
        for _ in range(2):
            watched = follower.run("recopy", "public.a", "--watch")
            assert watched.returncode == 0, watched.stdout + watched.stderr
            assert "public.a: 0 rows differed" in watched.stdout
