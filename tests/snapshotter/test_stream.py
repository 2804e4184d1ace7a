"""Rare streams of a healthy server, played by a scripted gRPC server."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from structlog.testing import capture_logs

from laredo_fanout.client import Endpoint
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.checksum import StateChecksum, sum_of
from laredo_model.line import Action, Change
from laredo_model.position import Position
from laredo_service.certificates import CertificateWatch
from laredo_service.http.connections import HttpCounts
from laredo_snapshotter import config, upkeep
from laredo_snapshotter.destinations import Stores
from laredo_snapshotter.metrics import Metrics, TableCounters
from laredo_snapshotter.status import WriterState
from laredo_snapshotter.table import status
from laredo_snapshotter.table.writer import TableWriter
from tests.support.oracle import boundaries
from tests.support.processes import PATIENCE_S, until
from tests.support.server.scripted_server import (
    HISTORY,
    End,
    Hold,
    When,
    batch,
    handshake,
    heartbeat,
    line,
    playing,
    snapshot,
)

LOST = End(grpc.StatusCode.UNAVAILABLE)
ROWS = {b"1": line(1, "a"), b"2": line(2, "b")}


def hello(mode: str = "FULL_SNAPSHOT") -> wire.SyncResponse:
    """A handshake with the server's position."""
    message = handshake(mode)
    message.handshake.source_position = "0/1000"
    return message


def changes(
    sequence: int, *transactions: tuple[int, list[tuple[int, bytes, bytes, bytes]]], **more: bool
) -> wire.SyncResponse:
    """A batch with old rows: (action, key, line, old line)."""
    message = batch(
        sequence,
        *((position, [row[:3] for row in rows]) for position, rows in transactions),
        **more,
    )
    for _, rows in transactions:
        message.change_batch.old_lines.extend(row[3] for row in rows)
    return message


class Writing:
    """One table's writer in this process."""

    def __init__(
        self, directory: Path, endpoint: Endpoint, *, flush_timeout: float = 5.0, **settings: object
    ) -> None:
        self.archive = directory / "archive"
        sets = {
            "source.server": endpoint.server,
            "source.table": "users",
            "destinations": f'[{{type = local, path = "{self.archive}"}}]',
            "diff.interval": "1h",
            **settings,
        }
        block = config.load(None, [f"snapshotter.{name}={value}" for name, value in sets.items()])
        (table,) = config.matching_tables(block, {})
        self.metrics = Metrics(lambda: [status.of(self.writer)], HttpCounts(), CertificateWatch())
        self.writer = TableWriter(
            table, TableCounters(self.metrics, table.name), Stores(), flush_timeout
        )

    async def until(self, condition: Callable[[], Any]) -> Any:
        return await until(condition)

    async def position(self, position: int) -> None:
        await self.until(lambda: (status.of(self.writer).stream_position or 0) >= position)
        # The stream doesn't wait for the first base to be committed.
        await self.until((self.archive / "users/manifest.json").exists)
        await self.until(lambda: self.manifest()["artifacts"])

    def restarts(self) -> float | None:
        name = "snapshotter_table_restarts_total"
        return self.metrics.registry.get_sample_value(name, {"table": "public.users"})

    def manifest(self) -> dict[str, Any]:
        return orjson.loads((self.archive / "users/manifest.json").read_bytes())

    def states(self) -> list[tuple[int, list[bytes]]]:
        found = boundaries(self.archive / "users", ["id"])
        return [(position, sorted(lines)) for position, lines in found]


@asynccontextmanager
async def writing(directory: Path, endpoint: Endpoint, **settings: Any) -> AsyncIterator[Writing]:
    world = Writing(directory, endpoint, **settings)
    task = asyncio.create_task(world.writer.run())
    try:
        yield world
    finally:
        world.writer.stop()
        await asyncio.wait_for(task, PATIENCE_S)


async def test_half_a_transaction_is_dropped_and_taken_again(tmp_path: Path) -> None:
    first = (1, b"3", line(3, "half"), b"")
    second = (1, b"4", line(4, "other half"), b"")
    scripts = (
        [
            hello(),
            *snapshot(ROWS, "0/1000", 10),
            changes(11, (0x1010, [first]), goes_on=True),
            LOST,
        ],
        [
            hello("DELTA"),
            changes(11, (0x1010, [first]), goes_on=True),
            changes(12, (0x1010, [second])),
            Hold(),
        ],
    )
    async with playing(*scripts) as (endpoint, scripted):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1010)
        assert world.restarts() == 0
        assert scripted.requests[1].last_known_source_position == "0/1000"
        assert world.states()[-1] == (0x1010, sorted([*ROWS.values(), first[2], second[2]]))
        assert len(world.states()) == 2


