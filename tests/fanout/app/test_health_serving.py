"""/health/serving: the rows that the server has are served, whatever becomes of PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started


def answer(server: Fanout, what: str) -> tuple[int, list[str]]:
    """The status and the problems; 0 while nobody answers."""
    found = server.program.get(f"/health/{what}")
    return (0, []) if found is None else (found.status_code, found.json()["problems"])


def test_serving_outlasts_postgresql(tmp_path: Path, database: Database) -> None:
    with database.connect() as owner:
        owner.execute("CREATE TABLE a (id int PRIMARY KEY)")
    name = f"s_{database.name}"
    with started(fanout(tmp_path / "server", database.dsn, "{ table = a }", slot=name)) as server:
        assert answer(server, "serving") == answer(server, "ready") == (200, [])
    away = f"host=127.0.0.1 port={free_port()} dbname=none"
    server = fanout(tmp_path / "server", away, "{ table = a }", slot=name)
    with server.program:
        wait_until(lambda: answer(server, "serving")[0] == 200, "serving")
        code, problems = answer(server, "ready")
        assert code == 503 and problems[0].startswith("source ")
        assert answer(server, "serving") == (200, [])


def test_nothing_to_serve_is_not_serving(tmp_path: Path) -> None:
    away = f"host=127.0.0.1 port={free_port()} dbname=none"
    more = "http { token = s3cret, public = [health] }\n"
    server = fanout(tmp_path / "server", away, "{ table = a }", more)
    with server.program:

        def copied_nothing() -> bool:
            return answer(server, "serving") == (503, ["no table has been copied yet"])

        wait_until(copied_nothing, "a serving process listens")
        assert httpx.get(f"{server.program.http}/status", timeout=PATIENCE_S).status_code == 401
