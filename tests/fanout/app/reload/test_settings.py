"""Limits, tokens, schedules and the way to PostgreSQL, changed while the server runs."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from psycopg.conninfo import make_conninfo

from tests.fanout.app.reload.reloading import reload, rewrite
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, eventually, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.server.states import States


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """It serves one table."""
    database.make("a")
    return fanout(tmp_path / "server", database, "{ table = a }")


async def test_other_tokens_hold_at_once_and_wrong_ones_are_refused(
    server: Fanout, tmp_path: Path
) -> None:
    first, second, of_http = tmp_path / "first", tmp_path / "second", tmp_path / "token"
    first.write_text("one\n")
    second.write_text("two\n")
    of_http.write_text("one")
    http = f'http {{ token_file = "{of_http}", public = [health] }}'

    def tokens(file: object) -> None:
        rewrite(server, "{ table = a }", f'fanout.grpc.tokens_file = "{file}"\n{http}')

    def reloaded(token: str) -> httpx.Response:
        bearer = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{server.program.http}/reload", headers=bearer, timeout=PATIENCE_S)

    tokens(first)
    with started(server):
        former = States(server.grpc_port, "public.a", "former", token="one")
        with pytest.raises(AssertionError, match="the client ended") as ended:
            async with former:
                await until(lambda: len(former.rows) == 50)
                tokens(f"{second}.not")
                refused = reloaded("one")
                assert refused.status_code == 422
                assert "No such file" in refused.json()["error"]
                tokens(second)
                assert reloaded("one").json()["changed"] == ["fanout.grpc.tokens_file"]
                await until(lambda: former._task is not None and former._task.done())
        assert "this token is unknown" in str(ended.value.__cause__)
        async with States(server.grpc_port, "public.a", "now", token="two") as now:
            await until(lambda: len(now.rows) == 50)
        of_http.write_text("two")
        assert reloaded("one").json()["changed"] == ["http.token"]
        for token, code in (("one", 401), ("two", 200)):
            bearer = {"Authorization": f"Bearer {token}"}
            asked = httpx.get(f"{server.program.http}/status", headers=bearer, timeout=PATIENCE_S)
            assert asked.status_code == code
        assert server.run("reload").stdout == "nothing has changed\n"
        rewrite(server, "{ table = a }", http)
        assert reloaded("two").json()["needs_restart"] == ["fanout.grpc.tokens_file"]
        async with States(server.grpc_port, "public.a", "still", token="two") as still:
            await until(lambda: len(still.rows) == 50)


async def test_limits_a_schedule_of_snapshots_and_a_role_hold_at_once(
    server: Fanout, database: Database
) -> None:
    with started(server):
        async with server.follower("public.a", "first") as first:
            await until(lambda: len(first.rows) == 50)
            await _a_journal_is_pruned_to_its_new_bound(server, database, first)
            target = "{ journal { max_entries = 2 }, snapshot { interval = 1s } }"
            table = f"{{ table = a, targets = [ {target} ] }}"
            rewrite(server, table, "fanout { grpc { max_clients = 1 }, drain_grace = 1s }")
            done = reload(server)
            assert done["altered"] == ["public.a"]
            assert done["changed"] == ["fanout.grpc.max_clients", "fanout.drain_grace"]
            second = server.follower("public.a", "second")
            async with second:
                wait_until(
                    lambda: server.metrics['laredo_fanout_snapshots_total{table="public.a"}'],
                    "a snapshot",
                )
                assert not second.rows
                assert server.metrics["laredo_fanout_max_clients"] == 1
                eventually(lambda: server.status["fanout"]["clients"], 1)
                assert first.goaways == 0 and len(first.handshakes) == 1
                rewrite(server, "{ table = a }", "fanout.drain_grace = 1s")
                assert reload(server)["altered"] == ["public.a"]
                await until(lambda: len(second.rows) == 50)
            assert server.table("public.a")["snapshots"] is None
            await _another_role_connects(server, database, first)


async def _a_journal_is_pruned_to_its_new_bound(
    server: Fanout, database: Database, a: States
) -> None:
    with database.connect() as owner:
        for number in range(20):
            owner.execute(f"UPDATE a SET v = 'n{number}' WHERE id = 1".encode())
    await until(lambda: len(a.positions) == 20)
    eventually(lambda: server.table("public.a")["journal"]["entries"], 20)
    rewrite(server, "{ table = a, targets = [ { journal { max_entries = 3 } } ] }")
    reload(server)
    wait_until(lambda: server.table("public.a")["journal"]["entries"] <= 3, "pruned")


async def _another_role_connects(server: Fanout, database: Database, a: States) -> None:
    role = f"second_{database.name}"
    with database.connect() as owner:
        owner.execute(f"CREATE ROLE {role} SUPERUSER LOGIN".encode())
        try:
            connection = make_conninfo(database.dsn, user=role)
            extra = f'fanout.drain_grace = 1s\nsources.pg.connection = "{connection}"'
            rewrite(server, "{ table = a }", extra)
            assert reload(server)["changed"] == ["sources.pg.connection"]
            connected = (
                "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname ="
                " current_database() AND pid <> pg_backend_pid()"
            )
            eventually(lambda: owner.execute(connected).fetchall(), [(role,)])
            owner.execute("INSERT INTO a VALUES (51, 'x')")
            await until(lambda: len(a.rows) == 51)
            assert len(a.handshakes) == 1
            assert server.table("public.a")["copied_rows"] == 50
        finally:
            server.program.stop()
            owner.execute(f"DROP ROLE {role}".encode())