async def test_a_change_that_doesnt_fit_begins_again_at_the_archives_head(tmp_path: Path) -> None:
    wrong = (2, b"1", line(1, "y"), line(1, "never was"))
    manifest = tmp_path / "archive/users/manifest.json"

    def has_base() -> bool:
        # Before that there is no head to begin again at.
        return manifest.exists() and bool(orjson.loads(manifest.read_bytes())["artifacts"])

    scripts = (
        [
            hello(),
            *snapshot(ROWS, "0/1000", 10),
            When(has_base),
            changes(11, (0x1010, [(2, b"1", line(1, "x"), line(1, "a"))])),
            changes(12, (0x1020, [wrong])),
            Hold(),
        ],
        [
            hello("DELTA"),
            changes(11, (0x1010, [(2, b"1", line(1, "x"), line(1, "a"))])),
            changes(12, (0x1020, [(2, b"1", line(1, "y"), line(1, "x"))])),
            Hold(),
        ],
    )
    async with playing(*scripts) as (endpoint, scripted):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1020)
            assert world.restarts() == 1
        assert scripted.requests[1].last_known_source_position == "0/1000"
        assert world.states()[-1] == (0x1020, sorted([line(1, "y"), line(2, "b")]))


async def test_a_snapshot_older_than_the_live_stream_isnt_taken_for_a_re_base(
    tmp_path: Path,
) -> None:
    live = [
        hello(),
        *snapshot(ROWS, "0/1000", 10),
        changes(11, (0x1010, [(2, b"1", line(1, "x"), line(1, "a"))])),
        heartbeat(11, "0/1030"),
        Hold(),
    ]
    now = {b"1": line(1, "x"), b"2": line(2, "b")}
    stale = [hello(), *snapshot(ROWS, "0/1000", 10), Hold()]
    fresh = [hello(), *snapshot(now, "0/1030", 11), Hold()]
    async with playing(live, stale, fresh) as (endpoint, scripted):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1030)
            epoch = await asyncio.wait_for(world.writer.request_snapshot(), PATIENCE_S)
            assert epoch == 2
        assert len(scripted.requests) == 3
        kinds = [(a["kind"], a["to_position"]) for a in world.manifest()["artifacts"]]
        assert kinds == [("snapshot", "0/1000"), ("diff", "0/1030"), ("snapshot", "0/1030")]


def test_a_merge_that_hangs_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LONGEST_TURN_S", 0.1)
    turns = upkeep.MergeTurns()
    with capture_logs() as logs, turns.turn():
        for _ in range(3):
            with turns.turn():
                pass
    assert [each["event"] for each in logs] == ["merge overdue; others wait no longer"]


async def test_an_ended_sessions_thread_that_commits_late_is_noticed(tmp_path: Path) -> None:
    """Its diff ends before a change that is buffered again by the next session."""
    first, second = line(1, "x"), line(1, "y")
    late = (2, b"1", first, line(1, "a"))
    both = [changes(11, (0x1010, [late])), changes(12, (0x1020, [(2, b"1", second, first)]))]
    scripts = [hello(), *snapshot(ROWS, "0/1000", 10), *both, Hold()], [hello("DELTA"), both[1]]
    async with playing(scripts[0], [*scripts[1], Hold()]) as (endpoint, scripted):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1020)
            archive = world.writer.archive
            assert archive is not None
            archive.commit_diff(
                [Change(Action.UPDATE, b"1", line(1, "a"), first)],
                from_position=Position(0x1000),
                to_position=Position(0x1010),
                to_time=None,
                rows=2,
                checksum=StateChecksum(2, sum_of([first, ROWS[b"2"]])).hex(),
                formats=["jsonl"],
            )
            world.writer.cut(0x1020)
            await world.until(lambda: len(scripted.requests) == 2)
            await world.position(0x1020)
        assert scripted.requests[1].last_known_source_position == "0/1010"
        assert world.states()[-1] == (0x1020, sorted([second, ROWS[b"2"]]))


