"""A relay that comes back: after longer than its upstream's journal keeps, and when the upstream
copies a table again. Its clients and the writer behind it get what differs, and no snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from laredo_archive.reader import Archive
from laredo_fanout.client import Mode
from tests.support import drawn
from tests.support.oracle import Connection, assert_seen
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, free_port, until
from tests.support.server.fanout_program import Fanout, fanout, relay, started
from tests.support.server.road import Road, writer_of
from tests.support.server.states import States
from tests.support.server.stuck_proxy import Proxy

ROWS = 200
JOURNAL = 4
TABLE = "public.t"
SHORT_JOURNAL = """{{ table = t, targets = [ {{
    journal {{ max_entries = {journal} }}, heartbeat_interval = 200ms {archive} }} ] }}"""
QUICK_RELAY = "{ table = t, targets = [ { heartbeat_interval = 200ms } ] }"


@dataclass
class Chain:
    """PostgreSQL, a server, a relay behind a proxy, and a writer at the relay."""

    upstream: Fanout
    relay: Fanout
    road: Road
    proxy: Proxy
    archive: Path

    def relay_s(self, name: str) -> float:
        return self.relay.metrics.get(f'{name}_total{{table="{TABLE}"}}', 0.0)

    def replayed(self) -> float:
        """Number of the upstream's clients that caught up by a replay from the archive."""
        labels = f'{{outcome="complete",table="{TABLE}"}}'
        return self.upstream.metrics.get(f"laredo_fanout_archive_replays_total{labels}", 0.0)

    def part(self) -> None:
        """The relay doesn't reach its upstream from now on."""
        self.proxy.lead_to(free_port())
        self.proxy.cut()

    def join(self) -> None:
        self.proxy.lead_to(self.upstream.grpc_port)


@contextmanager
def chain(tmp_path: Path, database: Database, *, archived: bool) -> Iterator[Chain]:
    """Everything started, and the table in the relay."""
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        owner.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, %s) i", (ROWS,))
    archive = tmp_path / "first" / "archive"
    of = f', archive {{ store = local, store_config {{ path = "{archive}" }} }}'
    table = SHORT_JOURNAL.format(journal=JOURNAL, archive=of if archived else "")
    upstream = fanout(tmp_path / "up", database, table)
    with ExitStack() as stack:
        stack.enter_context(started(upstream))
        if archived:
            (tmp_path / "first").mkdir()
            stack.enter_context(writer_of(upstream, tmp_path / "first")).wait_ready()
        proxy = stack.enter_context(closing(Proxy(upstream.grpc_port)))
        behind = relay(tmp_path / "relay", proxy.port, QUICK_RELAY)
        stack.enter_context(started(behind))
        road = Road(database, tmp_path, behind)
        stack.callback(road.oracle.close)
        stack.enter_context(road.writer).wait_ready()
        yield Chain(upstream, behind, road, proxy, archive)


def changes(road: Road, session: Connection, turn: int, *, passing: bool = True) -> None:
    """More entries than the journal keeps. If ``passing``, one row is what it was again and one
    comes and goes, which an archive's diff of all of them doesn't show."""
    road.noted(session, f"UPDATE t SET v = 'turn {turn}' WHERE id <= 20")
    come, gone = [1000 + turn], [190 - turn]
    if passing:
        road.noted(session, "UPDATE t SET v = 'for a while' WHERE id = 100")
        come, gone = [*come, 5000], [*gone, 5000]
    road.noted(session, *(f"INSERT INTO t VALUES ({key}, 'new')" for key in come))
    road.noted(session, *(f"DELETE FROM t WHERE id = {key}" for key in gone))
    if passing:
        road.noted(session, "UPDATE t SET v = 'v100' WHERE id = 100")
    road.noted(session, f"UPDATE t SET v = 'again {turn}' WHERE id <= 3")


