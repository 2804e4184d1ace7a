"""Archives that are away, slow or damaged, and what happens meanwhile: nobody is left behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from laredo_archive.errors import DestinationDenied
from laredo_archive.storage.local import LocalDestination
from laredo_fanout.serving import archives, shared
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.replay import Outcome
from laredo_fanout.serving.session import replay
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position as position_
from tests.support.processes import PATIENCE_S, until
from tests.support.server.archived import Archived
from tests.support.server.replay_reader import FULL, REPLAY, Reader, archived, read
from tests.support.server.serving_world import COLUMNS, Stream, World, line


class Gated(LocalDestination):
    """A directory whose objects can be held back, and whose manifest can be denied."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.denied = False
        self.opened: list[str] = []
        self.looks = 0

    def get(self, key: str):  # type: ignore[no-untyped-def]
        self.looks += 1
        if self.denied:
            raise DestinationDenied(self.uri_of(key), "you may not read this")
        return super().get(key)

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        self.opened.append(key)
        assert self.gate.wait(PATIENCE_S)
        return super().open(key, offset)


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gated:
    (tmp_path / "archive").mkdir()
    found = Gated(tmp_path / "archive")
    monkeypatch.setattr(archives, "destination_of", lambda _: found)
    return found


def windows(table: Archived, count: int, rows: int = 3, name: str = "w") -> int:
    """Commit ``count`` windows, then begin the journal after them; return the windows' start."""
    table.copied(range(5))
    start = table.position
    for number in range(count):
        table.commit(*[(100 * number + row, f"{name} {number}") for row in range(1, rows + 1)])
        table.cut()
    table.commit((1, "journal"))
    table.prune()
    return start


def diffs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "archive" / "users").glob("epoch=*/diff-*"))


async def test_an_archive_that_may_not_be_read(tmp_path: Path, gated: Gated) -> None:
    async with archived(tmp_path) as (world, table):
        start = windows(table, 2)
        gated.denied = True
        for _ in range(3):
            found = await read(world, table, start)
            assert (found.mode, found.state) == (FULL, table.state)
        assert table.outcomes == [Outcome.UNREADABLE] * 3
        assert gated.looks == 1, "it isn't asked again at once"


async def test_clients_that_come_together_are_answered_by_one_look(
    tmp_path: Path, gated: Gated
) -> None:
    async with archived(tmp_path) as (world, table):
        start = windows(table, 2)
        found = await asyncio.gather(*[read(world, table, start) for _ in range(10)])
        assert {reader.mode for reader in found} == {REPLAY}
        assert all(reader.state == table.state for reader in found)
        assert gated.looks <= 2


