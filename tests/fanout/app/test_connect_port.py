"""The Connect port of the whole server, as its documentation says: with curl."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, free_port, wait_until
from tests.support.repository import ROOT
from tests.support.server.fanout_program import fanout, started


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed")
def test_curl_as_the_quickstart_has_it(database: Database, tmp_path: Path) -> None:
    with database.connect() as owner:
        owner.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
        owner.execute("INSERT INTO users VALUES (1, 'one')")
    port, slot = free_port(), f"s_{database.name}"
    connect = f"fanout {{ connect.port = {port}, drain_grace = 1s }}\n"
    server = fanout(tmp_path / "server", database.dsn, "{ table = users }", connect, slot)
    page = (ROOT / "docs/quickstart.md").read_text()
    command = re.search(r"^\$ (printf .*\n(?:  .*\n)*)", page, re.M)
    assert command is not None
    shown = tmp_path / "shown"
    with started(server), shown.open("wb") as output:
        call = subprocess.Popen(
            ["bash", "-c", "exec 2>&1; " + command[1].replace("4003", str(port))],
            stdout=output,
            start_new_session=True,
        )
        try:
            wait_until(lambda: '"name":"one"' in text_of(shown), "the row is shown", PATIENCE_S)
            wait_until(lambda: server.table("public.users")["clients"], "the client is shown")
            with database.connect() as owner:
                owner.execute("UPDATE users SET name = 'two'")
            wait_until(lambda: '"name":"two"' in text_of(shown), "the change is shown", PATIENCE_S)
        finally:
            server.program.stop()
            call.wait(PATIENCE_S)


def text_of(file: Path) -> str:
    return file.read_text(errors="replace").replace(" ", "")