async def test_a_snapshot_that_isnt_whole_is_taken_again(tmp_path: Path) -> None:
    checksum = StateChecksum()
    checksum.add(list(ROWS.values()))
    truncated = snapshot({b"1": ROWS[b"1"]}, "0/1000", 10)
    truncated[-1].snapshot_end.rows = 2
    truncated[-1].snapshot_end.state_checksum = checksum.hex()
    whole = snapshot(ROWS, "0/1000", 10)
    whole[-1].snapshot_end.rows = 2
    whole[-1].snapshot_end.state_checksum = checksum.hex()
    async with playing([hello(), *truncated, Hold()], [hello(), *whole, Hold()]) as (endpoint, _):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1000)
        assert world.states() == [(0x1000, sorted(ROWS.values()))]


async def test_a_new_snapshot_in_the_same_stream_is_an_epoch_after_a_gap(tmp_path: Path) -> None:
    later = {b"9": line(9, "z")}
    script = [
        hello(),
        *snapshot(ROWS, "0/1000", 10),
        changes(11, (0x1010, [(3, b"1", b"", line(1, "a"))])),
        *snapshot(later, "0/2000", 90),
        changes(91, (0x2010, [(3, b"9", b"", line(9, "z"))])),
        Hold(),
    ]
    async with playing(script) as (endpoint, _):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x2010)
        artifacts = world.manifest()["artifacts"]
        assert [(a["kind"], a["epoch"]) for a in artifacts] == [
            ("snapshot", 1),
            ("diff", 1),
            ("snapshot", 2),
            ("diff", 2),
        ]
        assert artifacts[2]["continues"] is False
        assert world.states()[-1] == (0x2010, [])


async def test_a_server_without_positions_is_refused(tmp_path: Path) -> None:
    async with playing([handshake(batches=False), Hold()]) as (endpoint, _):
        async with writing(tmp_path, endpoint) as world:
            problem = await world.until(lambda: world.writer.problem)
        assert "doesn't send positions" in problem


async def test_a_resumed_stream_of_another_table_shape_is_opened_afresh(tmp_path: Path) -> None:
    wider = hello("DELTA")
    wider.handshake.columns.add(
        ordinal_position=3, column_name="age", data_type="int4", type_modifier=-1
    )
    again = hello()
    again.handshake.columns.add().CopyFrom(wider.handshake.columns[-1])
    changed = (2, b"1", line(1, "x"), line(1, "a"))
    rows = {b"1": b'{"id":1,"name":"x","age":null}'}
    scripts = (
        [hello(), *snapshot(ROWS, "0/1000", 10), changes(11, (0x1010, [changed])), LOST],
        [wider, Hold()],
        [again, *snapshot(rows, "0/1020", 12), Hold()],
    )
    async with playing(*scripts) as (endpoint, scripted):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1020)
        assert [each.last_known_source_position for each in scripted.requests] == ["", "0/1010", ""]
        kinds = [(a["kind"], a["to_position"]) for a in world.manifest()["artifacts"]]
        assert kinds == [("snapshot", "0/1000"), ("diff", "0/1010"), ("snapshot", "0/1020")]


async def test_a_snapshot_before_the_archives_head_is_never_a_base(tmp_path: Path) -> None:
    wider = hello("DELTA")
    wider.handshake.columns[1].data_type = "varchar"
    again = hello()
    again.handshake.columns[1].data_type = "varchar"
    scripts = (
        [
            hello(),
            *snapshot(ROWS, "0/1000", 10),
            changes(11, (0x1010, [(2, b"1", line(1, "x"), line(1, "a"))])),
            LOST,
        ],
        [wider, Hold()],
        [again, *snapshot(ROWS, "0/1008", 12), Hold()],
        [wider, Hold()],
        [again, *snapshot(ROWS, "0/1020", 12), Hold()],
    )
    async with playing(*scripts) as (endpoint, _):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1020)
        positions = [a["to_position"] for a in world.manifest()["artifacts"]]
        assert positions == ["0/1000", "0/1010", "0/1020"]


def promoted(message: wire.SyncResponse, until: str) -> wire.SyncResponse:
    """The handshake of a server of the timeline that left the first one there."""
    message.handshake.history = "7300000000000000001:2:16384"
    message.handshake.ancestors.add(history=HISTORY, until=until)
    message.handshake.capabilities.append("relay.v1")
    return message


