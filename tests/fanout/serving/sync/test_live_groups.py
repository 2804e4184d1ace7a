"""Live Connect clients that share one write are sent the same as clients that are served alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from google.protobuf import struct_pb2

from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.serving.session import live_group
from laredo_fanout.serving.session.live_group import LiveGroup
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from laredo_model.position import text
from tests.support import drawn
from tests.support.processes import PATIENCE_S, until
from tests.support.server.connect_client import ConnectClient, ConnectStream, connected
from tests.support.server.serving_world import World, line, rows

INSERT, UPDATE, DELETE, TRUNCATE = Action
BATCH, BOUNDARY = "batch/json.v1", "boundary.v1"
NAMED = wire.FieldPredicate(field="name", equals=struct_pb2.Value(string_value="a"))
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"batch": True},
    {"capabilities": [BATCH, BOUNDARY]},
    {"filters": [NAMED]},
    {"batch": True, "filters": [NAMED]},
)
EACH = 3


MADE: WeakSet[LiveGroup] = WeakSet()


@pytest.fixture(autouse=True)
def _remember_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = LiveGroup.__init__

    def remember(self: LiveGroup, *given: Any) -> None:
        begin(self, *given)
        MADE.add(self)

    monkeypatch.setattr(LiveGroup, "__init__", remember)


def groups() -> set[LiveGroup]:
    """The groups that have members now."""
    return {each for each in MADE if len(each)}


def members() -> int:
    """Number of clients in groups now."""
    return sum(map(len, groups()))


@asynccontextmanager
async def live(client: ConnectClient, **asked: Any) -> AsyncIterator[ConnectStream]:
    """A stream whose snapshot was read."""
    async with client.sync(**asked) as stream:
        await stream.next("handshake")
        while not isinstance(await stream.next(), wire.SnapshotEnd):
            pass
        yield stream


@asynccontextmanager
async def fleet(path: Path, **options: Any) -> AsyncIterator[tuple[World, list[ConnectStream]]]:
    """Clients of every kind, several of each, all of them in groups."""
    async with connected(path, **options) as (world, client), AsyncExitStack() as stack:
        world.writer.publish(rows(0, 5))
        streams = [
            await stack.enter_async_context(live(client, client_id=f"{kind}-{number}", **asked))
            for kind, asked in enumerate(KINDS)
            for number in range(EACH)
        ]
        await until(lambda: members() == len(streams))
        yield world, streams


async def to(stream: ConnectStream, sequence: int, position: int) -> list[Any]:
    """The changes of a stream, read until it was sent everything up to here."""
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            content = await stream.raw()
            assert content is not None, stream.end
            message = wire.SyncResponse.FromString(content)
            kind = message.WhichOneof("message")
            if kind == "heartbeat":
                beat = message.heartbeat
                if beat.current_sequence >= sequence and beat.source_position in (
                    "",
                    text(position),
                ):
                    return found
            else:
                found.append(message)


async def test_random_changes_reach_every_kind_as_they_reach_one_client_alone(
    tmp_path: Path,
) -> None:
    """The oracle is the same request by gRPC, which knows no groups."""
    draw = random.Random(1)
    table = ServingTableOptions(heartbeat_interval_s=0.05)
    async with fleet(tmp_path, table=table) as (world, streams):
        writer = world.writer
        alone = []
        for asked in KINDS:
            stream = await world.greeted(client_id="alone", **asked)
            while not isinstance(await stream.next(), wire.SnapshotEnd):
                pass
            alone.append(stream)
        for _ in range(100):
            changes = [
                (
                    UPDATE,
                    line(draw.randrange(5), draw.choice("ab"), "1.00", "x" * draw.choice((0, 9))),
                )
                for _ in range(draw.randrange(1, 4))
            ]
            writer.commit(*changes) if draw.random() < 0.7 else writer.advance()
            if draw.random() < 0.3:
                writer.verify()
            if draw.random() < 0.5:
                await asyncio.sleep(draw.random() / 100)
        end = writer.commit((UPDATE, line(1, "a")), (UPDATE, line(2, "a")))
        last = writer.sequence
        expected = [await _by_grpc(stream, last, end) for stream in alone]
        assert all(expected)
        for number, stream in enumerate(streams):
            assert await to(stream, last, end) == expected[number // EACH], number


async def _by_grpc(stream: Any, sequence: int, position: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await stream.call.read()
            if message.WhichOneof("message") != "heartbeat":
                found.append(message)
                continue
            beat = message.heartbeat
            if beat.current_sequence >= sequence and beat.source_position in ("", text(position)):
                return found


async def test_a_change_wakes_no_session_and_others_end_the_groups_until_they_were_sent(
    tmp_path: Path,
) -> None:
    # A heartbeat of its own wakes it.
    table = ServingTableOptions(heartbeat_interval_s=3600)
    async with fleet(tmp_path, table=table) as (world, streams):
        before = groups()
        for _ in range(10):
            world.writer.commit((UPDATE, line(1, "a")))
            for stream in streams:
                await stream.next()
            assert members() == len(streams)
        assert groups() == before and len(before) == len(KINDS)
        last = world.writer.sequence
        leases = world.registry.leases
        await until(lambda: all(lease.state.sequence == last for lease in leases))
        assert {lease.state.state for lease in leases} == {"live"}
        await _a_large_record_is_sent_one_by_one(world, streams)
        # A table that was copied again.
        world.writer.publish(rows(0, 2))
        for stream in streams:
            await stream.next("schema_change")
            while not isinstance(await stream.next(), wire.SnapshotEnd):
                pass
        await until(lambda: members() == len(streams))
        world.drain.set()
        for stream in streams:
            await stream.next("go_away")
        assert members() == 0
        for stream in streams:
            assert (await stream.ends())["code"] == "unavailable"


async def _a_large_record_is_sent_one_by_one(world: World, streams: list[ConnectStream]) -> None:
    wide = "x" * (live_group.MOST_BYTES + 1)
    world.writer.commit((UPDATE, line(1, "a", tags=wide)))
    first = [await stream.next() for stream in streams]
    await until(lambda: members() == len(streams))
    world.writer.commit((UPDATE, line(1, "a")))
    second = [await stream.next() for stream in streams]
    for large, small in zip(first[:EACH], second[:EACH], strict=True):
        assert small.sequence == large.sequence + 1


async def test_a_client_that_takes_nothing_is_left_alone_and_loses_nothing(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (world, streams):
        slow, *others = streams[:EACH]
        wide = "x" * 60_000
        count = 0
        while members() == len(streams):
            world.writer.commit((UPDATE, line(1, "a", tags=wide)))
            count += 1
            for stream in (*others, *streams[EACH:]):
                await stream.next()
        assert count > 2
        for _ in range(3):
            world.writer.commit((UPDATE, line(1, "a")))
        entries = [await slow.next("journal_entry") for _ in range(count + 3)]
        sequences = [entry.sequence for entry in entries]
        assert sequences == list(range(sequences[0], sequences[0] + count + 3))
        await until(lambda: members() == len(streams))


@pytest.mark.parametrize("most", drawn.first(1, [2, 1]))
async def test_a_full_group_is_followed_by_another(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_group, "MOST_MEMBERS", most)
    async with fleet(tmp_path) as (world, streams):
        world.writer.commit((UPDATE, line(1, "a")))
        for stream in streams:
            await stream.next()
        assert members() == len(streams)


async def test_the_verified_position_reaches_every_member_that_asked(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (world, streams):
        writer = world.writer
        for _ in range(5):
            end = writer.commit((UPDATE, line(1, "a")))
            for stream in streams:
                await stream.next()
            writer.verify(end)
            for stream in streams[2 * EACH : 3 * EACH]:
                while (await stream.next("heartbeat")).boundary_position != text(end):
                    pass


async def test_a_suspect_range_is_sent_to_members_as_to_one_client_alone(tmp_path: Path) -> None:
    """A client that was sent suspect rows as ordinary changes is refused after the repair."""
    async with fleet(tmp_path) as (world, streams):
        writer = world.writer
        writer.suspect(writer.position)
        writer.commit((UPDATE, line(1, "a")))
        for stream in streams:
            await stream.next()
        assert members() == 0
        writer.repair(rows(0, 5))
        asked_for_it = range(2 * EACH, 3 * EACH)
        for number, stream in enumerate(streams):
            if number in asked_for_it:
                assert "were repaired at" in (await stream.ends())["message"]
            elif number < asked_for_it.start:
                await stream.next()