async def test_a_manifest_is_read_while_all_threads_read_diffs(
    tmp_path: Path, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FRESH_S", 0.0)
    async with archived(tmp_path) as (world, table):
        start = windows(table, 2)
        gated.gate.clear()
        many = [
            asyncio.create_task(read(world, table, start)) for _ in range(shared.REPLAY_THREADS)
        ]
        await until(lambda: len(gated.opened) == len(many))
        looks = gated.looks
        another = asyncio.create_task(read(world, table, start))
        await until(lambda: gated.looks > looks)
        gated.gate.set()
        found = await asyncio.gather(*many, another)
        assert {reader.mode for reader in found} == {REPLAY}


async def test_an_archive_that_does_not_answer(
    tmp_path: Path, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MANIFEST_WAIT_S", 0.1)
    release = threading.Event()
    get = gated.get
    monkeypatch.setattr(gated, "get", lambda key: (release.wait(PATIENCE_S), get(key))[1])
    try:
        async with archived(tmp_path) as (world, table):
            start = windows(table, 2)
            found = await read(world, table, start)
            assert (found.mode, found.state) == (FULL, table.state)
            release.set()
    finally:
        release.set()


@pytest.mark.parametrize(
    ("was", "put", "outcome"),
    [
        ("{", "[", Outcome.UNREADABLE),
        ("public.users", "public.losers", Outcome.UNCOVERED),
    ],
    ids=["damaged", "another's"],
)
async def test_a_manifest_that_is_damaged_or_another_table_s(
    tmp_path: Path, was: str, put: str, outcome: Outcome
) -> None:
    async with archived(tmp_path) as (world, table):
        start = windows(table, 2)
        manifest = tmp_path / "archive" / "users" / "manifest.json"
        manifest.write_text(manifest.read_text().replace(was, put))
        found = await read(world, table, start)
        assert (found.mode, found.state) == (FULL, table.state)
        assert table.outcomes == [outcome]


@pytest.mark.parametrize("how", ["missing", "damaged", "short"])
async def test_an_object_that_is_broken_in_the_middle(tmp_path: Path, how: str) -> None:
    """Nothing of it is sent; the same stream brings a snapshot, the next client one at once."""
    async with archived(tmp_path) as (world, table):
        start = windows(table, 3, name="whole")
        victim = diffs(tmp_path)[1]
        data = victim.read_bytes()
        victim.unlink()
        if how == "damaged":
            victim.write_bytes(data.replace(b"whole 1", b"wrong 1", 1))
        elif how == "short":
            victim.write_bytes(data[: data.index(b"\n") + 1])
        found = await read(world, table, start)
        assert (found.mode, found.state) == (REPLAY, table.state)
        first = table.moments[1].position
        assert found.positions == [first], "only the first window came"
        assert len(found.changes) == 3
        assert not any(b"wrong" in row for _, _, row, _ in found.changes)
        assert table.outcomes == [Outcome.BROKEN]
        assert (await read(world, table, start)).mode == FULL
        assert table.outcomes == [Outcome.BROKEN, Outcome.UNREADABLE]


async def test_heartbeats_while_the_archive_keeps_us_waiting(
    tmp_path: Path, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "CHECK_EVERY_S", 0.05)
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, stall_timeout_s=0.3)
    async with archived(tmp_path, listener=listener) as (world, table):
        start = windows(table, 2)
        gated.gate.clear()
        reader = Reader(world, table.state_at(start), start)
        stream = reader._stream
        greeting = await stream.next("handshake")
        assert greeting.mode == REPLAY
        for _ in range(8):
            beat = await stream.next("heartbeat")
            # This stream's cursor, not the server's position: nothing was sent yet.
            assert position_.parse(beat.source_position) == start
            assert beat.current_sequence == greeting.resume_from_sequence - 1
        assert gated.opened, "it was being read all the time"
        gated.gate.set()
        while reader.position < table.position:
            reader.take(await stream.next_of_any())
        assert reader.state == table.state


async def test_a_slow_archive_is_not_held_against_the_client(
    tmp_path: Path, gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No heartbeat, which would count as progress, comes meanwhile."""
    monkeypatch.setattr(replay, "CHECK_EVERY_S", 0.05)
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, stall_timeout_s=0.2)
    async with archived(tmp_path, listener=listener, heartbeat_interval_s=60) as (world, table):
        start = windows(table, 2)
        gated.gate.clear()
        reader = Reader(world, table.state_at(start), start)
        reading = asyncio.create_task(reader.level())
        await until(lambda: bool(gated.opened))
        await asyncio.sleep(1)  # several times the stall guard's patience
        gated.gate.set()
        assert await reading == REPLAY
        assert reader.state == table.state


async def test_a_client_that_takes_nothing_is_let_go(tmp_path: Path) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, stall_timeout_s=0.3)
    async with archived(tmp_path, listener=listener) as (world, table):
        # More than sockets and HTTP/2 windows take without anybody reading.
        start = windows(table, 1, rows=400, name="x" * 100_000)
        stream = _stream(world, start)
        await stream.next("handshake")
        await until(lambda: not world.registry.leases)
        assert world.registry.closed == [("test", "stalled")]
        assert table.outcomes == [Outcome.LEFT]


def _stream(world: World, position: int) -> Stream:
    return world.sync(
        batch=True,
        last_known_source_position=position_.text(position),
        history="7300000000000000001:1:16384",
    )


async def test_a_pin_that_did_not_last(tmp_path: Path, gated: Gated) -> None:
    """The journal forgot what comes after the archive: a snapshot follows in the same stream."""
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, pin_limit_s=0.1)
    async with archived(tmp_path, listener=listener) as (world, table):
        start = windows(table, 2)
        gated.gate.clear()
        reader = Reader(world, table.state_at(start), start)
        reading = asyncio.create_task(reader.level())
        await until(lambda: ("test", None) in world.registry.pins)
        for number in range(3):
            table.commit((number + 1, "later"))
        table.prune()
        gated.gate.set()
        assert await reading == REPLAY
        assert reader.state == table.state


async def test_a_slow_client_holds_little(tmp_path: Path) -> None:
    """A window of many megabytes for a client that doesn't read: one piece at a time."""
    async with archived(tmp_path) as (world, table):
        start = windows(table, 1, rows=300, name="x" * 100_000)
        stream = _stream(world, start)
        await stream.next("handshake")
        lease = world.registry.leases[0]
        await until(lambda: lease.state.state == "replaying")
        for _ in range(20):
            table.commit((1, "live"))
            await asyncio.sleep(0.01)
        assert lease.state.state == "replaying"
        reader = Reader(world, table.state_at(start), start)
        assert await reader.level() == REPLAY, "the others don't wait for it"
        stream.cancel()


async def test_a_large_window_without_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "DISK_RESERVE", 1 << 60)
    async with archived(tmp_path) as (world, table):
        start = windows(table, 1, rows=400, name="y" * 7000)
        found = await read(world, table, start)
        assert (found.mode, found.state) == (REPLAY, table.state)
        assert table.outcomes == [Outcome.BROKEN] and not found.sequences


async def test_large_windows_come_in_pieces(tmp_path: Path) -> None:
    spool = tmp_path / "made" / "when needed"
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, spool_path=spool)
    async with archived(tmp_path, listener=listener) as (world, table):
        start = windows(table, 1, rows=400, name="y" * 7000)
        stream = _stream(world, start)
        await stream.next("handshake")
        sizes, opens, keys = [], [], set()
        while not opens or opens[-1]:
            batch = await stream.next("change_batch")
            sizes.append(len(batch.actions))
            opens.append(batch.open)
            keys |= set(batch.keys)
            assert batch.ByteSize() < 1_200_000
            assert list(batch.positions) == [table.moments[1].position]
        assert len(sizes) > 2 and sum(sizes) == len(keys) == 400
        stream.cancel()
    assert not list(spool.iterdir())


