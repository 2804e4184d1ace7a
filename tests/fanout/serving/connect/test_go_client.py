"""A Connect client in another language: connect-go, with code generated from our proto/."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf.json_format import MessageToDict

from laredo_fanout.client import FanoutClient
from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from tests.support.postgres import Database
from tests.support.processes import free_port, until, wait_until
from tests.support.server.connect_client import connect_listener, connected
from tests.support.server.fanout_program import fanout, started
from tests.support.server.go_client import GoCall, answer_of, calling
from tests.support.server.serving_world import USERS, World, line

INSERT, UPDATE, DELETE, TRUNCATE = Action
ASKED = {"schema": "public", "table": "users"}

# Go builds its client for a minute; a client in Python proves the protocol in `make test`.
pytestmark = pytest.mark.thorough


def in_postgres(database: Database, where: str = "true") -> dict[int, Any]:
    """The table's rows as the base form has them, by id."""
    with database.connect() as owner:
        found = owner.execute(f"SELECT id, to_jsonb(u)::text FROM users u WHERE {where}").fetchall()
    return {int(str(number)): orjson.loads(str(row)) for number, row in found}


def write(database: Database, *statements: str) -> None:
    """One transaction."""
    with database.connect() as owner, owner.transaction():
        for statement in statements:
            owner.execute(statement)


def level(call: GoCall, database: Database, where: str = "true") -> dict[str, Any]:
    """The client's state, once it has the rows of PostgreSQL."""
    expected = in_postgres(database, where)
    return call.state_when(lambda state: bool(state["rows"] == expected))


def test_it_follows_a_table_through_losses_and_a_restart(
    go_client: Path, tmp_path: Path, database: Database
) -> None:
    write(
        database,
        "CREATE TABLE users (id int PRIMARY KEY, name text, ok bool, tags jsonb)",
        "INSERT INTO users SELECT n, 'name ' || n, n % 2 = 0, '[1, null]' FROM generate_series"
        "(1, 900) n",
    )
    port = free_port()
    table = "{ table = users, targets = [{ type = replication-fanout, heartbeat_interval = 1s }] }"
    server = fanout(tmp_path / "server", database, table, f"fanout.connect.port = {port}\n")
    red = [{"field": "name", "prefix": "red"}]
    with (
        started(server),
        FanoutClient(f"127.0.0.1:{server.grpc_port}", USERS, client_id="ours") as ours,
        calling(go_client, port, "Follow", {**ASKED, "clientId": "go"}) as call,
        calling(go_client, port, "Follow", {**ASKED, "filters": red}) as filtered,
    ):
        assert call.until("handshake") == "SYNC_MODE_FULL_SNAPSHOT"
        assert call.until("snapshot") == 900
        assert call.state()["rows"] == in_postgres(database)
        write(
            database,
            "UPDATE users SET name = 'red ' || id WHERE id % 3 = 0",
            "DELETE FROM users WHERE id % 5 = 0",
            "INSERT INTO users SELECT n, 'new', NULL, '{}' FROM generate_series(4000, 4100) n",
        )
        state = level(call, database)
        assert state["entries"] == 300 + 180 + 101
        assert call.until("heartbeat") == state["sequence"]

        call.tell("drop")
        assert call.until("lost") == "canceled"
        assert call.until("handshake") == "SYNC_MODE_DELTA"
        assert call.until("caught_up") == state["sequence"]
        call.tell("drop")
        write(database, "DELETE FROM users WHERE id % 7 = 0", "UPDATE users SET name = 'red'")
        state = level(call, database)
        write(database, "TRUNCATE users", "INSERT INTO users VALUES (1, 'red', true, '[]')")
        state = level(call, database)
        assert (state["repeated"], state["misread"]) == (0, 0)

        server.program.stop()
        assert call.until("go_away") == "draining"
        write(database, "DELETE FROM users", "INSERT INTO users VALUES (2, 'red', true, '[]')")
        server.program.start()
        assert call.until("handshake") == "SYNC_MODE_DELTA"
        state = level(call, database)
        assert state["misread"] == 0
        assert level(filtered, database, "name LIKE 'red%'")["misread"] == 0
        wait_until(lambda: ours.lookup(2) is not None and len(ours) == 1, "our client is there")
        assert {2: ours.lookup(2)} == state["rows"]


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[World, int]]:
    """A server with a table of 1,000 rows, and the port for Connect."""
    listener = connect_listener()
    table = ServingTableOptions(snapshot_path=path / "snapshots")
    assert listener.connect is not None
    async with connected(path / "store", listener=listener, table=table, users=1000) as (world, _):
        yield world, listener.connect.port


