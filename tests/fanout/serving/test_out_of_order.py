"""A backlog is released out of commit order: what each kind of client is sent, and when."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from laredo_fanout.store.changes import TableChanges
from laredo_model.change import Action
from tests.fanout.serving.test_filters import equals
from tests.fanout.serving.world import USERS, Stream, World, key_of, line, rows, running

BATCH, EARLY = "batch/json.v1", "out-of-order.v1"
INSERT, UPDATE, DELETE, TRUNCATE = Action


class Backlog:
    """Some transactions that come in their turn, others early, beyond them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.start = world.writer.position
        self._base = world.writer.store.position

    def early(self, distance: int, *changes: tuple[Action, bytes]) -> int:
        """A transaction so far beyond the start, before its turn."""
        writer = self._world.writer
        with writer.store.transaction() as transaction:
            transaction.apply_early(writer.ids[USERS], self._changes(distance, changes))
        writer.wakeups.ring()
        return self._base + distance

    def in_turn(self, distance: int, *changes: tuple[Action, bytes]) -> int:
        """A transaction in its turn."""
        writer = self._world.writer
        with writer.store.transaction() as transaction:
            if changes:
                transaction.apply(writer.ids[USERS], self._changes(distance, changes))
            transaction.set_position(self._base + distance, writer.time_us)
        writer.position = self._base + distance
        writer.wakeups.ring()
        return self._base + distance

    def _changes(self, distance: int, given: tuple[tuple[Action, bytes], ...]) -> TableChanges:
        made = TableChanges(
            counts=[len(given)],
            positions=[self._base + distance],
            times_us=[self._world.writer.time_us],
        )
        for action, each in given:
            made.actions.append(action)
            made.keys.append(each if action is DELETE else key_of(each))
            made.lines.append(b"" if action is DELETE else each)
        return made


