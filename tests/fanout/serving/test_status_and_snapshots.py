"""GetReplicationStatus, ListSnapshots and FetchSnapshot."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from laredo_model.position import text
from tests.support.server.serving_world import World, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action
Code = grpc.StatusCode


def with_snapshots(path: Path) -> ServingTableOptions:
    return ServingTableOptions(snapshot_path=path / "snapshots")


async def status(world: World, table: str = "users") -> Any:
    request = wire.GetReplicationStatusRequest(schema="public", table=table)
    return await world.stub().GetReplicationStatus(request)


async def listed(world: World, **asked: Any) -> Any:
    request = wire.ListSnapshotsRequest(**{"schema": "public", "table": "users", **asked})
    return (await world.stub().ListSnapshots(request)).snapshots


async def fetched(world: World, snapshot_id: str) -> list[Any]:
    call = world.stub().FetchSnapshot(wire.FetchSnapshotRequest(snapshot_id=snapshot_id))
    return [message async for message in call]


async def test_status(tmp_path: Path) -> None:
    async with running(tmp_path / "store", table=with_snapshots(tmp_path)) as world:
        before = await status(world)
        assert (before.row_count, before.connected_clients) == (0, 0)
        world.writer.publish(rows(0, 30))
        assert (await status(world)).journal_entry_count == 0
        world.writer.commit((DELETE, b"3"), (UPDATE, line(4)))
        world.writer.commit((DELETE, b"5"))
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        stream = await world.greeted(client_id="someone")
        _, _, end = await stream.base_snapshot()
        while not (now := await status(world)).clients or now.clients[0].state != "live":
            await asyncio.sleep(0.01)
        assert now.row_count == 28
        assert now.journal_entry_count == 3
        assert now.current_sequence == now.journal_oldest_sequence + 2 == end.sequence
        assert now.connected_clients == 1
        client = now.clients[0]
        assert (client.client_id, client.current_sequence) == ("someone", end.sequence)
        assert (client.behind_count, client.buffer_depth) == (0, 0)
        assert client.connected_at.seconds > 1_600_000_000
        assert now.latest_snapshot.snapshot_id == snapshot_id
        assert now.latest_snapshot.row_count == 28


async def test_list_newest_first(tmp_path: Path) -> None:
    async with running(tmp_path / "store", table=with_snapshots(tmp_path)) as world:
        assert list(await listed(world)) == []
        world.writer.publish(rows(0, 30))
        ids = []
        for _ in range(3):
            position = world.writer.commit((UPDATE, line(1, str(len(ids)))))
            ids.append(world.writer.take_snapshot(tmp_path / "snapshots"))
        found = await listed(world)
        assert [each.snapshot_id for each in found] == ids[::-1]
        assert found[0].source_position == text(position)
        assert found[0].sequence == world.writer.store.tables[1].sequence
        assert found[0].row_count == 30 and found[0].size_bytes > 1000
        assert found[0].created_at.seconds > 1_600_000_000
        assert [each.snapshot_id for each in await listed(world, limit=1)] == ids[2:]


async def test_fetch_and_go_on_from_there(tmp_path: Path) -> None:
    async with running(tmp_path / "store", table=with_snapshots(tmp_path), users=3000) as world:
        world.writer.commit((UPDATE, line(1, "in it")))
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        world.writer.commit((UPDATE, line(2, "after it")))

        begin, *middle, end = await fetched(world, snapshot_id)
        assert begin.begin.snapshot_id == snapshot_id and begin.begin.row_count == 3000
        assert end.end.rows_sent == 3000 and end.end.sequence == begin.begin.sequence
        structs = [MessageToDict(each.row.row) for each in middle]
        assert {row["id"]: row["name"] for row in structs} == {
            float(n): "in it" if n == 1 else f"name {n}" for n in range(3000)
        }

        stream = world.sync(last_snapshot_id=snapshot_id)
        handshake = await stream.next("handshake")
        assert (handshake.mode, handshake.snapshot_id) == (3, snapshot_id)
        entry = await stream.next("journal_entry")
        assert entry.sequence == handshake.resume_from_sequence == end.end.sequence + 1
        assert entry.new_values["name"] == "after it"

        # Of an incarnation that is gone it is worth nothing.
        world.writer.publish(rows(0, 3))
        stale = world.sync(last_snapshot_id=snapshot_id)
        assert (await stale.next("handshake")).mode == 1


async def test_a_damaged_snapshot_never_looks_whole(tmp_path: Path) -> None:
    async with running(tmp_path / "store", table=with_snapshots(tmp_path), users=30) as world:
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        (path,) = (tmp_path / "snapshots").glob("*.jsonl")
        path.write_bytes(path.read_bytes().replace(b"name 7", b"name 8"))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await fetched(world, snapshot_id)
        assert failed.value.code() is Code.DATA_LOSS


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda world: status(world, ""), Code.INVALID_ARGUMENT),
        (lambda world: status(world, "nope"), Code.NOT_FOUND),
        (lambda world: listed(world, table=""), Code.INVALID_ARGUMENT),
        (lambda world: listed(world, table="nope"), Code.NOT_FOUND),
        (lambda world: listed(world, limit=-1), Code.INVALID_ARGUMENT),
        (lambda world: fetched(world, ""), Code.INVALID_ARGUMENT),
        (lambda world: fetched(world, "nope"), Code.NOT_FOUND),
        (lambda world: fetched(world, "public.users@0_1-5"), Code.NOT_FOUND),
        (lambda world: fetched(world, "../../etc@passwd"), Code.NOT_FOUND),
    ],
)
async def test_refusals(tmp_path: Path, call: Any, code: grpc.StatusCode) -> None:
    async with running(tmp_path / "store", table=with_snapshots(tmp_path), users=3) as world:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(world)
        assert refused.value.code() is code
