"""Events of a stream besides changes: heartbeats, GoAway, schema changes."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import grpc

from laredo_fanout.serving.options import ListenerOptions, ServingTableOptions
from laredo_fanout.store.table import Status
from laredo_model.column import Column
from laredo_model.line import Action
from laredo_model.position import parse, text
from tests.support.processes import PATIENCE_S
from tests.support.server.filters import equals
from tests.support.server.serving_world import COLUMNS, USERS, Stream, World, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action

OFTEN = ServingTableOptions(heartbeat_interval_s=0.1)
NEVER = ServingTableOptions(heartbeat_interval_s=3600)
WIDER = (*COLUMNS, Column("extra", "int4", ordinal=5))


async def begun(world: World, **asked: object) -> Stream:
    stream = await world.greeted(batch=True, **asked)
    await stream.snapshot()
    return stream


async def test_heartbeats_come_on_an_idle_stream(tmp_path: Path) -> None:
    async with running(tmp_path, table=OFTEN, users=3) as world:
        base, batch = world.sync(), await begun(world)
        await base.next("handshake")
        _, _, end = await base.base_snapshot()
        for _ in range(3):
            beat = await base.next("heartbeat")
            assert beat.current_sequence == end.sequence
            assert abs(beat.server_time.seconds - time.time()) < 60
            assert beat.source_position == ""  # an extension
            assert (await batch.next("heartbeat")).source_position == text(world.writer.position)


async def test_batch_sessions_learn_positions_without_changes(tmp_path: Path) -> None:
    async with running(tmp_path, table=NEVER, users=3) as world:
        stream = await begun(world)
        position = world.writer.advance()
        assert parse((await stream.next("heartbeat")).source_position) == position

        started = time.monotonic()
        for _ in range(50):
            world.writer.advance()
            await asyncio.sleep(0.02)
        told = []
        while not told or told[-1] < world.writer.position:
            told.append(parse((await stream.next("heartbeat")).source_position))
        # At most one a second, and the last position is told without waiting for another commit.
        assert len(told) <= time.monotonic() - started + 1
        assert told == sorted(told)


async def test_changes_do_not_bring_a_heartbeat_each(tmp_path: Path) -> None:
    async with running(tmp_path, table=NEVER, users=3) as world:
        stream = await begun(world)
        started, heartbeats, changes = time.monotonic(), 0, 0
        for number in range(40):
            world.writer.commit_all([[(UPDATE, line(1, str(number)))]], more=True)
            await asyncio.sleep(0.01)
        while changes < 40:
            message = await stream.next_of_any()
            if hasattr(message, "positions"):
                changes += len(message.actions)
            else:
                heartbeats += 1
        assert heartbeats <= time.monotonic() - started + 1


async def test_a_heartbeat_never_overtakes_changes(tmp_path: Path) -> None:
    """Everything up to a heartbeat's position was sent before it."""
    async with running(tmp_path, table=ServingTableOptions(heartbeat_interval_s=0.001)) as world:
        world.writer.publish([line(0)])
        stream = await begun(world)
        positions = []

        async def write() -> None:
            for number in range(300):
                if number % 3:
                    positions.append(world.writer.commit((UPDATE, line(0, str(number)))))
                else:
                    world.writer.advance()
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        received: list[int] = []
        while len(received) < 200:
            message = await stream.next_of_any()
            if hasattr(message, "positions"):
                received += list(message.positions)
            else:
                told = parse(message.source_position)
                assert [each for each in positions if each <= told] == received
        await writing
        assert received == positions


async def test_go_away_and_then_the_deadline(tmp_path: Path) -> None:
    listener = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.5)
    async with running(tmp_path, listener=listener, users=3) as world:
        stays, leaves = await begun(world), await begun(world, client_id="leaves")
        before = time.time()
        world.drain.set()
        for stream in (stays, leaves):
            message = await stream.next("go_away")
            assert message.reason == "draining"
            assert before + 0.4 < message.drain_deadline_unix_ms / 1000 < time.time() + 0.6
        leaves.cancel()
        # Until the deadline changes go on.
        world.writer.commit((UPDATE, line(1, "late")))
        assert list((await stays.next("change_batch")).keys) == [b"1"]
        code, details = await stays.ends()
        assert code is grpc.StatusCode.UNAVAILABLE and "draining" in details
        await asyncio.wait_for(asyncio.shield(world.serving), PATIENCE_S)
        assert ("test", "drain") in world.registry.closed
        assert ("leaves", "client") in world.registry.closed


