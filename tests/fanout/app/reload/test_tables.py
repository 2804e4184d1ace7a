"""Tables come and go while the server runs: what comes is copied, the others notice nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from laredo_fanout.client import Mode, StreamError
from laredo_fanout.store.errors import TableUnknown
from laredo_fanout.store.reader import StoreReader
from tests.fanout.app.reload.reloading import is_live, reload, rewrite, rows, written
from tests.support import drawn
from tests.support.postgres import Database
from tests.support.processes import until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.server.states import States

TWO = "fanout.grpc.workers = 2"
A, B, C = ("{ table = a }", "{ table = b }", "{ table = c }")
ROWS = 5_000


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """Three tables with rows, of which it serves two."""
    database.make("a", "b", "c", rows=ROWS)
    database.run("ANALYZE a, b, c")
    return fanout(tmp_path / "server", database, f"{A}, {B}")


async def has_rows(follower: States, database: Database) -> None:
    """Wait until it has what PostgreSQL has."""
    table = follower.table.removeprefix("public.")
    await until(lambda: follower.rows == rows(database, table))


async def test_a_table_that_comes_is_copied_and_the_others_go_on(
    server: Fanout, database: Database
) -> None:
    with started(server):
        async with server.follower("public.a") as a:
            await until(lambda: len(a.rows) == ROWS)
            copied = server.table("public.a")["copied_rows"]
            rewrite(server, f"{A}, {B}, {C}")
            with written(database, "a", "c"):
                done = reload(server)
                async with server.follower("public.c") as c:
                    wait_until(lambda: is_live(server, "public.c"), "the table is live")
                    await until(lambda: len(c.positions) > 100)
                    await until(lambda: len(a.positions) > 100)
            assert done == {
                "added": ["public.c"],
                "removed": [],
                "altered": [],
                "changed": [],
                "needs_restart": [],
                "waits_for": None,
            }
            assert server.metrics['laredo_table_live{table="public.c"}'] == 1
            async with server.follower("public.c", "another") as late:
                await has_rows(late, database)
            await has_rows(a, database)
            assert len(a.handshakes) == 1, "its stream was cut"
            assert server.table("public.a")["copied_rows"] == copied
            assert server.program.is_ready()


async def test_a_table_that_goes_is_no_longer_served_and_its_rows_go(
    server: Fanout, database: Database
) -> None:
    rewrite(server, f"{A}, {B}", TWO)
    with started(server):
        async with server.follower("public.a") as a:
            await until(lambda: len(a.rows) == ROWS)
            b = server.follower("public.b")
            with pytest.raises(AssertionError) as ended:
                async with b:
                    await until(lambda: len(b.rows) == ROWS)
                    rewrite(server, A, TWO)
                    assert reload(server)["removed"] == ["public.b"]
                    await until(lambda: b._task is not None and b._task.done())
            why = ended.value.__cause__
            assert isinstance(why, StreamError)
            assert "public.b isn't served here" in str(why)
            assert list(server.status["tables"]) == ["public.a"]
            assert 'laredo_table_rows{table="public.b"}' not in server.metrics
            reader = StoreReader.open(server.directory / "state")
            wait_until(lambda: not _has(reader, "public.b"), "its rows are gone")
            assert _has(reader, "public.a")
            reader.close()
            with written(database, "a", "b"):
                await until(lambda: len(a.positions) > 100)
            await has_rows(a, database)
            assert len(a.handshakes) == 1
            rewrite(server, f"{A}, {B}", TWO)
            reload(server)
            async with server.follower("public.b", "later") as again:
                await has_rows(again, database)
            assert len(a.handshakes) == 1


def _has(reader: StoreReader, table: str) -> bool:
    try:
        reader.table(table)
    except TableUnknown:
        return False
    return True


@pytest.mark.thorough
async def test_a_serving_process_that_hangs_is_replaced(server: Fanout, database: Database) -> None:
    rewrite(server, f"{A}, {B}", TWO)
    with started(server):
        wait_until(lambda: server.status["fanout"]["listening"] == 2, "both listen")
        async with AsyncExitStack() as connected:
            clients = [
                await connected.enter_async_context(server.follower("public.a", f"{number}"))
                for number in range(6)
            ]
            for client in clients:
                await has_rows(client, database)
            hanging = server.status["fanout"]["pids"][0]
            psutil.Process(hanging).suspend()
            rewrite(server, A, TWO)
            assert (await asyncio.to_thread(reload, server))["removed"] == ["public.b"]
            assert hanging not in server.status["fanout"]["pids"]
            database.run("UPDATE a SET v = 'w' WHERE id = 1")
            for client in clients:
                await has_rows(client, database)
            other = server.follower("public.b", "refused")
            with pytest.raises(AssertionError, match="the client ended"):
                async with other:
                    await until(lambda: other._task is not None and other._task.done())


@pytest.mark.thorough
async def test_a_table_without_a_key_comes_while_another_is_copied(
    server: Fanout, database: Database
) -> None:
    database.run("CREATE TABLE log (line int)", "INSERT INTO log SELECT generate_series(1, 500)")
    slow = "sources.pg.copy { workers = 1, max_rows_per_second = 1000 }"
    rewrite(server, A)
    with started(server):
        async with server.follower("public.a") as a:
            await until(lambda: len(a.rows) == ROWS)
            rewrite(server, f"{A}, {C}", slow)
            reload(server)
            wait_until(lambda: server.table("public.c")["ranges_done"] >= 3, "a part is copied")
            with written(database, "a", "c"), database.connect() as owner:
                rewrite(server, f"{A}, {C}, {{ table = log, append_only = true }}", slow)
                assert reload(server)["added"] == ["public.log"]
                for line in range(501, 601):
                    owner.execute(f"INSERT INTO log VALUES ({line})".encode())
                wait_until(lambda: is_live(server, "public.log"), "the one without a key is live")
                wait_until(lambda: is_live(server, "public.c"), "the other one too")
            async with server.follower("public.log") as log, server.follower("public.c") as c:
                await until(lambda: len(log.rows) == 600)
                assert set(log.rows.values()) == {b'{"line":%d}' % line for line in range(1, 601)}
                await has_rows(c, database)
            await has_rows(a, database)
            # What was copied before the second reload wasn't copied again.
            assert server.table("public.c")["copied_rows"] < ROWS + 2 * 1000
            assert len(a.handshakes) == 1


@pytest.mark.parametrize("moment", drawn.first(1, ["copying", "at once"]))
async def test_a_server_that_is_killed_goes_on_with_the_new_tables(
    server: Fanout, database: Database, moment: str
) -> None:
    throttled = "sources.pg.copy { workers = 1, max_rows_per_second = 2000 }"
    with server.program.config.open("a") as config:
        config.write(throttled)
    with started(server):
        async with server.follower("public.a") as a:
            await until(lambda: len(a.rows) == ROWS)
            rewrite(server, f"{A}, {C}", throttled)
            if moment == "at once":
                os.kill(server.program.pid, signal.SIGHUP)
            else:
                reload(server)
                wait_until(lambda: server.table("public.c")["ranges_done"], "a part is copied")
            server.program.kill()
            server.program.start()
            server.program.wait_ready()
            async with server.follower("public.c") as c:
                await has_rows(c, database)
            await until(lambda: len(a.handshakes) > 1)
            assert Mode.FULL_SNAPSHOT not in [each.mode for each in a.handshakes[1:]]
            assert set(server.status["tables"]) == {"public.a", "public.c"}