@pytest.mark.parametrize("options", [[], ["-gzip"], ["-json"], ["-json", "-gzip"]])
async def test_it_gets_what_a_grpc_client_gets(
    go_client: Path, tmp_path: Path, options: list[str]
) -> None:
    async with serving(tmp_path) as (world, port):

        async def answer(call: str, request: dict[str, Any]) -> list[dict[str, Any]]:
            *found, end = await asyncio.to_thread(
                answer_of, go_client, port, call, request, *options
            )
            assert end == {"code": "ok"}
            return found

        stub = world.stub()
        asked = wire.ListSnapshotsRequest(**ASKED)
        assert await answer("ListSnapshots", ASKED) == [{}]
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        by_grpc = await stub.ListSnapshots(asked)
        assert await answer("ListSnapshots", ASKED) == [MessageToDict(by_grpc)]
        assert by_grpc.snapshots[0].snapshot_id == snapshot_id

        status = await stub.GetReplicationStatus(wire.GetReplicationStatusRequest(**ASKED))
        assert await answer("GetReplicationStatus", ASKED) == [MessageToDict(status)]

        fetch = wire.FetchSnapshotRequest(snapshot_id=snapshot_id)
        fetched = [MessageToDict(each) async for each in stub.FetchSnapshot(fetch)]
        assert len(fetched) == 1002
        assert await answer("FetchSnapshot", {"snapshotId": snapshot_id}) == fetched

        request = {**ASKED, "lastSnapshotId": snapshot_id}
        stream = world.sync(last_snapshot_id=snapshot_id)
        with calling(go_client, port, "Sync", request, *options) as call:
            world.writer.commit((UPDATE, line(1, "after it")), (DELETE, b"2"))
            for _ in range(3):
                expected = MessageToDict(await stream.next())
                (found,) = (await asyncio.to_thread(call.line)).values()
                assert found == expected


async def test_its_calls_end_as_it_asks(go_client: Path, tmp_path: Path) -> None:
    async with serving(tmp_path) as (world, port):
        *_, late = await asyncio.to_thread(
            answer_of, go_client, port, "Sync", ASKED, "-deadline", "500ms"
        )
        assert late["code"] == "deadline_exceeded"
        await until(lambda: not world.registry.leases)
        with calling(go_client, port, "Sync", ASKED) as call:
            await asyncio.to_thread(call.until, "snapshotEnd")
            assert len(world.registry.leases) == 1
            call.tell("cancel")
            ended = await asyncio.to_thread(call.all)
            assert ended[-1]["code"] == "canceled"
            await until(lambda: not world.registry.leases)
        assert [reason for _, reason in world.registry.closed] == ["client", "client"]


async def test_errors_have_their_codes(go_client: Path, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, port):
        for call, request, code, message in (
            ("Sync", {**ASKED, "table": "nope"}, "not_found", "public.nope"),
            ("Sync", {"schema": "public"}, "invalid_argument", "table is empty"),
            ("FetchSnapshot", {"snapshotId": "public.users@1_1-5"}, "not_found", "snapshot"),
            ("GetReplicationStatus", {**ASKED, "table": "nope"}, "not_found", "public.nope"),
            ("ListSnapshots", {**ASKED, "limit": -1}, "invalid_argument", "limit"),
        ):
            (end,) = await asyncio.to_thread(answer_of, go_client, port, call, request)
            assert end["code"] == code and message in end["message"], (call, end)