async def test_a_draining_server_takes_no_new_sessions(tmp_path: Path) -> None:
    async with running(tmp_path, users=3) as world:
        stream = await begun(world)
        world.drain.set()
        await stream.next("go_away")
        code, _ = await world.sync(client_id="late").ends()
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_new_incarnation_is_announced_and_sent_in_the_same_stream(tmp_path: Path) -> None:
    async with running(tmp_path, table=NEVER, users=3) as world:
        batch, base = await begun(world), world.sync()
        await base.next("handshake")
        _, _, end = await base.base_snapshot()
        world.writer.commit((UPDATE, line(1, "last of the old")))
        rewritten = [
            b'{"id":%d,"name":null,"price":null,"tags":null,"extra":7}' % n for n in range(4)
        ]
        new_id = world.writer.publish(rewritten, columns=WIDER)
        sequence = world.writer.store.tables[new_id].sequence

        for stream in (batch, base):
            message = await stream.next()
            if type(message).__name__ in ("ChangeBatch", "ReplicationJournalEntry"):
                message = await stream.next()
            assert [c.column_name for c in message.old_columns] == ["id", "name", "price", "tags"]
            assert [c.column_name for c in message.new_columns][-1] == "extra"
            assert message.sequence >= end.sequence
        begin, lines, end = await batch.snapshot()
        assert (begin.sequence, end.sequence) == (sequence, sequence)
        assert lines == rewritten
        _, structs, _ = await base.base_snapshot()
        assert [struct["extra"] for struct in structs] == [7, 7, 7, 7]

        world.writer.commit((INSERT, rewritten[0].replace(b'"id":0', b'"id":9')))
        seen = await batch.next("change_batch")
        assert seen.first_sequence == sequence + 1 and list(seen.keys) == [b"9"]
        assert (await base.next("journal_entry")).sequence == sequence + 1


async def test_a_filter_on_a_column_that_went_ends_the_stream(tmp_path: Path) -> None:
    async with running(tmp_path, table=NEVER, users=3) as world:
        stream = await begun(world, filters=[equals("tags", "x")])
        world.writer.publish([b'{"id":1,"name":"a"}'], columns=COLUMNS[:2])
        code, details = await stream.ends()
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "tags" in details


def close_table(world: World, table_id: int) -> None:
    """Its schema changed at the writer's position; a new copy isn't there yet."""
    with world.writer.store.transaction() as txn:
        closed = replace(
            txn.tables[table_id], status=Status.CLOSED, closed_at=world.writer.position
        )
        txn.put_table(closed)
    world.wakeups.notify()


async def test_between_a_schema_change_and_the_new_copy(tmp_path: Path) -> None:
    async with running(tmp_path, table=OFTEN) as world:
        table_id = world.writer.publish(rows(0, 3))
        before = world.writer.position
        stream = await begun(world)
        closed_at = world.writer.commit((UPDATE, line(1, "last")))
        close_table(world, table_id)
        for _ in range(3):
            world.writer.advance()
        # Open streams stand still at the position of the change.
        await stream.next("change_batch")
        beats = [await stream.next("heartbeat") for _ in range(3)]
        assert parse(beats[-1].source_position) == closed_at
        # Nothing of the table is shown to newcomers; who comes back gets what there was.
        code, details = await world.sync(client_id="new").ends()
        assert code is grpc.StatusCode.FAILED_PRECONDITION and "closed" in details
        back = world.sync(batch=True, last_known_source_position=text(before))
        assert (await back.next("handshake")).mode == 2
        assert list((await back.next("change_batch")).lines) == [line(1, "last")]
        world.writer.publish([b'{"id":1,"name":"x"}'], columns=COLUMNS[:2])
        for each in (stream, back):
            await each.next("schema_change")
            _, lines, _ = await each.snapshot()
            assert lines == [b'{"id":1,"name":"x"}']


async def test_a_table_that_fails_ends_its_streams_only(tmp_path: Path) -> None:
    async with running(tmp_path, table=NEVER, names=(USERS, "public.orders")) as world:
        users = world.writer.publish(rows(0, 3))
        world.writer.publish(rows(0, 3), table="public.orders")
        failing, healthy = await begun(world), await begun(world, table="orders")
        with world.writer.store.transaction() as txn:
            failed = replace(txn.tables[users], status=Status.FAILED, error="lost its key")
            txn.put_table(failed)
        world.wakeups.notify()
        code, details = await failing.ends()
        assert code is grpc.StatusCode.FAILED_PRECONDITION and "lost its key" in details
        world.writer.commit((DELETE, b"1"), table="public.orders")
        assert list((await healthy.next("change_batch")).keys) == [b"1"]
