"""No session holds the event loop: what it does between two passes of the loop is bounded.

Counted in rows, values and changes between two passes, never in seconds: a pass is when every
other session, the heartbeats and the health of the process have their turn.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import struct_pb2

from laredo_fanout.serving import filters, slices, struct_rows
from laredo_fanout.serving.journal import READS_A_TURN, Backlog
from laredo_fanout.serving.options import ServingTableOptions
from laredo_fanout.store import journal
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from tests.support import drawn
from tests.support.processes import PATIENCE_S, until
from tests.support.server.serving_world import World, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action
NOTHING = wire.FieldPredicate(field="name", prefix="nobody is called so")


class Passes:
    """Counts calls between two passes of the event loop; ``most`` is the largest number."""

    def __init__(self) -> None:
        self.most = self.passes = self.calls = 0
        self._before = 0

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            self.calls += 1
            return function(*given, **named)

        return counting

    def passed(self) -> None:
        self.most = max(self.most, self.calls - self._before)
        self.passes += self.calls > self._before
        self._before = self.calls

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                self.passed()
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            self.passed()
            watching.cancel()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Counts rows that are parsed for a filter or for the base form."""
    found = Passes()
    monkeypatch.setattr(filters, "parse", found.counted(filters.parse))
    monkeypatch.setattr(struct_rows, "parse", found.counted(struct_rows.parse))
    return found


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Passes:
    """Counts values within json that are encoded for the base form."""
    found = Passes()
    monkeypatch.setattr(struct_rows, "_value", found.counted(struct_rows._value))
    return found


@pytest.mark.parametrize("batch", drawn.first(1, [False, True]))
async def test_a_filter_that_nothing_passes_yields_within_a_snapshot(
    tmp_path: Path, parsed: Passes, batch: bool
) -> None:
    async with running(tmp_path, users=20_000) as world:
        async with parsed.counting():
            stream = await world.greeted(batch=batch, filters=[NOTHING])
            await stream.next("snapshot_begin")
            assert (await stream.next("snapshot_end")).rows_sent == 0
        assert parsed.calls >= 20_000
        assert parsed.most <= slices.SLICE_ROWS
        assert parsed.passes >= 20_000 // slices.SLICE_ROWS


