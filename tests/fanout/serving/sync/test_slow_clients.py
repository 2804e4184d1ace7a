"""Clients that don't read: what they cost the others (nothing), and what becomes of them."""

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

from laredo_fanout.serving import snapshot_rows
from laredo_fanout.serving.errors import NoRoomToSpool
from laredo_fanout.serving.options import BufferPolicy, ListenerOptions, ServingTableOptions
from laredo_fanout.store.errors import Damage, SpoolFailed
from laredo_fanout.store.reader import Snapshot
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from tests.support.processes import PATIENCE_S, until
from tests.support.server import rot
from tests.support.server.serving_world import Stream, World, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action

DROP = ServingTableOptions(buffer_max_size=10, buffer_policy=BufferPolicy.DROP_DISCONNECT)
SLOW_DOWN = ServingTableOptions(buffer_max_size=10, buffer_policy=BufferPolicy.SLOW_DOWN)
WIDE = "w" * 200_000


async def live_client(world: World, client_id: str) -> Stream:
    stream = await world.greeted(batch=True, client_id=client_id)
    await stream.snapshot()
    leases = world.registry.leases
    await until(
        lambda: any(
            lease.state.info.client_id == client_id and lease.state.state == "live"
            for lease in leases
        )
    )
    return stream


def depth_of(world: World, client_id: str) -> int:
    return max(
        (lease.state.depth for lease in world.registry.leases
         if lease.state.info.client_id == client_id),
        default=0,
    )  # fmt: skip


@pytest.fixture
def every_client_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot is put aside, whatever room there is."""
    monkeypatch.setattr(snapshot_rows, "SLOW_AFTER_S", 0.2)
    monkeypatch.setattr(snapshot_rows, "SLOW_BYTES_PER_S", 1 << 60)
    monkeypatch.setattr(snapshot_rows, "DISK_RESERVE", 0)


async def flood(world: World, transactions: int) -> None:
    """Wide transactions, one durable step each, until a client that doesn't read is stuck."""
    for number in range(transactions):
        world.writer.commit((UPDATE, line(1, WIDE + str(number))))
        await asyncio.sleep(0.005)


async def test_drop_disconnect_ends_the_slow_client_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.serving.endpoints.grpc.STUCK_S", 1.0)
    async with running(tmp_path, table=DROP, users=3) as world:
        slow = await live_client(world, "slow")
        quick = await live_client(world, "quick")
        for number in range(100):
            world.writer.commit((UPDATE, line(1, WIDE + str(number))))
            assert len((await quick.next("change_batch")).actions) == 1
        await until(lambda: bool(world.registry.closed) or bool(slow.call.done()))
        code, details = await slow.ends()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "client_buffer.max_size (10)" in details and "'slow'" in details
        assert world.registry.closed == [("slow", "buffer")]


async def test_damage_behind_a_slow_client_ends_it_alone(tmp_path: Path) -> None:
    found: list[Damage] = []
    limit = ServingTableOptions(buffer_max_size=60, buffer_policy=BufferPolicy.DROP_DISCONNECT)
    async with running(tmp_path, table=limit, users=3, report_damage=found.append) as world:
        slow = await live_client(world, "slow")
        number = 0
        while depth_of(world, "slow") < 20:
            world.writer.commit((UPDATE, line(1, WIDE + str(number := number + 1))))
            await asyncio.sleep(0.005)
        rot.flip(tmp_path, f'{WIDE}{number - 3}"'.encode(), at=5)  # not the row
        await flood(world, 100)
        code, details = await slow.ends()
        assert code is grpc.StatusCode.UNAVAILABLE and "damaged on disk" in details
        assert found and found[0].table_id == world.writer.ids["public.users"]
        await live_client(world, "another")


async def test_one_large_transaction_counts_once(tmp_path: Path) -> None:
    async with running(tmp_path, table=DROP, users=3) as world:
        slow = await live_client(world, "slow")
        for _ in range(3):
            world.writer.commit(*[(INSERT, line(n, WIDE)) for n in range(10, 110)])
            await asyncio.sleep(0.01)
        assert depth_of(world, "slow") > 100
        seen = 0
        while seen < 300:
            seen += len((await slow.next("change_batch")).actions)
        assert not world.registry.closed


async def test_what_comes_in_one_step_is_not_held_against_a_client(tmp_path: Path) -> None:
    async with running(tmp_path, table=DROP, users=3) as world:
        client = await live_client(world, "client")
        world.writer.commit_all([[(UPDATE, line(1, str(n)))] for n in range(1000)])
        assert len((await client.next("change_batch")).actions) == 1000
        assert not world.registry.closed


async def test_slow_down_lets_the_client_go_on_at_its_own_pace(tmp_path: Path) -> None:
    async with running(tmp_path, table=SLOW_DOWN, users=3) as world:
        slow = await live_client(world, "slow")
        await flood(world, 100)
        assert depth_of(world, "slow") > 10
        names = []
        while len(names) < 100:
            batch = await slow.next("change_batch")
            names += list(batch.lines)
        assert names == [line(1, WIDE + str(number)) for number in range(100)]


