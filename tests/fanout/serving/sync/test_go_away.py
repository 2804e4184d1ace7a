"""A base client that reads a draining server's stream to its end and resumes by its sequence: it
has every change once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from tests.support.drawn import seeds
from tests.support.server.base_follower import BaseFollower
from tests.support.server.serving_world import USERS, World, Writer, line, rows, running

INSERT, UPDATE, DELETE, _ = Action
SERVERS = 3
KEYS = 8


class Load:
    """Transactions that go on while the server drains."""

    def __init__(self, chance: random.Random) -> None:
        self.names = {number: f"name {number}" for number in range(KEYS)}
        self._chance = chance
        self._committed = 0

    def commit(self, writer: Writer) -> None:
        changes = []
        for number in self._chance.sample(range(KEYS), self._chance.randint(1, 3)):
            self._committed += 1
            if number in self.names and self._chance.random() < 0.5:
                del self.names[number]
                changes.append((DELETE, b"%d" % number))
            else:
                action = UPDATE if number in self.names else INSERT
                self.names[number] = f"at {self._committed}"
                changes.append((action, line(number, self.names[number])))
        writer.commit(*changes)

    async def run(self, writer: Writer, ended: asyncio.Event) -> None:
        while not ended.is_set():
            self.commit(writer)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def draining(path: Path, *, first: bool) -> AsyncIterator[World]:
    """A server over this store that gives its clients a moment when it drains."""
    async with running(path, listener=ListenerOptions("127.0.0.1", 0, drain_grace_s=1.0)) as world:
        if first:
            world.writer.publish(rows(0, KEYS))
        else:
            world.writer.position, world.writer.time_us = world.writer.store.reader().position()
            world.writer.ids = {USERS: 1}
        yield world


async def _to_the_end(stream: Any, client: BaseFollower, on_entry: Callable[[], None]) -> int:
    """Take everything until the server ends the stream; how many entries came after GoAway."""
    leaving, late = False, 0
    with pytest.raises(grpc.aio.AioRpcError, match="draining"):
        while True:
            message = await stream.next()
            leaving = leaving or isinstance(message, wire.GoAway)
            if isinstance(message, wire.ReplicationJournalEntry):
                late += leaving
                on_entry()
            client.take(message)
    assert leaving
    return late


@seeds(1, 4)
async def test_a_base_client_of_servers_that_drain_has_every_change_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    load, client = Load(chance), BaseFollower()
    newest = begun = 0
    for number in range(SERVERS):
        async with draining(tmp_path, first=not number) as world:
            stream = world.sync(last_known_sequence=client.sequence)
            # The drain comes while changes do, in the middle of what is on its way.
            left, ended = chance.randint(1, 60), asyncio.Event()

            def entry(world: World = world) -> None:
                nonlocal left
                left -= 1
                if not left:
                    world.drain.set()

            writing = asyncio.create_task(load.run(world.writer, ended))
            try:
                assert not await _to_the_end(stream, client, entry)
            finally:
                ended.set()
                await writing
            newest = world.writer.store.tables[1].sequence
            begun = begun or client.taken[0]
            assert client.sequence < newest, "nothing was committed after GoAway"
    async with draining(tmp_path, first=False) as world:
        await client.follow(world.sync(last_known_sequence=client.sequence), newest)
    assert client.snapshots == 1
    assert client.modes[1:] == [wire.SYNC_MODE_DELTA] * SERVERS
    assert client.taken == list(range(begun, newest + 1)), "an entry is missing, or came twice"
    assert client.names == load.names
    assert not client.misread