@pytest.mark.parametrize("batch", drawn.first(1, [False, True]))
@pytest.mark.parametrize("changes", [1, 400])
async def test_a_filter_that_nothing_passes_yields_within_the_journal(
    tmp_path: Path, parsed: Passes, changes: int, batch: bool
) -> None:
    quiet = ServingTableOptions(heartbeat_interval_s=3600)
    async with running(tmp_path, table=quiet, users=3) as world:
        start = world.writer.sequence
        for number in range(400 // changes + 3):
            world.writer.commit(*[(UPDATE, line(1, f"{number}"))] * changes)
        end = world.writer.commit((UPDATE, line(2, "nobody is called so but this one")))
        async with parsed.counting():
            stream = await world.greeted(batch=batch, filters=[NOTHING], last_known_sequence=start)
            if batch:
                while end not in (await stream.next("change_batch")).positions:
                    continue
            else:
                await stream.next("journal_entry")
        assert parsed.calls >= 800
        # An old and a new row a change.
        assert parsed.most <= 2 * slices.SLICE_ROWS


async def test_the_base_form_yields_within_a_row_of_much_json(
    tmp_path: Path, encoded: Passes
) -> None:
    async with running(tmp_path) as world:
        world.writer.publish([line(n, tags=[[1, 2, {"a": 3}]] * 5000) for n in range(3)])
        async with encoded.counting():
            stream = await world.greeted()
            _, structs, _ = await stream.base_snapshot()
        assert len(structs) == 3 and structs[1]["tags"][4999][2]["a"] == 3
        assert encoded.most <= 2 * slices.SLICE_ROWS


async def test_a_fetched_snapshot_yields_within_a_row_of_much_json(
    tmp_path: Path, encoded: Passes
) -> None:
    options = ServingTableOptions(snapshot_path=tmp_path / "snapshots")
    async with running(tmp_path / "store", table=options) as world:
        world.writer.publish([line(n, tags=[1] * 20_000) for n in range(3)])
        snapshot_id = world.writer.take_snapshot(tmp_path / "snapshots")
        async with encoded.counting():
            asked = wire.FetchSnapshotRequest(snapshot_id=snapshot_id)
            found = [each async for each in world.stub().FetchSnapshot(asked)]
        assert len(found) == 5
        assert encoded.most <= 2 * slices.SLICE_ROWS


async def test_the_values_of_a_request_are_read_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Passes()
    monkeypatch.setattr(filters.AllowedValues, "add", added.counted(filters.AllowedValues.add))
    async with running(tmp_path, users=3) as world:
        predicate = wire.FieldPredicate(field="id")
        listed = getattr(predicate, "in").values
        listed.extend(struct_pb2.Value(number_value=n) for n in range(2, 10_002))
        async with added.counting():
            stream = await world.greeted(batch=True, filters=[predicate])
        assert added.calls == 10_000
        assert added.most <= slices.SLICE_ROWS
        assert (await stream.snapshot())[1] == rows(2, 3)


async def test_small_records_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Passes()
    monkeypatch.setattr(journal, "record_of", read.counted(journal.record_of))
    async with running(tmp_path, users=3) as world:
        start = world.writer.sequence
        for number in range(600):
            end = world.writer.commit((UPDATE, line(1, str(number))))
        async with read.counting():
            stream = await world.greeted(batch=True, last_known_sequence=start)
            while end not in (await stream.next("change_batch")).positions:
                continue
        assert read.calls >= 600
        assert read.most <= slices.SLICE_ROWS


async def test_backlogs_are_counted_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients are behind, at however many places, by however much."""
    counted = Passes()
    monkeypatch.setattr(Backlog, "_count", counted.counted(Backlog._count))
    monkeypatch.setattr("laredo_fanout.serving.endpoints.grpc.STUCK_S", 0.2)
    options = ServingTableOptions(buffer_max_size=1000, heartbeat_interval_s=3600)
    async with running(tmp_path, table=options, users=3) as world:
        for number in range(3):
            stream = await world.greeted(batch=True, client_id=str(number))
            await stream.snapshot()
        leases = world.registry.leases
        await until(lambda: all(lease.state.state == "live" for lease in leases))
        async with counted.counting():
            for number in range(40):
                wide = (UPDATE, line(1, "w" * 100_000 + str(number)))
                world.writer.commit_all([[wide]] * 2 + [[(UPDATE, line(2))]] * 98)
                await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                while world.registry.leases:
                    world.writer.advance()
                    await asyncio.sleep(0.01)
        assert {reason for _, reason in world.registry.closed} == {"buffer"}
        assert counted.calls > READS_A_TURN
        assert counted.most <= READS_A_TURN


async def test_others_are_served_while_one_scans(tmp_path: Path, parsed: Passes) -> None:
    """Between the beginning and the end of a long scan each commit reaches another client."""
    async with running(tmp_path, users=30_000) as world:
        other = world.sync(batch=True, filters=[wire.FieldPredicate(field="name", prefix="mine")])
        await other.next("handshake")
        await other.snapshot()
        busy = await world.greeted(batch=True, filters=[NOTHING])
        await busy.next("snapshot_begin")
        ends = asyncio.create_task(busy.next("snapshot_end"))
        served = await _served_until(world, other, ends)
        assert (await ends).rows == 30_000
        assert served >= 5


async def _served_until(world: World, other: Any, ends: asyncio.Task[Any]) -> int:
    served = 0
    while not ends.done():
        world.writer.commit((UPDATE, line(1, f"mine {served}")))
        await other.next("change_batch")
        served += 1
    return served
