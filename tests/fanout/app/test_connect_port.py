"""The Connect port of the whole server, by a client of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import Database
from tests.support.processes import free_port, wait_until
from tests.support.server.connect_client import ConnectClient
from tests.support.server.fanout_program import Fanout, fanout, started


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, database: Database, port: int) -> Fanout:
    database.run(
        "CREATE TABLE users (id int PRIMARY KEY, name text)", "INSERT INTO users VALUES (1, 'one')"
    )
    connect = f"fanout.connect.port = {port}\n"
    return fanout(tmp_path / "server", database, "{ table = users }", connect)


async def test_a_client_follows_a_table(server: Fanout, database: Database, port: int) -> None:
    with started(server):
        client = ConnectClient(port)
        async with client.http, client.sync() as stream:
            await stream.next("handshake")
            await stream.next("snapshot_begin")
            assert (await stream.next("snapshot_row")).row["name"] == "one"
            await stream.next("snapshot_end")
            database.run("UPDATE users SET name = 'two'")
            assert (await stream.next("journal_entry")).new_values["name"] == "two"
            wait_until(lambda: server.table("public.users")["clients"], "the client is shown")
