"""Base clients that keep rows as the original's do: lost anywhere, they end with the right rows.

None may be sent a change that it says it has, nor a DELETE of a row that it can't have any more.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from laredo_model.position import text
from tests.support.drawn import seeds
from tests.support.server.base_follower import BaseFollower
from tests.support.server.connect_client import connected
from tests.support.server.serving_world import USERS, World, Writer, line, running

INSERT, UPDATE, DELETE, TRUNCATE = Action
FULL, DELTA = wire.SYNC_MODE_FULL_SNAPSHOT, wire.SYNC_MODE_DELTA

RED = [wire.FieldPredicate(field="name", prefix="red")]
NAMES = ("red 1", "red 2", "blue 1", "blue 2")
KEYS = 6

Open = Callable[..., AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def by_grpc(path: Path) -> AsyncIterator[tuple[World, Open]]:
    async with running(path) as world:

        @asynccontextmanager
        async def sync(**asked: Any) -> AsyncIterator[Any]:
            stream = world.sync(**asked)
            try:
                yield stream
            finally:
                stream.cancel()

        yield world, sync


@asynccontextmanager
async def by_connect(path: Path) -> AsyncIterator[tuple[World, Open]]:
    async with connected(path) as (world, client):
        yield world, client.sync


class Truth:
    """Expected rows of the table, and random transactions on it."""

    def __init__(self, chance: random.Random) -> None:
        self.names: dict[int, str] = {}
        self._chance = chance

    def transaction(self) -> list[tuple[Action, bytes]]:
        chance, changes = self._chance, []
        for _ in range(chance.choice((1, 2, 9))):
            number = chance.randrange(KEYS)
            if chance.random() < 0.02:
                self.names.clear()
                changes.append((TRUNCATE, b""))
            elif number in self.names and chance.random() < 0.5:
                del self.names[number]
                changes.append((DELETE, b"%d" % number))
            else:
                known = number in self.names
                self.names[number] = name = chance.choice(NAMES)
                changes.append((UPDATE if known else INSERT, line(number, name)))
        return changes

    def write(self, writer: Writer) -> None:
        writer.commit_all([self.transaction() for _ in range(self._chance.randint(0, 3))])

    def seen(self, *, filtered: bool) -> dict[int, str]:
        return {
            number: name
            for number, name in self.names.items()
            if not filtered or name.startswith("red")
        }


def take_up(writer: Writer) -> None:
    """Go on in a store that was there before."""
    writer.position, writer.time_us = writer.store.reader().position()
    writer.ids = {USERS: 1}


CLIENTS = [
    (by_grpc, "both", False),
    (by_connect, "position", True),
    (by_grpc, "sequence", True),
    (by_connect, "both", False),
    (by_grpc, "position", False),
    (by_connect, "sequence", False),
    (by_grpc, "both", True),
    (by_connect, "both", True),
    (by_grpc, "position", True),
    (by_connect, "position", False),
    (by_grpc, "sequence", False),
    (by_connect, "sequence", True),
]
"""The protocol, what a client says that it has, and whether it asks for some rows only."""


@seeds(3, 36)
async def test_whoever_is_lost_anywhere_ends_with_the_rows_there_are(
    tmp_path: Path, seed: int
) -> None:
    serving, way, filtered = CLIENTS[(seed - 1) % len(CLIENTS)]
    chance = random.Random(seed)
    truth, client = Truth(chance), BaseFollower()
    filters = {"filters": RED} if filtered else {}
    for session in range(4):
        # Each time by a server that was started anew.
        async with serving(tmp_path) as (world, sync):
            writer = world.writer
            if session:
                take_up(writer)
            else:
                writer.publish()
            for _ in range(12):
                truth.write(writer)
                if chance.random() < 0.05:
                    writer.prune(keep=1)
                stop_after = chance.randint(1, 8) if chance.random() < 0.8 else None
                async with sync(**client.request(way), **filters) as stream:
                    whole = await client.follow(stream, writer.sequence, stop_after)
                if whole:
                    assert client.names == truth.seen(filtered=filtered)
                assert not client.misread
                if way != "position":
                    assert client.taken == sorted(set(client.taken)), "an entry came again"
                    if not filtered and client.taken:
                        first_, last = client.taken[0], client.taken[-1]
                        assert client.taken == list(range(first_, last + 1)), "an entry is missing"
    assert client.modes.count(DELTA) > 10


async def test_a_delete_that_may_come_again_follows_its_row(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        writer = world.writer
        writer.commit((DELETE, b"0"))
        position = writer.commit((DELETE, b"1"), (UPDATE, line(2, "x")), (DELETE, b"2"))
        writer.commit((DELETE, b"3"))
        last = writer.sequence
        stream = world.sync(last_known_source_position=text(position))
        assert (await stream.next("handshake")).resume_from_sequence == last - 3
        found = [await stream.next("journal_entry") for _ in range(6)]
        assert [(each.action, each.sequence - last) for each in found] == [
            ("UPDATE", -4), ("DELETE", -3), ("UPDATE", -2), ("UPDATE", -2), ("DELETE", -1),
            # This one is after what it named: it has the row.
            ("DELETE", 0),
        ]  # fmt: skip
        again, delete = found[0], found[1]
        assert again.new_values == again.old_values == delete.old_values
        assert again.source_position == delete.source_position == text(position)
        assert again.timestamp == delete.timestamp
        # Whoever says which of them it has is sent the others, once.
        for sequence, actions in ((last - 3, ["UPDATE", "DELETE", "DELETE"]), (last - 1, [DELETE])):
            stream = world.sync(
                last_known_source_position=text(position), last_known_sequence=sequence
            )
            assert (await stream.next("handshake")).resume_from_sequence == sequence + 1
            found = [await stream.next("journal_entry") for _ in actions]
            assert [each.sequence for each in found] == list(range(sequence + 1, last + 1))


async def test_a_sequence_of_another_server_does_not_count(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        world.writer.commit((UPDATE, line(1, "a")))
        position = world.writer.commit((UPDATE, line(2, "b")), (UPDATE, line(3, "c")))
        world.writer.commit((UPDATE, line(4, "d")))
        last = world.writer.sequence
        for sequence in (last - 5, last, last + 10):
            stream = world.sync(
                last_known_source_position=text(position), last_known_sequence=sequence
            )
            handshake = await stream.next("handshake")
            assert (handshake.mode, handshake.resume_from_sequence) == (DELTA, last - 2), sequence


async def test_a_resume_with_nothing_to_send_ends(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        writer = world.writer
        position = writer.commit((UPDATE, line(1, "red")), (UPDATE, line(2, "b")))
        last = writer.sequence
        for asked in (
            {"last_known_sequence": last},
            {"last_known_sequence": last, "last_known_source_position": text(position)},
        ):
            stream = world.sync(**asked)
            handshake = await stream.next("handshake")
            end = await stream.next("snapshot_end")
            assert end.sequence == handshake.server_current_sequence == last
            assert end == wire.SnapshotEnd(sequence=last), "bare"
        # What was missed doesn't pass the filter.
        stream = await world.greeted(last_known_sequence=last - 1, filters=RED)
        assert (await stream.next("snapshot_end")).sequence == last
        # Where something is sent, that says where it is.
        stream = await world.greeted(last_known_sequence=last - 1)
        assert (await stream.next("journal_entry")).sequence == last
        writer.commit((UPDATE, line(3, "c")))
        assert (await stream.next("journal_entry")).sequence == last + 1
        # Our own clients are told by the handshake.
        stream = await world.greeted(batch=True, last_known_sequence=last + 1)
        await stream.next("change_batch")
        writer.commit((UPDATE, line(3, "d")))
        assert (await stream.next("change_batch")).first_sequence == last + 2


async def test_where_the_newest_entries_are_the_only_ones_kept(tmp_path: Path) -> None:
    """The transaction at the floor is pruned: who says it has all of it needs none of it."""
    async with running(tmp_path, users=5) as world:
        writer = world.writer
        position = writer.commit((UPDATE, line(1, "a")), (UPDATE, line(2, "b")))
        writer.commit((UPDATE, line(3, "c")))
        last = writer.sequence
        writer.prune(keep=1)
        asked = {"last_known_source_position": text(position)}
        for sequence, mode in ((last - 1, DELTA), (last - 2, FULL), (0, FULL)):
            stream = world.sync(**asked, last_known_sequence=sequence)
            assert (await stream.next("handshake")).mode == mode, sequence


async def test_a_snapshot_that_was_cut_short_begins_again(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        writer = world.writer
        position = writer.commit((UPDATE, line(1, "a")))
        before = writer.sequence
        fresh = await world.greeted()
        begin, _, end = await fresh.base_snapshot()

        async def mode(**asked: Any) -> int:
            stream = world.sync(last_snapshot_id=begin.snapshot_id, **asked)
            return (await stream.next("handshake")).mode

        assert end.sequence == before
        assert await mode() == FULL, "it may not have seen the end"
        assert await mode(last_known_sequence=before - 1) == FULL, "that is from before"
        assert await mode(last_known_sequence=before) == DELTA
        assert await mode(last_known_source_position=text(position)) == DELTA
        # One that had come as far as the snapshot has the same sequence before and after it.
        late = world.sync(last_known_sequence=before, last_known_source_position=text(0x10))
        assert (await late.next("handshake")).mode == FULL
        begin, _, end = await late.base_snapshot()
        assert end.sequence == before
        assert await mode(last_known_sequence=before) == FULL
        writer.commit((UPDATE, line(1, "b")))
        assert await mode(last_known_sequence=before + 1) == DELTA


async def test_after_go_away_a_base_client_is_sent_no_changes(tmp_path: Path) -> None:
    """It goes on with this stream beside its next one, and would apply both streams' changes."""
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.5)
    async with running(tmp_path, listener=listener, users=3) as world:
        stream = await world.greeted()
        await stream.base_snapshot()
        world.drain.set()
        await stream.next("go_away")
        world.writer.commit((DELETE, b"1"))
        with pytest.raises(grpc.aio.AioRpcError, match="draining"):
            await stream.next()