def epochs(directory: Path) -> int:
    """Number of epochs in an archive."""
    artifacts = Archive.at(str(directory / "t")).manifest.artifacts
    return len({artifact.epoch for artifact in artifacts})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "away"),
    drawn.first(
        1,
        [
            ("archive", "killed"),
            ("archive", "parted"),
            ("archive, if it says all", "killed"),
            ("snapshot", "parted"),
        ],
    ),
)
async def test_a_relay_that_was_away_too_long_sends_what_differs(
    tmp_path: Path, database: Database, way: str, away: str
) -> None:
    archived = way != "snapshot"
    with chain(tmp_path, database, archived=archived) as world, database.connect() as session:
        session.autocommit = True
        road, port = world.road, world.relay.grpc_port
        async with States(port, TABLE, "stays") as stays:
            changes(road, session, 0)
            last = road.oracle.last_commit()
            resumes = States(port, TABLE, "resumes")
            async with resumes:
                for client in (stays, resumes):
                    await client.until(last)
            await until(lambda: road.reached() >= last)
            if archived:
                await until(lambda: _reached(world.archive) >= last)
            snapshots, replayed = world.relay_s("laredo_relay_snapshots"), world.replayed()
            before = sum(map(len, stays.changes))
            if away == "killed":
                world.relay.program.kill()
            else:
                world.part()
            for turn in range(1, 4):
                changes(road, session, turn, passing=way != "archive")
            last = road.oracle.last_commit()
            if archived:
                await until(lambda: _reached(world.archive) >= last)
            await until(lambda: _journal(world.upstream) <= JOURNAL)
            if away == "killed":
                world.relay.program.start()
                snapshots = 0
            else:
                world.join()
            await stays.until(last)
            async with resumes:
                await resumes.until(last)
            await until(lambda: road.reached() >= last)
            for client in (stays, resumes):
                assert len(client.snapshots) == 1
                assert all(each.mode is Mode.DELTA for each in client.handshakes[1:])
                assert assert_seen(road.oracle, "t", client.seen) > 1
            assert len(resumes.handshakes) == 2
            assert len(stays.handshakes) == (1 if away == "parted" else 2)
            replays = world.replayed() - replayed
            assert replays + world.relay_s("laredo_relay_snapshots") - snapshots == 1
            assert replays in {"archive": [1], "snapshot": [0]}.get(way, [0, 1])
            if not archived:
                # Twenty updated, three that went, three that came.
                assert sum(map(len, stays.changes)) - before == 26
            assert epochs(road.directory / "archive") == 1
            assert road.check() > 1


def _reached(archive: Path) -> int:
    return int(Archive.at(str(archive / "t")).manifest.head_position or 0)


def _journal(server: Fanout) -> float:
    return float(server.table(TABLE)["journal"]["entries"])


async def _recopied(server: Fanout, differing: int) -> None:
    asked = await asyncio.to_thread(
        httpx.post, f"{server.program.http}/tables/{TABLE}/recopy", timeout=PATIENCE_S
    )
    assert asked.status_code == 202, asked.text
    await until(lambda: server.last_recopy(TABLE))
    assert server.last_recopy(TABLE)["differing"] == differing


@pytest.mark.thorough
async def test_the_upstream_s_recopy_reaches_clients_of_its_relay(
    tmp_path: Path, database: Database
) -> None:
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        owner.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, %s) i", (ROWS,))
    table = QUICK_RELAY
    upstream = fanout(tmp_path / "up", database, table)
    with started(upstream):
        pass
    upstream.spoil()
    behind = relay(tmp_path / "relay", upstream.grpc_port, table)
    with started(upstream), started(behind), database.connect() as session:
        session.autocommit = True
        road = Road(database, tmp_path, behind)
        with closing(road.oracle), road.writer:
            road.writer.wait_ready()
            async with States(behind.grpc_port, TABLE) as client:
                road.noted(session, "UPDATE t SET v = 'first' WHERE id = 1")
                first = road.oracle.last_commit()
                await client.until(first)
                assert client.rows[b"7"] == b'{"id":7,"v":"wrong"}'
                assert b"8" not in client.rows and b"5000" in client.rows
                await until(lambda: road.reached() >= first)
                await _recopied(upstream, 3)
                road.noted(session, "UPDATE t SET v = 'last' WHERE id = 1")
                last = road.oracle.last_commit()
                rows = await client.until(last)
                assert road.oracle.rows_of("t", list(rows.values())) == road.oracle.rows_at(
                    "t", last
                )
                assert len(client.snapshots) == len(client.handshakes) == 1
                assert [len(each) for each in client.changes if len(each) != 1] == [3]
            await until(lambda: road.reached() >= last)
            assert epochs(road.directory / "archive") == 1
