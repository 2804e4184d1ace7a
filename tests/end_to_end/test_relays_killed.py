"""Database, server, two relays in a chain, clients and a writer of archives at the second: all are
killed at random under load, and every position that anybody has seen is what PostgreSQL held."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import psycopg

from tests.end_to_end.fanout import end, fanout, is_archived, snapshotter
from tests.end_to_end.misfortunes import crash
from tests.end_to_end.workload import TABLES, Writer, begun
from tests.support import drawn
from tests.support.clusters import Clusters
from tests.support.oracle import assert_same, assert_seen, boundaries
from tests.support.postgres import Database
from tests.support.processes import until
from tests.support.server.fanout_program import relay
from tests.support.server.states import States

ROUNDS = 3
CONFIGURED = ", ".join(f"{{ table = {table.name} }}" for table in TABLES)


class Load(Writer):
    """A table's writer, which ends when its database is killed."""

    def run(self) -> None:
        with suppress(psycopg.OperationalError):
            super().run()


class World:
    """The programs, the load and the truth."""

    def __init__(self, seed: int, directory: Path, clusters: Clusters, stack: ExitStack) -> None:
        self.chance = random.Random(seed)
        self.postgres = clusters.new(18)
        self.database: Database = clusters.lead_to(self.postgres)
        self.oracle = begun(self.database)
        stack.callback(self.oracle.close)
        self.archive = directory / "archive"
        server = fanout(directory, self.database)
        first = relay(directory / "first", server.grpc_port, CONFIGURED)
        second = relay(directory / "second", first.grpc_port, CONFIGURED)
        self.port = second.grpc_port
        self.second = second.program
        writer = snapshotter(directory, self.archive, [self.port])
        self.programs = [server.program, first.program, second.program, writer]
        for program in self.programs:
            stack.callback(end, program)
            program.start()

    async def round(self, number: int, client: States) -> None:
        """A while of load, in which something is killed; perhaps the database too."""
        writers = [
            Load(self.database.dsn, table, self.oracle, number * 10 + each, pause=0.03)
            for each, table in enumerate(TABLES)
        ]
        for writer in writers:
            writer.start()
        for _ in range(3):
            if self.chance.random() < 0.7:
                # What is killed next has work again.
                await client.until(client.position + 1)
            wanted = writers[0].committed + self.chance.randrange(5, 40)
            await until(lambda w=wanted: writers[0].committed >= w)  # type: ignore[misc]
            for killed in self.chance.sample(self.programs, self.chance.choice([1, 1, 2, 4])):
                killed.kill()
                if self.chance.random() < 0.5:
                    killed.start()
            for program in self.programs:
                if not program.is_running():
                    program.start()
        if number % 2:
            crash(self.postgres)
            self.postgres.start()
        for writer in writers:
            try:
                await asyncio.to_thread(writer.finish)
            except psycopg.OperationalError:
                assert number % 2, "the database was not killed"
        if number % 2:
            self.oracle.reconnect()


@drawn.seeds(0, 1)
async def test_every_boundary_is_postgresql_s_behind_two_relays_that_are_killed(
    seed: int, clusters: Clusters, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        world = World(seed, tmp_path, clusters, stack)
        async with AsyncExitStack() as clients:
            states = {
                table.name: await clients.enter_async_context(
                    States(world.port, f"public.{table.name}")
                )
                for table in TABLES
            }
            for number in range(ROUNDS):
                await world.round(number, states[TABLES[0].name])
            last = world.oracle.last_commit()
            for client in states.values():
                await client.until(last)
            await until(lambda: is_archived(world.archive, last))
        assert world.second.stop() == 0
        compared = sum(assert_seen(world.oracle, name, each.seen) for name, each in states.items())
        for table in TABLES:
            for position, lines in boundaries(world.archive / table.name, table.key_fields):
                assert_same(world.oracle, table.name, position, lines)
                compared += 1
        print(f"{compared} positions compared")
        assert compared > 50
