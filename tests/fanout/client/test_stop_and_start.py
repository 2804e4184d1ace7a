"""Work in a client's threads when the client is stopped, or stopped and started again."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.client import AsyncFanoutClient, ClientStopped, FanoutClient, TableIndex
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.table.local_snapshot import LocalSnapshot, SnapshotFile
from laredo_fanout.client.table.replica import ReplicaPosition
from laredo_fanout.client.table.rows import Row
from laredo_model.line import Action
from laredo_model.position import Position
from laredo_service.files import Digest
from tests.fanout.client.kept_copy import Server, row
from tests.fanout.client.real_server import OTHER, TABLE, Source, key_of, line_of
from tests.support.processes import PATIENCE_S, until, wait_until
from tests.support.server.scripted_server import Hold, handshake, line, playing, snapshot

INSERT, UPDATE = Action.INSERT, Action.UPDATE


class Gate:
    """Whoever comes first waits at it until it is opened; later ones pass."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def pass_through(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.open.wait(PATIENCE_S)


async def test_a_snapshot_that_was_under_way_at_stop_changes_nothing() -> None:
    rows = {b"%d" % number: line(number, "old") for number in range(3)}
    begun = [handshake(), *snapshot(rows, "0/10", 5)[:2], Hold()]
    newer = [handshake(), *snapshot({b"7": line(7, "new")}, "0/20", 6), Hold()]
    async with playing(begun, newer) as (endpoint, _):
        client = AsyncFanoutClient(endpoint.server, "public.users", indexes={"n": ("name",)})
        await client.start()
        await until(lambda: client._replica._staged and len(client._replica._staged[0]) == 3)
        await client.stop()
        assert len(client) == 0  # stopped: what was under way never shows
        await client.start()
        await client.await_ready(PATIENCE_S)
        try:
            assert len(client) == 1
            assert await client.lookup_index("n", "new") == [{"id": 7, "name": "new"}]
            assert await client.lookup_index("n", "old") == []
        finally:
            await client.stop()


def snapshot_of(size: int, rows: int) -> LocalSnapshot:
    keys = [key_of("a", str(number)) for number in range(rows)]
    lines = [line_of("a", str(number), "t", size) for number in range(rows)]
    return LocalSnapshot(ReplicaPosition(Position(0x1000 + size)), (), keys, lines)


def test_two_saves_at_once_leave_one_of_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two clients of one file, in one process or in two."""
    gate = Gate()

    def gated_digest() -> Digest:
        gate.pass_through()
        return Digest()

    monkeypatch.setattr("laredo_fanout.client.table.local_snapshot.Digest", gated_digest)
    one, two = (SnapshotFile(tmp_path / "cache", TABLE, ()) for _ in range(2))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(one.save, snapshot_of(1, 3))
        assert gate.reached.wait(PATIENCE_S)
        second = threads.submit(two.save, snapshot_of(2, 4000))
        gate.open.set()
        first.result(PATIENCE_S)
        second.result(PATIENCE_S)
    assert one.load() in (snapshot_of(1, 3), snapshot_of(2, 4000))
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_stop_waits_for_the_save_by_the_timer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer rows are in the file at last, and nothing is written after stop() has returned."""
    gate = Gate()
    saved: list[int] = []
    real = SnapshotFile._write

    def gated_write(self: SnapshotFile, file: Any, snapshot: LocalSnapshot) -> None:
        gate.pass_through()
        real(self, file, snapshot)
        file.flush()
        saved.append(len(snapshot.keys))

    monkeypatch.setattr(SnapshotFile, "_write", gated_write)
    path = tmp_path / "cache"
    client = FanoutClient(server.address, TABLE, local_snapshot_path=path, save_interval=0.01)
    client.start()
    client.await_ready(PATIENCE_S)
    assert gate.reached.wait(PATIENCE_S)
    server.source.write([(INSERT, "n", "1", "t", 1)])
    wait_until(lambda: len(client) == 4, "its rows")
    stopping = threading.Thread(target=client.stop)
    stopping.start()
    wait_until(
        lambda: client.error is not None or not stopping.is_alive() or stopped_following(client),
        "it ends",
    )
    gate.open.set()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    assert saved == [3, 4]
    found = SnapshotFile(path, TABLE, ()).load()
    assert found is not None and len(found.keys) == 4


