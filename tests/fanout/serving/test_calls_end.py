"""FetchSnapshot is a client like any other; and calls end when they are told, wherever they are."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from laredo_fanout.serving import call
from laredo_fanout.serving.call import Tokens
from laredo_fanout.serving.options import ListenerOptions, ServingTableOptions
from laredo_fanout.serving.ports import ClientInfo
from laredo_fanout.wire import replication_pb2 as wire
from tests.support.processes import PATIENCE_S, until
from tests.support.server.serving_world import (
    USERS,
    Lease,
    Stream,
    World,
    line,
    running,
    with_tokens,
)

Code = grpc.StatusCode
WIDE = "w" * 20_000


def with_snapshots(path: Path) -> ServingTableOptions:
    return ServingTableOptions(snapshot_path=path / "snapshots")


def fetch(world: World, snapshot_id: str, metadata: Any = None) -> Stream:
    asked = wire.FetchSnapshotRequest(snapshot_id=snapshot_id)
    return Stream(world.stub().FetchSnapshot(asked, metadata=metadata))


async def test_a_fetch_takes_a_place_and_gives_it_back(tmp_path: Path) -> None:
    options = with_snapshots(tmp_path)
    async with running(tmp_path / "store", table=options, max_clients=1) as world:
        world.writer.publish([line(n, WIDE) for n in range(500)])
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        first = fetch(world, snapshot_id)
        await first.call.read()
        (lease,) = world.registry.leases
        info = lease.state.info
        assert (info.table, info.host, lease.state.state) == (USERS, "127.0.0.1", "snapshot")
        for refused in (fetch(world, snapshot_id), world.sync()):
            code, details = await refused.ends()
            assert code is Code.RESOURCE_EXHAUSTED and "max_clients" in details
        first.call.cancel()
        await until(lambda: not world.registry.leases)
        code, _ = await fetch(world, snapshot_id).ends()
        assert code is Code.OK
        await until(lambda: [reason for _, reason in world.registry.closed] == ["client", "done"])


async def test_a_fetch_that_nobody_reads_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.serving.endpoints.grpc.STUCK_S", 0.2)
    listener = ListenerOptions("127.0.0.1", 0, stall_timeout_s=0.5, drain_grace_s=0.2)
    options = with_snapshots(tmp_path)
    async with running(tmp_path / "store", table=options, listener=listener) as world:
        world.writer.publish([line(n, WIDE) for n in range(2000)])
        stuck = fetch(world, world.writer.take_snapshot(tmp_path / "snapshots"))
        await stuck.call.read()
        await until(lambda: [reason for _, reason in world.registry.closed] == ["stalled"])
        assert not world.registry.leases


async def test_a_fetch_ends_with_the_server_s_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.serving.endpoints.grpc.STUCK_S", 0.2)
    options = with_snapshots(tmp_path)
    async with running(tmp_path / "store", table=options) as world:
        world.writer.publish([line(n, WIDE) for n in range(2000)])
        stuck = fetch(world, world.writer.take_snapshot(tmp_path / "snapshots"))
        await stuck.call.read()
        world.drain.set()
        await until(lambda: [reason for _, reason in world.registry.closed] == ["drain"])


class SlowRegistry:
    """Registers when it is let, whoever waits for it."""

    def __init__(self, world: World) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended: list[str] = []
        self._register = world.registry.register
        world.registry.register = self.register  # type: ignore[method-assign]

    async def register(self, info: ClientInfo) -> Lease:
        self.asked.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append(info.client_id)
            raise
        return await self._register(info)


async def test_a_call_that_still_registers_ends_with_the_server(tmp_path: Path) -> None:
    async with running(tmp_path, users=3) as world:
        registry = SlowRegistry(world)
        waiting = world.sync()
        ends = asyncio.create_task(waiting.ends())
        await asyncio.wait_for(registry.asked.wait(), PATIENCE_S)
        world.drain.set()
        code, _ = await ends
        assert code is Code.UNAVAILABLE
        assert registry.ended == ["test"]


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr("laredo_fanout.serving.endpoints.grpc.STUCK_S", 0.2)


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


async def test_a_revoked_token_s_streams_end_and_the_others_go_on(
    tmp_path: Path, quick_checks: None
) -> None:
    path = tmp_path / "tokens"
    listener = with_tokens(path, "stays\nnarrowed\nrevoked\n")
    options = with_snapshots(tmp_path)
    async with running(tmp_path / "store", table=options, listener=listener) as world:
        world.writer.publish([line(n, WIDE) for n in range(2000)])
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        stays, narrowed, revoked = (
            world.sync(batch=True, client_id=token, metadata=bearer(token))
            for token in ("stays", "narrowed", "revoked")
        )
        for stream in (stays, narrowed, revoked):
            await stream.next("handshake")
        fetching = fetch(world, snapshot_id, bearer("revoked"))
        await fetching.call.read()
        path.write_text("stays\nnarrowed public.orders\n")
        code, details = await revoked.ends()
        assert code is Code.UNAUTHENTICATED and "tokens_file" in details
        assert (await narrowed.ends())[0] is Code.PERMISSION_DENIED
        assert (await fetching.ends())[0] is Code.UNAUTHENTICATED
        assert (await stays.snapshot())[2].rows == 2000
        assert [each.state.info.client_id for each in world.registry.leases] == ["stays"]
        assert {reason for _, reason in world.registry.closed} == {"refused"}


async def test_a_file_that_is_being_written_ends_nobody_and_an_empty_one_everybody(
    tmp_path: Path, quick_checks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokens"
    listener = with_tokens(path, "secret\n")
    async with running(tmp_path / "store", listener=listener, users=3) as world:
        looks: list[bool] = []
        look = Tokens.reread

        def looking(tokens: Tokens, now: float) -> bool:
            looks.append(look(tokens, now))
            return looks[-1]

        monkeypatch.setattr(Tokens, "reread", looking)
        stream = await world.greeted(batch=True, metadata=bearer("secret"))
        path.write_text("")
        await until(lambda: len(looks) > 5)
        path.unlink()
        await until(lambda: len(looks) > 10)
        assert not any(looks)
        assert (await stream.snapshot())[2].rows == 3
        await world.sync(metadata=bearer("secret")).next("handshake")
        monkeypatch.setattr(call, "UNUSABLE_S", 0.1)
        assert (await stream.ends())[0] is Code.UNAUTHENTICATED
        assert (await world.sync(metadata=bearer("secret")).ends())[0] is Code.UNAUTHENTICATED
        path.write_text("secret\n")
        await until(lambda: looks.count(True) == 2)
        await world.sync(metadata=bearer("secret")).next("handshake")


def test_a_token_is_named_without_being_shown_where_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("secret\n")
    assert Tokens(path).owner("Bearer secret") == ""
    path.write_text("secret\nother\n")
    owner = Tokens(path).owner("Bearer secret")
    assert owner.startswith("token ") and "secret" not in owner
    assert owner != Tokens(path).owner("Bearer other")