async def test_slow_down_sends_a_new_snapshot_once_the_journal_is_gone(tmp_path: Path) -> None:
    async with running(tmp_path, table=SLOW_DOWN, users=3) as world:
        slow = await live_client(world, "slow")
        await flood(world, 100)
        world.writer.prune(keep=1)
        sequence = 0
        while not isinstance(message := await slow.next(), wire.SnapshotBegin):
            sequence = message.first_sequence + len(message.actions) - 1
        assert message.sequence > sequence + 1
        lines = []
        while not isinstance(message := await slow.next(), wire.SnapshotEnd):
            lines += list(message.lines)
        assert line(1, WIDE + "99") in lines and message.rows == 3
        world.writer.commit((DELETE, b"2"))
        batch = await slow.next("change_batch")
        assert batch.first_sequence == message.sequence + 1


async def test_the_journal_is_pinned_from_snapshot_to_live(tmp_path: Path) -> None:
    async with running(tmp_path, users=3) as world:
        sequence = world.writer.store.tables[1].sequence
        await live_client(world, "new")
        assert world.registry.pins == [("new", sequence), ("new", None)]


async def test_a_pin_does_not_last_for_ever(tmp_path: Path) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, pin_limit_s=0.2)
    async with running(tmp_path, listener=listener) as world:
        world.writer.publish([line(n, "x" * 20_000) for n in range(2_000)])
        stream = await world.greeted(batch=True, client_id="slow")
        await until(lambda: ("slow", None) in world.registry.pins)
        # It isn't live yet: the journal goes on without it, and it gets another snapshot.
        for number in range(3):
            world.writer.commit((UPDATE, line(1, str(number))))
        world.writer.prune(keep=1)
        _, first, _ = await stream.snapshot()
        assert line(1, "2") not in first
        _, second, _ = await stream.snapshot()
        assert line(1, "2") in second


@pytest.mark.usefixtures("every_client_is_slow")
async def test_a_slow_snapshot_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Snapshot] = []
    reader_snapshot = Snapshot.__init__

    def remember(self: Snapshot, *arguments: object) -> None:
        opened.append(self)
        reader_snapshot(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Snapshot, "__init__", remember)
    async with running(tmp_path) as world:
        given = [line(n, "x" * 20_000) for n in range(2_000)]
        world.writer.publish(given)
        stream = await world.greeted(batch=True)
        begin = await stream.next("snapshot_begin")
        lines = list((await stream.next("snapshot_batch")).lines)
        await until(lambda: opened[0]._transaction is None)
        # What is written meanwhile isn't in the snapshot, and comes after it.
        world.writer.commit((UPDATE, line(1, "later")))
        while not isinstance(message := await stream.next(), wire.SnapshotEnd):
            lines += list(message.lines)
        assert sorted(lines) == sorted(given)
        assert message.rows == begin.row_count
        assert list((await stream.next("change_batch")).lines) == [line(1, "later")]


@pytest.mark.usefixtures("every_client_is_slow")
@pytest.mark.parametrize("directory_lost", [False, True])
async def test_a_slow_snapshot_without_room_ends_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory_lost: bool
) -> None:
    spool = tmp_path / "spool"
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, spool_path=spool)
    async with running(tmp_path / "store", listener=listener) as world:
        if directory_lost:
            spool.rmdir()
        else:
            monkeypatch.setattr(snapshot_rows, "DISK_RESERVE", 1 << 60)
        world.writer.publish([line(n, "x" * 20_000) for n in range(2_000)])
        stream = await world.greeted(batch=True)
        await asyncio.sleep(0.6)
        code, details = await stream.ends()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "spooled" in details and str(tmp_path) in details


@pytest.mark.usefixtures("every_client_is_slow")
async def test_leaving_while_the_snapshot_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_rows, "SLOW_AFTER_S", 0.1)
    async with running(tmp_path) as world:
        world.writer.publish([line(n, "x" * 20_000) for n in range(2_000)])
        for wait in (0.1, 0.105, 0.11, 0.2):
            stream = await world.greeted(batch=True, client_id=str(wait))
            await asyncio.sleep(wait)
            stream.cancel()
            await until(lambda: not world.registry.leases)
        assert {reason for _, reason in world.registry.closed} == {"client"}


@pytest.mark.usefixtures("every_client_is_slow")
async def test_a_client_that_waits_for_the_spool_is_not_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    spill = Snapshot.spill

    def spilling(self: Snapshot) -> None:
        begun.set()
        assert goes_on.wait(PATIENCE_S)
        spill(self)

    monkeypatch.setattr(Snapshot, "spill", spilling)
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, stall_timeout_s=1.0)
    async with running(tmp_path, listener=listener) as world:
        given = [line(n, "x" * 20_000) for n in range(2_000)]
        world.writer.publish(given)
        stream = await world.greeted(batch=True)
        await until(begun.is_set)
        reading = asyncio.create_task(stream.snapshot())
        # The client has read all that was sent, for longer than it may take nothing.
        await asyncio.sleep(3.0)
        assert not reading.done()
        goes_on.set()
        _, lines, _ = await reading
        assert sorted(lines) == sorted(given)


