"""A primary and two relays, clients and a writer that have all three in their lists: whichever
serves them is killed, and nobody notices but by the log."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import pytest

from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_fanout.client import AsyncFanoutClient
from tests.end_to_end.fanout import end, fanout, is_archived, snapshotter
from tests.end_to_end.workload import TABLES, Writer, begun
from tests.support import drawn
from tests.support.oracle import assert_same, assert_seen, boundaries
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, until
from tests.support.server.fanout_program import relay
from tests.support.server.states import States

KILLS = 3
CONFIGURED = ", ".join(f"{{ table = {table.name} }}" for table in TABLES)


class World:
    """The programs, the load and the truth."""

    def __init__(self, seed: int, directory: Path, database: Database, stack: ExitStack) -> None:
        self.chance = random.Random(seed)
        self.database = database
        self.oracle = begun(database)
        stack.callback(self.oracle.close)
        self.archive = directory / "archive"
        served = fanout(directory, database)
        self.primary = served.grpc_port
        self.servers = {self.primary: served.program}
        for name in ("first", "second"):
            made = relay(directory / name, self.primary, CONFIGURED)
            self.servers[made.grpc_port] = made.program
        self.writer = snapshotter(directory, self.archive, self.shuffled())
        for program in (*self.servers.values(), self.writer):
            stack.callback(end, program)
            program.start()

    def shuffled(self) -> list[int]:
        """The ports of all servers, in a drawn order."""
        return self.chance.sample(list(self.servers), len(self.servers))

    def writer_s_server(self) -> int:
        """The port of the server that the writer's first table comes from."""
        answer = self.writer.get("/status")
        assert answer is not None, self.writer.tail()
        table = answer.json()["tables"][f"public.{TABLES[0].name}"]
        return int(table["server"].rpartition(":")[2])

    async def kill_who_serves(self, client: States, writers: list[Writer]) -> None:
        """Kill it under load, and start it again when the client is at another one, or at once."""
        wanted = writers[0].committed + self.chance.randrange(5, 30)
        await until(lambda: writers[0].committed >= wanted)
        await client.until(client.position + 1)
        serves = client.served_by if self.chance.random() < 0.6 else self.writer_s_server()
        program, streams = self.servers[serves], len(client.handshakes)
        if self.chance.random() < 0.7:
            program.kill()
        else:
            await asyncio.to_thread(program.stop)
        if serves == client.served_by and self.chance.random() < 0.7:
            # Relays of a primary that died may all be behind the client: it comes back then.
            patience = 3 if serves == self.primary else PATIENCE_S
            with suppress(TimeoutError):
                await until(lambda: len(client.handshakes) > streams, patience)
        program.start()


@pytest.mark.thorough
@drawn.seeds(1, 8)
async def test_whoever_serves_is_killed_and_nobody_misses_or_repeats_anything(
    seed: int, database: Database, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        world = World(seed, tmp_path, database, stack)
        for program in (*world.servers.values(), world.writer):
            await asyncio.to_thread(program.wait_ready)
        async with AsyncExitStack() as clients:
            states = {}
            for table in TABLES:
                port, *others = world.shuffled()
                states[table.name] = await clients.enter_async_context(
                    States(port, f"public.{table.name}", others=tuple(others))
                )
            kinds = await clients.enter_async_context(
                AsyncFanoutClient(
                    [f"127.0.0.1:{port}" for port in world.shuffled()], f"public.{TABLES[0].name}"
                )
            )
            writers = [
                Writer(database.dsn, table, world.oracle, seed * 10 + each, pause=0.03)
                for each, table in enumerate(TABLES)
            ]
            for writer in writers:
                writer.start()
            for _ in range(KILLS):
                await world.kill_who_serves(states[TABLES[0].name], writers)
            for writer in writers:
                await asyncio.to_thread(writer.finish)
            last = world.oracle.last_commit()
            for client in states.values():
                await client.until(last)
            await until(lambda: (kinds.position or 0) >= last)
            assert len([row async for row in kinds.rows()]) == len(states[TABLES[0].name].rows)
            await until(lambda: is_archived(world.archive, last))
        assert world.writer.stop() == 0
        for table in TABLES:
            client = states[table.name]
            assert len(client.snapshots) == 1, "a snapshot was taken"
            assert_seen(world.oracle, table.name, client.seen)
            archive = Archive.at(str(world.archive / table.name))
            gaps = [each for each in archive.manifest.artifacts if each.continues is False]
            assert len(gaps) == 1, "the first base alone continues nothing"
            assert verify(archive).problems == []
            for position, lines in boundaries(world.archive / table.name, table.key_fields):
                assert_same(world.oracle, table.name, position, lines)
        assert len(states[TABLES[0].name].handshakes) > 1, "this proves nothing"