def test_a_client_that_ended_has_no_timer(server: Server, tmp_path: Path) -> None:
    """Started again, it has one: another one's saves could be of rows of two snapshots."""
    index = {"by_size": TableIndex(["size"], unique="error")}
    with server.client(indexes=index, local_snapshot_path=tmp_path / "cache") as client:
        server.source.write([(UPDATE, "a", "y", "acme", 1)])
        wait_until(lambda: client.error is not None, "it ends")
        assert client._follower is not None
        timer = client._follower._saving
        assert timer is not None
        wait_until(timer.done, "its timer ends")


async def test_a_listener_may_stop_an_asyncio_client(
    port: int, source: Source, tmp_path: Path
) -> None:
    """It is cancelled there, as any that awaits; all tables are stopped, saved, and start again."""
    client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, local_snapshot_path=tmp_path / "cache")

    async def stop(old: Row | None, new: Row | None) -> None:
        await client.stop()

    other = await client.follow(OTHER)
    await client.start()
    await client.await_ready(PATIENCE_S)
    await client.listen(stop)
    changes = client.changes()
    source.write([(INSERT, "n", "1", "t", 1)])
    async with asyncio.timeout(PATIENCE_S):
        assert [change.new async for change in changes] == [row("n", "1", "t", 1)]
    await until(lambda: isinstance(other.error, ClientStopped))
    await until((tmp_path / "cache").exists)
    with pytest.raises(ClientStopped):
        await client.await_ready(PATIENCE_S)
    await client.start()
    await client.await_ready(PATIENCE_S)
    await client.stop()


async def test_a_client_that_starts_while_it_is_saved(
    port: int, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save is of the rows of one position, and the newest rows are saved last."""
    gate, midway, go_on = Gate(), asyncio.Event(), asyncio.Event()
    saved: list[int] = []
    real_pause, real_write = LoopShare.pause_if_used, SnapshotFile._write

    async def gated_pause(self: LoopShare) -> None:
        if client.error is not None and not midway.is_set():
            midway.set()
            await go_on.wait()
        await real_pause(self)

    def gated_write(self: SnapshotFile, file: Any, snapshot: LocalSnapshot) -> None:
        gate.pass_through()
        real_write(self, file, snapshot)
        saved.append(len(snapshot.keys))

    monkeypatch.setattr(SnapshotFile, "_write", gated_write)
    client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, local_snapshot_path=tmp_path / "cache")
    await client.start()
    await client.await_ready(PATIENCE_S)
    monkeypatch.setattr(LoopShare, "pause_if_used", gated_pause)
    stopping = asyncio.create_task(client.stop())
    await midway.wait()
    source.write([(INSERT, "n", str(number), "t", number) for number in range(500)])
    await client.start()
    assert client._follower is not None
    locks = client._follower._locks
    await until(lambda: len(client) > 3 or locks.rows._waiters)
    go_on.set()
    await until(gate.reached.is_set)
    await client.await_ready(PATIENCE_S)
    again = asyncio.create_task(client.stop())
    await until(lambda: again.done() or locks.file._waiters)
    gate.open.set()
    await asyncio.gather(stopping, again)
    assert saved == [3, 503]


def stopped_following(client: FanoutClient) -> bool:
    follower = client._follower
    return follower is not None and getattr(follower, "_stopping", threading.Event()).is_set()


def test_listeners_hear_one_session_after_another(server: Server) -> None:
    """A call that is still going on when the client is started again comes before the next."""
    gate = Gate()
    heard: list[Row | None] = []
    at_once: list[int] = []
    client = FanoutClient(server.address, TABLE)
    turn = threading.Lock()

    def listener(old: Row | None, new: Row | None) -> None:
        if not turn.acquire(blocking=False):
            at_once.append(1)
            return
        try:
            gate.pass_through()
            heard.append(new)
        finally:
            turn.release()

    client.start()
    client.await_ready(PATIENCE_S)
    client.listen(listener)
    server.source.write(
        [(INSERT, "n", "1", "t", 1)], [(INSERT, "n", "2", "t", 2), (INSERT, "n", "3", "t", 3)]
    )
    assert gate.reached.wait(PATIENCE_S)
    wait_until(lambda: client.position == server.source.position, "up to date")
    client.stop()
    server.source.write([(INSERT, "n", "4", "t", 4)])
    client.start()
    wait_until(lambda: client.position == server.source.position, "up to date")
    gate.open.set()
    wait_until(lambda: row("n", "4", "t", 4) in heard, "heard")
    client.stop()
    assert not at_once
    assert [found["key"] for found in heard if found] == ["1", "4"]
