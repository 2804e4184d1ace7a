"""Rows that moved with a partition are put right: what clients are sent that keep the rows of some
position."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from laredo_model.line import Action
from laredo_model.position import text
from tests.support.server.filters import equals
from tests.support.server.serving_world import line, rows, running

BATCH, BOUNDARY = "batch/json.v1", "boundary.v1"
INSERT, UPDATE, DELETE, _ = Action


async def _batches(stream: Any, lines: int) -> list[Any]:
    found: list[Any] = []
    while sum(len(batch.lines) for batch in found) < lines:
        found.append(await stream.next("change_batch"))
    return found


@pytest.mark.parametrize("old", [False, True])
async def test_a_record_that_goes_on_within_the_stretch_is_sent_in_two(
    tmp_path: Path, old: bool
) -> None:
    async with running(tmp_path) as world:
        writer = world.writer
        writer.publish(rows(1, 4))
        before = writer.position
        # One record of the journal.
        writer.commit_all(
            [
                [(UPDATE, line(1, "known")), (UPDATE, line(2, "known"))],
                [(UPDATE, line(1, "doubtful"))],
                [(INSERT, line(8, "moved"))],
            ]
        )
        start = before + 0x10
        writer.suspect(start)
        truth = [line(1, "doubtful"), line(2, "known"), line(3, "name 3")]
        end = writer.repair(truth)
        stream = world.sync(
            capabilities=[BATCH, BOUNDARY],
            last_known_source_position=text(before),
            want_old=old,
        )
        assert (await stream.next("handshake")).mode == 2
        first, *rest = await _batches(stream, 5)
        assert list(first.lines) == [line(1, "known"), line(2, "known")]
        assert (list(first.positions), list(first.counts)) == ([start], [2])
        assert not first.open
        assert not first.since_position
        if old:
            assert list(first.old_lines) == [line(1, "name 1"), line(2, "name 2")]
        assert [each for batch in rest for each in batch.lines] == [
            line(1, "doubtful"),
            line(8, "moved"),
            b"",
        ]
        for batch in rest:
            assert (batch.since_position, list(batch.positions)) == (start, [end])
            assert batch.open == (batch is not rest[-1])
            assert len(batch.old_lines) == (len(batch.lines) if old else 0)
        last = writer.commit((INSERT, line(9)))
        after = await stream.next("change_batch")
        assert (list(after.positions), after.since_position) == ([last], 0)


async def test_a_filter_may_leave_nothing_of_the_part_before(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        writer = world.writer
        writer.publish(rows(1, 4))
        before = writer.position
        writer.commit_all([[(UPDATE, line(1, "known"))], [(UPDATE, line(2, "doubtful"))]])
        start = before + 0x10
        writer.suspect(start)
        end = writer.repair([line(1, "known"), line(2, "right"), line(3, "name 3")])
        stream = world.sync(
            capabilities=[BATCH, BOUNDARY],
            last_known_source_position=text(before),
            filters=[equals("id", 2)],
        )
        assert (await stream.next("handshake")).mode == 2
        found = await _batches(stream, 2)
        assert [each for batch in found for each in batch.lines] == [
            line(2, "doubtful"),
            line(2, "right"),
        ]
        assert {(batch.since_position, *batch.positions) for batch in found} == {(start, end)}


async def test_whoever_has_some_of_the_stretch_resumes_before_it(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        writer = world.writer
        writer.publish(rows(1, 4))
        start = writer.commit((UPDATE, line(1, "known")))
        stream = await world.greeted(capabilities=[BATCH, BOUNDARY])
        await stream.snapshot()
        writer.commit((INSERT, line(8, "moved")))
        assert (await stream.next("change_batch")).lines == [line(8, "moved")]
        writer.suspect(start)
        writer.repair([line(1, "known"), line(2, "name 2"), line(3, "name 3")])
        code, why = await stream.ends()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert text(start) in why