async def test_lost_in_the_middle_of_a_window(tmp_path: Path) -> None:
    """The client keeps its part of the window; the window comes again, and the rows are right."""
    async with archived(tmp_path) as (world, table):
        start = windows(table, 1, rows=400, name="y" * 7000)
        first = Reader(world, table.state_at(start), start)
        await first._stream.next("handshake")
        first.take(await first._stream.next("change_batch"))
        first._stream.cancel()
        assert first.position == start
        again = Reader(world, first.state, start)
        assert await again.level() == REPLAY
        assert again.state == table.state


async def test_a_re_base_and_retention_meanwhile(tmp_path: Path, gated: Gated) -> None:
    async with archived(tmp_path) as (world, table):
        start = windows(table, 3)
        gated.gate.clear()
        reader = Reader(world, table.state_at(start), start)
        reading = asyncio.create_task(reader.level())
        await until(lambda: bool(gated.opened))
        table.rebase()
        table.commit((2, "of the new epoch"))
        table.cut()
        gated.gate.set()
        assert await reading == REPLAY
        assert reader.state == table.state


async def test_a_schema_change_meanwhile(tmp_path: Path, gated: Gated) -> None:
    async with archived(tmp_path) as (world, table):
        start = windows(table, 2)
        gated.gate.clear()
        stream = _stream(world, start)
        await stream.next("handshake")
        world.writer.publish([line(1, "copied anew")], columns=COLUMNS[:3])
        gated.gate.set()
        while not isinstance(message := await stream.next(), wire.SchemaChangeNotification):
            assert isinstance(message, wire.ChangeBatch)
        _, lines, _ = await stream.snapshot()
        assert lines == [line(1, "copied anew")]
        await until(lambda: table.outcomes == [Outcome.LEFT])


async def test_a_drain_meanwhile_is_said_between_two_windows(tmp_path: Path, gated: Gated) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=5)
    async with archived(tmp_path, listener=listener) as (world, table):
        start = windows(table, 3)
        gated.gate.clear()
        stream = _stream(world, start)
        await stream.next("handshake")
        world.drain.set()
        gated.gate.set()
        kinds = set()
        while "GoAway" not in kinds:
            kinds.add(type(await stream.next_of_any()).__name__)
        stream.cancel()


async def test_who_leaves_lets_everything_go(tmp_path: Path, gated: Gated) -> None:
    async with archived(tmp_path) as (world, table):
        start = windows(table, 2)
        gated.gate.clear()
        stream = _stream(world, start)
        await stream.next("handshake")
        await until(lambda: bool(gated.opened))
        stream.cancel()
        await until(lambda: table.outcomes == [Outcome.LEFT])
        gated.gate.set()
        await until(lambda: not world.registry.leases)
        assert world.registry.pins[-1] == ("test", None)


async def test_a_thread_that_the_system_refuses_means_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if thread.name.startswith("replay"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    async with archived(tmp_path) as (world, table):
        found = await read(world, table, windows(table, 2))
        assert found.state == table.state