async def test_a_client_that_takes_nothing_of_its_snapshot_is_let_go(tmp_path: Path) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, stall_timeout_s=0.3)
    async with running(tmp_path, listener=listener) as world:
        world.writer.publish([line(n, "x" * 20_000) for n in range(2_000)])
        stream = await world.greeted(batch=True)
        await until(lambda: world.registry.leases == [] or stream.call.done())
        code, details = await stream.ends()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "took no message" in details


async def test_wide_rows_do_not_make_wide_messages(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        given = [line(n, "x" * (400_000 if n % 50 == 0 else 10)) for n in range(300)]
        world.writer.publish(given)
        stream = await world.greeted(batch=True)
        await stream.next("snapshot_begin")
        lines: list[bytes] = []
        while not isinstance(message := await stream.next(), wire.SnapshotEnd):
            assert message.ByteSize() < 1_500_000
            lines += list(message.lines)
        assert sorted(lines) == sorted(given)


def spooled(directory: Path) -> list[int]:
    """The sizes of the files without a name that this process has open there."""
    sizes = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            where = str(descriptor.readlink())
            if where.startswith(str(directory)) and where.endswith("(deleted)"):
                sizes.append(descriptor.stat().st_size)
        except FileNotFoundError:
            continue  # the listing's own
    return sizes


@pytest.mark.usefixtures("every_client_is_slow")
async def test_clients_that_never_read_share_one_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spools: list[snapshot_rows.SpoolDirectory] = []
    made = snapshot_rows.SpoolDirectory.__init__

    def making(self: snapshot_rows.SpoolDirectory, *given: object) -> None:
        made(self, *given)  # type: ignore[arg-type]
        spools.append(self)

    monkeypatch.setattr(snapshot_rows.SpoolDirectory, "__init__", making)
    put_aside: list[Snapshot] = []
    spill = Snapshot.spill

    def spilling(self: Snapshot) -> None:
        spill(self)
        put_aside.append(self)

    monkeypatch.setattr(Snapshot, "spill", spilling)
    async with running(tmp_path) as world:
        given = [line(n, "x" * 20_000) for n in range(1_000)]
        world.writer.publish(given)
        streams = [world.sync(batch=True, client_id=str(number)) for number in range(6)]
        for stream in streams:
            await stream.next("handshake")
        await until(lambda: len(put_aside) == 6)
        size = sum(map(len, given))
        assert size * 0.5 < sum(spooled(tmp_path)) < size * 1.1
        assert spools[0].spools.bytes == sum(spooled(tmp_path))
        _, lines, _ = await streams[0].snapshot()
        assert sorted(lines) == sorted(given)
        for stream in streams:
            stream.cancel()
        await until(lambda: not world.registry.leases)
        await until(lambda: spooled(tmp_path) == [])
        assert spools[0].spools.bytes == 0


@pytest.mark.usefixtures("every_client_is_slow")
async def test_a_full_spool_ends_the_slow_client_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, spool_max_bytes=1 << 20)
    failures: list[SpoolFailed] = []
    spill = Snapshot.spill

    def spilling(self: Snapshot) -> None:
        try:
            spill(self)
        except SpoolFailed as failed:
            failures.append(failed)
            raise

    monkeypatch.setattr(Snapshot, "spill", spilling)
    async with running(tmp_path, listener=listener) as world:
        world.writer.publish([line(n, "x" * 20_000) for n in range(1_000)])
        slow = await world.greeted(batch=True, client_id="slow")
        await until(lambda: failures)
        # Whoever doesn't read hears of it when it reads again.
        code, details = await slow.ends()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and "spool_max_size" in details
        assert spooled(tmp_path) == []


async def test_who_waits_for_rows_while_they_are_spooled_hears_why_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_rows, "DISK_RESERVE", 0)
    waits = threading.Event()

    def spill(self: Snapshot) -> None:
        assert waits.wait(PATIENCE_S)
        raise SpoolFailed(str(tmp_path), "no room")

    monkeypatch.setattr(Snapshot, "spill", spill)
    async with running(tmp_path) as world:
        table = world.writer.publish(rows(0, 10))
        directory = snapshot_rows.SpoolDirectory(tmp_path / "spool", 1 << 20)
        reader = world.writer.store.reader()
        async with snapshot_rows.SnapshotRowStream(reader, table, directory) as found:
            spilling = asyncio.create_task(found._spill())
            await until(lambda: found._writing)
            reading = asyncio.create_task(found.next())
            await asyncio.sleep(0)
            waits.set()
            with pytest.raises(NoRoomToSpool, match="no room"):
                await reading
            await spilling
