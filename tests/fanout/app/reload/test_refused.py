"""A reload that can't be taken up, or not at once: nothing is lost, and it is said."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fanout.app.reload.reloading import is_live, reload, rewrite
from tests.support.page import page_of
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, relay, started

A, B = "{ table = a }", "{ table = b }"


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """It serves the first of two tables."""
    database.make("a", "b")
    return fanout(tmp_path / "server", database, A)


def logged(server: Fanout, event: str) -> int:
    """Number of log lines with this event."""
    return server.program.log.read_text().count(event)


def test_a_wrong_configuration_changes_nothing(server: Fanout) -> None:
    with started(server):
        rewrite(server, f"{A}, {{ tabel = b }}", "fanout.grpc.max_clients = 3")
        refused = httpx.post(f"{server.program.http}/reload", timeout=PATIENCE_S)
        assert refused.status_code == 422
        error = refused.json()["error"]
        assert f"{server.program.config}:" in error
        assert 'unknown key; the nearest known key is "table"' in error
        commanded = server.run("reload", "--url", server.program.http)
        assert commanded.returncode == 2
        os.kill(server.program.pid, signal.SIGHUP)
        wait_until(lambda: logged(server, "configuration not reloaded") == 2, "the signal's too")
        assert list(server.status["tables"]) == ["public.a"]
        file = server.program.config
        text = file.read_text()
        file.unlink()
        refused = httpx.post(f"{server.program.http}/reload", timeout=PATIENCE_S)
        assert refused.status_code == 422
        assert str(file) in refused.json()["error"]
        file.write_text(text)
        assert server.status["fanout"]["max_clients"] == 500
        assert server.program.is_ready()
        rewrite(server, f"{A}, {B}")
        os.kill(server.program.pid, signal.SIGHUP)
        wait_until(lambda: is_live(server, "public.b"), "what is right is taken up")
        rewrite(server, A)
        reload(server)
        _what_needs_a_restart_is_named_and_the_rest_is_taken_up(server)


def _what_needs_a_restart_is_named_and_the_rest_is_taken_up(server: Fanout) -> None:
    extra = (
        "state.max_size = 1 GB\nsources.pg.slot_name = other\nfanout.grpc.max_clients = 3\n"
        "fanout.grpc.workers = 2\n"
    )
    processes = {each.pid for each in psutil.Process(server.program.pid).children()}
    rewrite(server, f"{A}, {B}", extra)
    shown = server.run("reload")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == [
        "table added: public.b",
        "changed: fanout.grpc.max_clients",
        "needs a restart, as it was until then: state.max_size",
        "needs a restart, as it was until then: sources.pg.slot_name",
        "needs a restart, as it was until then: fanout.grpc.workers",
    ]
    assert logged(server, "changed settings left until a restart") == 1
    wait_until(lambda: is_live(server, "public.b"), "the table is live")
    assert server.status["fanout"]["max_clients"] == 3
    assert server.status["store"]["max_bytes"] == 64 * 10**9
    # They are named until they hold, and what is taken up isn't again.
    again = reload(server)
    assert again["needs_restart"] == [
        "state.max_size",
        "sources.pg.slot_name",
        "fanout.grpc.workers",
    ]
    assert again["added"] == again["changed"] == []
    assert processes == {each.pid for each in psutil.Process(server.program.pid).children()}


async def test_a_relay_shows_its_path_and_takes_up_tables_too(
    server: Fanout, tmp_path: Path
) -> None:
    below = relay(tmp_path / "relay", server.grpc_port, A)
    with started(server), started(below):
        async with below.follower("public.a") as a:
            await until(lambda: len(a.rows) == 50)
            source = page_of(below.program.get("/")).section("Source up")
            addresses = [line.all("td")[0].text for line in source.all("table")[0].all("tr")[1:]]
            assert addresses == ["this one", f"127.0.0.1:{server.grpc_port}"]
            assert "slot" not in [name.text for name in source.all("dt")]
            rewrite(server, f"{A}, {B}")
            reload(server)
            rewrite(below, f"{B}, {A}")
            assert reload(below)["added"] == ["public.b"]
            wait_until(lambda: is_live(below, "public.b"), "the relay has it")
            async with below.follower("public.b", "b") as b:
                await until(lambda: len(b.rows) == 50)
            rewrite(below, A)
            assert reload(below)["removed"] == ["public.b"]
            wait_until(below.program.is_ready, "ready")
            assert len(a.handshakes) == 1