async def test_an_epoch_goes_on_in_a_history_that_has_all_of_it(tmp_path: Path) -> None:
    """An empty diff brings the archive into that history if nothing changes."""
    scripts = (
        [hello(), *snapshot(ROWS, "0/1000", 10), heartbeat(10, "0/1010"), LOST],
        [promoted(hello("DELTA"), "0/1010"), heartbeat(10, "0/1020"), Hold()],
    )
    async with playing(*scripts) as (endpoint, server):
        async with writing(tmp_path, endpoint) as world:
            await world.position(0x1020)
            await world.until(lambda: len(world.manifest()["artifacts"]) > 1)
        assert "relay.v1" in server.requests[0].capabilities
        found = [
            (a["kind"], a["epoch"], a["to_position"], a["history"][-7:])
            for a in world.manifest()["artifacts"]
        ]
        assert found == [("snapshot", 1, "0/1000", "1:16384"), ("diff", 1, "0/1020", "2:16384")]


async def test_an_epoch_ends_if_the_new_history_left_before_what_was_seen(tmp_path: Path) -> None:
    seen = [promoted(hello("DELTA"), "0/1008"), Hold()]
    again = [promoted(hello(), "0/1008"), *snapshot(ROWS, "0/1020", 12), Hold()]
    first = [hello(), *snapshot(ROWS, "0/1000", 10), heartbeat(10, "0/1010"), Hold()]
    async with playing(first, seen, again) as (endpoint, _):
        settings = {"seen_interval": "10ms"}
        async with writing(tmp_path, endpoint, **settings) as world:
            await world.position(0x1010)
            await world.until(lambda: world.manifest()["seen_position"] == "0/1010")
        async with writing(tmp_path, endpoint, **settings) as world:
            await world.position(0x1020)
        bases = [(a["to_position"], a["continues"]) for a in world.manifest()["artifacts"]]
        assert bases == [("0/1000", False), ("0/1020", False)]


async def test_who_asks_while_a_re_base_runs_gets_the_next_one(tmp_path: Path) -> None:
    live = [hello(), *snapshot(ROWS, "0/1000", 10), heartbeat(10, "0/1030"), Hold()]
    asked = asyncio.Event()
    again = [hello(), *snapshot(ROWS, "0/1030", 11), Hold()]
    running_one = [When(asked.is_set), *again]
    async with (
        playing(live, running_one, again) as (endpoint, scripted),
        writing(tmp_path, endpoint) as world,
    ):
        await world.position(0x1030)
        running = world.writer.request_snapshot()
        await world.until(lambda: len(scripted.requests) == 2)
        meanwhile = world.writer.request_snapshot()
        asked.set()
        assert await asyncio.wait_for(running, PATIENCE_S) == 2
        assert await asyncio.wait_for(meanwhile, PATIENCE_S) > 2


async def test_requests_that_wait_are_two_at_most_and_get_a_base_begun_after_the_newest(
    tmp_path: Path,
) -> None:
    asked = asyncio.Event()
    begins, *rest = snapshot(ROWS, "0/1000", 10)
    live = [hello(), begins, When(asked.is_set), *rest, heartbeat(10, "0/1030"), Hold()]
    again = [hello(), *snapshot(ROWS, "0/1030", 11), Hold()]
    async with playing(live, again) as (endpoint, _), writing(tmp_path, endpoint) as world:
        # No base can be made yet.
        first, *others = [world.writer.request_snapshot() for _ in range(50)]
        assert set(others) == {others[0]}
        await world.until(lambda: world.writer.session and world.writer.session.live_base)
        assert world.writer.request_snapshot() is others[0]
        asked.set()
        assert await asyncio.wait_for(first, PATIENCE_S) == 1
        assert await asyncio.wait_for(others[0], PATIENCE_S) == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_held_commit_keeps_is_given_back_when_the_writer_ends(
    tmp_path: Path, *, fails: bool
) -> None:
    first = (2, b"1", line(1, "x"), line(1, "a"))
    script = [hello(), *snapshot(ROWS, "0/1000", 10), changes(11, (0x1010, [first])), Hold()]
    with capture_logs() as logged:
        async with (
            playing(script) as (endpoint, _),
            writing(tmp_path, endpoint, flush_timeout=0.1) as world,
        ):
            await world.position(0x1010)
            world.archive.rename(tmp_path / "gone")
            world.archive.write_text("in the way")
            world.writer.cut(0x1010)
            await world.until(lambda: status.of(world.writer).state is WriterState.HOLDING)
            archive = world.writer.archive
            assert archive is not None
            await world.until(lambda: archive.unfinished)
            spool = archive._commits._spool
            assert spool is not None
            if fails:
                spool.callback(os.close, -1)
        kept = [each for each in logged if each["event"] == "temporary files not deleted"]
        assert [each["table"] for each in kept] == ["public.users"] * fails
        assert not archive.unfinished
        assert world.writer.left is not None