def _text(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


async def _following(world: World, *capabilities: str, **request: Any) -> Stream:
    stream = world.sync(capabilities=capabilities, **request)
    handshake = await stream.next("handshake")
    assert not handshake.out_of_order
    if capabilities:
        await stream.snapshot()
    else:
        await stream.base_snapshot()
    return stream


async def _beat(stream: Stream, *, out_of_order: bool) -> Any:
    while (beat := await stream.next("heartbeat")).out_of_order != out_of_order:
        continue
    return beat


async def test_early_client_has_changes_as_they_come(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish(rows(1, 3))
        stream = await _following(world, BATCH, EARLY)
        backlog = Backlog(world)
        backlog.early(0x50, (UPDATE, line(1, "late")))
        batch = await stream.next("change_batch")
        assert batch.out_of_order
        assert list(batch.lines) == [line(1, "late")]
        beat = await _beat(stream, out_of_order=True)
        assert beat.source_position == _text(backlog.start)
        backlog.in_turn(0x20, (UPDATE, line(1, "lost")), (UPDATE, line(2, "first")))
        batch = await stream.next("change_batch")
        assert batch.out_of_order
        assert list(batch.lines) == [line(2, "first")]
        end = backlog.in_turn(0x60)
        beat = await _beat(stream, out_of_order=False)
        assert beat.source_position == _text(end)
        world.writer.commit((INSERT, line(9)))
        assert not (await stream.next("change_batch")).out_of_order


async def test_client_in_order_has_all_of_it_at_last_as_one_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish(rows(1, 3))
        stream = await _following(world, BATCH, want_old=True)
        backlog = Backlog(world)
        backlog.early(0x50, (UPDATE, line(1, "late")))
        beat = await _beat(stream, out_of_order=True)
        assert beat.source_position == _text(backlog.start)
        backlog.in_turn(0x20, (UPDATE, line(2, "first")))
        backlog.early(0x60, (DELETE, b"2"))
        end = backlog.in_turn(0x70)
        world.writer.commit((INSERT, line(9)))
        found = []
        while len(found) < 3:
            batch = await stream.next("change_batch")
            assert not batch.out_of_order
            assert list(batch.positions) == [end]
            assert batch.since_position == backlog.start
            assert len(batch.lines) == len(batch.old_lines)
            found += batch.lines
            assert batch.open == (len(found) < 3)
        assert found == [line(1, "late"), line(2, "first"), b""]
        last = await stream.next("change_batch")
        assert list(last.positions) == [world.writer.position]
        assert not last.since_position


@pytest.mark.parametrize("more", [False, True])
async def test_client_in_order_is_told_of_a_stretch_that_left_nothing(
    tmp_path: Path, more: bool
) -> None:
    async with running(tmp_path) as world:
        world.writer.publish(rows(1, 3))
        streams = [
            await _following(world, BATCH),
            await _following(world, BATCH, filters=[equals("id", 1)]),
        ]
        backlog = Backlog(world)
        backlog.early(0x50, (DELETE, b"9"))
        backlog.in_turn(0x20, (INSERT, line(9)))
        end = backlog.in_turn(0x60)
        if more:
            world.writer.commit((UPDATE, line(1, "more")))
        for stream in streams:
            batch = await stream.next("change_batch")
            assert (batch.since_position, list(batch.positions)) == (backlog.start, [end])
            assert (list(batch.counts), list(batch.keys), batch.open) == ([0], [], False)
            if more:
                assert (await stream.next("change_batch")).lines == [line(1, "more")]


async def test_client_in_order_that_comes_meanwhile_waits_for_a_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish(rows(1, 3))
        backlog = Backlog(world)
        backlog.early(0x50, (UPDATE, line(1, "late")))
        backlog.in_turn(0x20, (UPDATE, line(2, "first")))
        refused = world.sync(capabilities=[BATCH])
        code, why = await refused.ends()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "out of order" in why
        early = world.sync(capabilities=[BATCH, EARLY])
        handshake = await early.next("handshake")
        assert handshake.out_of_order
        assert handshake.source_position == _text(backlog.start)
        assert EARLY in handshake.capabilities
        _, lines, end = await early.snapshot()
        assert sorted(lines) == sorted([line(1, "late"), line(2, "first")])
        assert end.source_position == _text(backlog.start)
        backlog.in_turn(0x50)
        await _following(world, BATCH)


@pytest.mark.parametrize("capabilities", [[BATCH], [BATCH, EARLY]])
async def test_resumed_where_order_was_lost_all_since_comes(
    tmp_path: Path, capabilities: list[str]
) -> None:
    async with running(tmp_path) as world:
        world.writer.publish(rows(1, 3))
        backlog = Backlog(world)
        before = world.writer.store.tables[world.writer.ids[USERS]].sequence
        backlog.early(0x50, (UPDATE, line(1, "late")))
        backlog.in_turn(0x20, (UPDATE, line(2, "first")))
        inside = backlog.in_turn(0x30)
        end = backlog.in_turn(0x60)
        world.writer.commit((INSERT, line(9)))
        for position, first in ((backlog.start, before + 1), (end, before + 3)):
            stream = world.sync(
                capabilities=capabilities, last_known_source_position=_text(position)
            )
            handshake = await stream.next("handshake")
            assert handshake.mode == 2
            assert handshake.resume_from_sequence == first
        stream = world.sync(capabilities=capabilities, last_known_source_position=_text(inside))
        assert (await stream.next("handshake")).mode == 1
        begin = await stream.next("snapshot_begin")
        assert "out of order" in begin.reason


async def test_base_client_has_changes_as_they_come(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.writer.publish(rows(1, 3))
        stream = await _following(world)
        backlog = Backlog(world)
        late = backlog.early(0x50, (UPDATE, line(1, "late")))
        entry = await stream.next("journal_entry")
        assert entry.source_position == _text(late)
        early = backlog.in_turn(0x20, (UPDATE, line(2, "first")))
        entry = await stream.next("journal_entry")
        assert entry.source_position == _text(early)
