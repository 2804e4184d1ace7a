"""The service's calls over Connect: the same answers as by gRPC, framed as its protocol says."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest

from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from tests.support.processes import PATIENCE_S, until
from tests.support.server.connect_client import SERVICE, connected, envelope, packed, sync_request
from tests.support.server.serving_world import line, rows

INSERT, UPDATE, DELETE, TRUNCATE = Action
STATUS = wire.GetReplicationStatusRequest(schema="public", table="users")


@pytest.mark.parametrize("batch", [False, True])
async def test_the_same_messages_as_by_grpc_until_the_client_leaves(
    tmp_path: Path, batch: bool
) -> None:
    async with connected(tmp_path, users=500) as (world, client):
        by_grpc = world.sync(batch=batch, client_id="g")
        async with client.sync(batch=batch, client_id="c") as stream:
            assert stream.response.status_code == 200
            assert stream.response.headers["content-type"] == "application/connect+proto"
            assert stream.response.headers["transfer-encoding"] == "chunked"
            while True:
                expected, found = await by_grpc.next(), await stream.next()
                assert found == expected
                if isinstance(found, wire.SnapshotEnd):
                    break
            world.writer.commit_all([[(UPDATE, line(1, "new"))], [(DELETE, b"2")]])
            assert await stream.next() == await by_grpc.next()
            known = {lease.state.info.client_id for lease in world.registry.leases}
            assert known == {"g", "c"}
        await until(lambda: world.registry.closed)
        assert world.registry.closed == [("c", "client")]


async def test_unary_calls(tmp_path: Path) -> None:
    async with connected(tmp_path, users=3) as (_, client):
        answer = await client.unary("GetReplicationStatus", STATUS)
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/proto"
        assert wire.GetReplicationStatusResponse.FromString(answer.content).row_count == 3
        packed_ = await client.unary(
            "GetReplicationStatus", packed(STATUS), {"Content-Encoding": "gzip"}
        )
        assert packed_.content == answer.content
        kind = {"Content-Type": "application/json; charset=utf-8"}
        asked = orjson.dumps({"schema": "public", "table": "users"})
        as_json = await client.unary("GetReplicationStatus", asked, kind)
        assert as_json.headers["content-type"] == "application/json"
        assert as_json.json()["rowCount"] == "3"
        listed = await client.unary(
            "ListSnapshots", wire.ListSnapshotsRequest(schema="public", table="users")
        )
        assert listed.status_code == 200 and listed.content == b""


async def test_unary_errors_are_statuses_and_json(tmp_path: Path) -> None:
    nope = wire.GetReplicationStatusRequest(schema="public", table="nope")
    async with connected(tmp_path) as (_, client):
        for request, headers, status, code, said in (
            (nope, {}, 404, "not_found", "public.nope"),
            (b"\xff\xff", {}, 400, "invalid_argument", ""),
            (STATUS, {"Content-Encoding": "br"}, 501, "unimplemented", "gzip"),
            (STATUS, {"Connect-Timeout-Ms": "1.5"}, 400, "invalid_argument", ""),
        ):
            answer = await client.unary("GetReplicationStatus", request, headers)
            assert answer.headers["content-type"] == "application/json"
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert said in answer.json()["message"]
        header = {"Connect-Content-Encoding": "br"}
        async with client.stream("Sync", sync_request(), header) as stream:
            assert (await stream.ends())["code"] == "unimplemented"


async def test_a_stream_that_is_refused_is_200_with_an_end(tmp_path: Path) -> None:
    async with connected(tmp_path) as (world, client):
        async with client.sync(table="nope") as stream:
            assert stream.response.status_code == 200
            error = await stream.ends()
        assert error["code"] == "not_found" and "public.nope" in error["message"]
        world.writer.publish(rows(0, 3))
        async with client.sync(last_known_sequence=-1) as stream:
            assert (await stream.ends())["code"] == "invalid_argument"
        assert not world.registry.leases and not world.registry.closed


async def test_a_snapshot_is_fetched_as_by_grpc_and_never_looks_whole_if_it_is_not(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "snapshots"
    options = ServingTableOptions(snapshot_path=directory)
    async with connected(tmp_path / "s", table=options, users=2500) as (world, client):
        snapshot_id = world.writer.take_snapshot(directory)
        asked = wire.ListSnapshotsRequest(schema="public", table="users")
        listed = (await client.unary("ListSnapshots", asked)).content
        assert wire.ListSnapshotsResponse.FromString(listed).snapshots[0].row_count == 2500
        request = wire.FetchSnapshotRequest(snapshot_id=snapshot_id)
        async with client.stream("FetchSnapshot", request) as stream:
            async for expected in world.stub().FetchSnapshot(request):
                found = await stream.raw()
                assert found is not None
                assert wire.FetchSnapshotResponse.FromString(found) == expected
            assert (await stream.raw(), stream.end) == (None, {})
        (path,) = directory.glob("*.jsonl")
        path.write_bytes(path.read_bytes().replace(b"name 7", b"name 8"))
        async with client.stream("FetchSnapshot", request) as stream:
            assert (await stream.ends())["code"] == "data_loss"
        none = wire.FetchSnapshotRequest(snapshot_id="public.users.1.2")
        async with client.stream("FetchSnapshot", none) as stream:
            assert (await stream.ends())["code"] == "not_found"


async def test_streaming_json(tmp_path: Path) -> None:
    async with connected(tmp_path, users=2) as (_, client):
        asked = orjson.dumps({"schema": "public", "table": "users", "unknownField": 1})
        kind = {"Content-Type": "application/connect+json"}
        async with client.stream("Sync", asked, kind) as stream:
            assert stream.response.headers["content-type"] == "application/connect+json"
            found = [orjson.loads(await stream.raw() or b"") for _ in range(5)]
            assert found[0]["handshake"]["mode"] == "SYNC_MODE_FULL_SNAPSHOT"
            assert [each["snapshotRow"]["row"]["id"] for each in found[2:4]] == [0, 1]
            assert found[4]["snapshotEnd"]["rowsSent"] == "2"
        async with client.stream("Sync", b"{", kind) as stream:
            error = await stream.ends()
        assert error["code"] == "invalid_argument" and "SyncRequest" in error["message"]


async def test_gzip_requests(tmp_path: Path) -> None:
    async with connected(tmp_path, users=2) as (_, client):
        header = {"Connect-Content-Encoding": "gzip"}
        body = envelope(packed(sync_request()), flags=1)
        async with client.stream("Sync", b"", header, content=body) as stream:
            await stream.next("handshake")
        # A message that isn't worth it may be left as it is.
        plain = envelope(sync_request().SerializeToString())
        async with client.stream("Sync", b"", header, content=plain) as stream:
            await stream.next("handshake")


async def test_a_call_ends_when_its_caller_no_longer_waits(tmp_path: Path) -> None:
    async with connected(tmp_path, users=2) as (world, client):
        late = {"Connect-Timeout-Ms": "300"}
        async with client.stream("Sync", sync_request(), late) as stream:
            error = await stream.ends()
        assert error["code"] == "deadline_exceeded" and "0.3 s" in error["message"]
        assert world.registry.closed == [("test", "client")]


async def test_a_request_in_chunks(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in envelope(sync_request().SerializeToString()):
            yield bytes([byte])

    async with connected(tmp_path) as (world, client):
        world.writer.publish(rows(0, 2))
        async with client.stream("Sync", b"", content=pieces()) as stream:
            await stream.next("handshake")


async def test_a_connection_is_used_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (world, client):
        one = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(
            base_url=client.http.base_url, limits=one, timeout=PATIENCE_S
        ) as http:
            client.http, before = http, client.http
            for _ in range(3):
                assert (await client.unary("GetReplicationStatus", STATUS)).status_code == 200
                async with client.sync(table="nope") as stream:
                    assert (await stream.ends())["code"] == "not_found"
            opened = http._transport._pool.connections  # type: ignore[attr-defined]
            assert len(opened) == 1 and opened[0].is_idle()
            client.http = before
        assert not world.registry.leases


async def test_drain(tmp_path: Path) -> None:
    async with connected(tmp_path, users=2) as (world, client):
        await client.unary("GetReplicationStatus", STATUS)
        async with client.sync(batch=True) as stream:
            await stream.next("handshake")
            world.drain.set()
            while (message := await stream.next()) is not None:
                if isinstance(message, wire.GoAway):
                    break
            assert message.reason == "draining" and message.drain_deadline_unix_ms
            with pytest.raises(httpx.ConnectError):
                await httpx.AsyncClient(timeout=PATIENCE_S).get(f"{client.http.base_url}")
            assert (await stream.ends())["code"] == "unavailable"
        assert world.registry.closed == [("test", "drain")]


def test_the_path_is_the_services() -> None:
    service = wire.DESCRIPTOR.services_by_name["LaredoReplicationService"]
    assert f"/{service.full_name}" == SERVICE and gzip.decompress(packed(STATUS))
