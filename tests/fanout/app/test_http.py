"""The server's HTTP side with a token, and the subcommands that ask it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support import processes
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S
from tests.support.server.fanout_program import Fanout, fanout, started

TOKEN = "s3cret-of-the-server"


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    database.run("CREATE TABLE a (id int PRIMARY KEY, v text)")
    more = f"http {{ token = {TOKEN}, public = [health] }}\n"
    return fanout(tmp_path / "server", database, "{ table = a }", more)


def by_url(server: Fanout, *arguments: str, token: str | None) -> subprocess.CompletedProcess[str]:
    """A subcommand that knows the server's address only."""
    environment = {name: value for name, value in os.environ.items() if name != "LAREDO_CONFIG"}
    if token is not None:
        environment["LAREDO_HTTP_TOKEN"] = token
    return processes.run(
        "laredo-fanout", *arguments, "--url", server.program.http, environment=environment
    )


def test_the_token_lets_its_own_in_and_nobody_else(server: Fanout) -> None:
    with started(server):
        at, right = server.program.http, {"Authorization": f"Bearer {TOKEN}"}
        posts = ("/catchup", "/tables/public.a/recopy")
        for path in ("/status", "/metrics", "/nothing"):
            assert httpx.get(at + path, timeout=PATIENCE_S).status_code == 401
        for path in posts:
            assert httpx.post(at + path, timeout=PATIENCE_S).status_code == 401
            page = {**right, "Origin": "https://evil.example"}
            assert httpx.post(at + path, headers=page, timeout=PATIENCE_S).status_code == 403
            assert httpx.post(at + path, headers=right, timeout=PATIENCE_S).status_code == 202
        shown = httpx.get(at + "/status", headers=right, timeout=PATIENCE_S)
        assert shown.status_code == 200 and TOKEN not in shown.text
        assert httpx.get(at + "/metrics", headers=right, timeout=PATIENCE_S).status_code == 200
        _the_page_is_closed_and_strict(server.program.http)
        _subcommands_bring_it(server)


def _the_page_is_closed_and_strict(at: str) -> None:
    """A browser asks with a password."""
    password = ("", TOKEN)
    for path in ("/", "/page/content", "/page/page.css", "/page/page.js"):
        assert httpx.get(at + path, timeout=PATIENCE_S).status_code == 401
        answer = httpx.get(at + path, auth=password, timeout=PATIENCE_S)
        assert answer.status_code == 200 and TOKEN not in answer.text
        policy = dict(
            each.strip().split(" ", 1)
            for each in answer.headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"


def _subcommands_bring_it(server: Fanout) -> None:
    for arguments in (("status", "--json"), ("clients",), ("catchup",)):
        ended = server.run(*arguments)
        assert ended.returncode == 0, ended.stderr
    ended = by_url(server, "status", token=None)
    assert ended.returncode == 1
    assert "LAREDO_HTTP_TOKEN" in ended.stderr and TOKEN not in ended.stderr
    for arguments in (("reload",), ("recopy", "public.a"), ("promote",)):
        ended = by_url(server, *arguments, token="another")
        assert ended.returncode == 1
        assert "LAREDO_HTTP_TOKEN" in ended.stderr and "http.port" in ended.stderr
    ended = by_url(server, "status", token=TOKEN)
    assert ended.returncode == 0, ended.stderr
