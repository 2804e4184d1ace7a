"""Failover and restored backups as clients meet them: who goes on, who gets a snapshot, and why."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.store.environment import SourceIdentity
from laredo_model.line import Action
from laredo_model.position import Ancestor, History, text
from tests.support.processes import PATIENCE_S
from tests.support.server.serving_world import HISTORY, USERS, World, Writer, line, rows, running

UPDATE = Action.UPDATE
FULL, DELTA = 1, 2
SECOND = HISTORY._replace(timeline=2)
SOON = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, behind_wait_s=0.3)
LOST = "slot laredo was invalidated"


def fail_over(writer: Writer, switch: int) -> None:
    """The server's timeline is the second one, which left the first at ``switch``."""
    source = writer.store.source
    assert source is not None
    now = replace(source, history=SECOND, ancestors=(Ancestor(HISTORY, switch),))
    with writer.store.transaction() as txn:
        txn.set_source(now)
        txn.set_position(writer.position, writer.time_us)
    writer.wakeups.notify()


def restore(writer: Writer, position: int) -> None:
    """Another history, from ``position`` on; the table is copied anew in it."""
    reach = writer.position
    with writer.store.transaction() as txn:
        txn.drop_table(writer.ids[USERS])
        now_us = 2_000_000_000_000_000
        identity = SourceIdentity(
            HISTORY._replace(restored=1_700_000_000),
            "laredo",
            "laredo",
            "other",
            because="an earlier state was put back",
            since=position,
            former_reach=reach,
            former_sequences=now_us,
        )
        txn.set_source(identity)
    writer.position = position


async def mode_of(world: World, position: int, history: History | None = HISTORY) -> int:
    told = {} if history is None else {"history": str(history)}
    stream = world.sync(batch=True, last_known_source_position=text(position), **told)
    return (await stream.next("handshake")).mode


async def test_up_to_the_switch_a_client_of_the_former_timeline_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        first = world.writer.commit((UPDATE, line(1, "a")))
        switch = world.writer.commit((UPDATE, line(2, "b")))
        fail_over(world.writer, switch)
        third = world.writer.commit((UPDATE, line(3, "c")))
        stream = world.sync(
            batch=True, last_known_source_position=text(first), history=str(HISTORY)
        )
        handshake = await stream.next("handshake")
        assert (handshake.mode, handshake.history) == (DELTA, str(SECOND))
        batches = [await stream.next("change_batch") for _ in range(2)]
        assert [position for batch in batches for position in batch.positions] == [switch, third]
        assert await mode_of(world, switch) == DELTA
        assert await mode_of(world, switch + 1) == FULL
        assert await mode_of(world, third) == FULL
        assert await mode_of(world, third, SECOND) == DELTA
        assert await mode_of(world, first, HISTORY._replace(restored=1)) == FULL


async def test_ahead_of_us_but_before_the_switch_it_waits(tmp_path: Path) -> None:
    async with running(tmp_path, listener=SOON, users=5) as world:
        fail_over(world.writer, world.writer.position + 0x100)
        ahead = text(world.writer.position + 0x20)
        stream = world.sync(batch=True, last_known_source_position=ahead, history=str(HISTORY))
        code, details = await stream.ends()
        assert (code, details[:6]) == (grpc.StatusCode.UNAVAILABLE, "behind")
        beyond = text(world.writer.position + 0x101)
        stream = world.sync(batch=True, last_known_source_position=beyond, history=str(HISTORY))
        assert (await stream.next("handshake")).mode == FULL


async def test_an_open_stream_goes_on_after_a_failover(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        stream = await world.greeted(batch=True)
        switch = world.writer.commit((UPDATE, line(1, "a")))
        fail_over(world.writer, switch)
        code, details = await stream.ends()
        assert code is grpc.StatusCode.UNAVAILABLE and str(SECOND) in details
        assert await mode_of(world, switch) == DELTA


async def test_an_open_stream_is_told_to_come_again_when_its_table_went_with_the_history(
    tmp_path: Path,
) -> None:
    """NOT_FOUND would be for good."""
    async with running(tmp_path, users=5) as world:
        stream = await world.greeted(batch=True)
        restore(world.writer, 0x100)
        world.wakeups.notify()
        code, details = await stream.ends()
        assert code is grpc.StatusCode.UNAVAILABLE and "+1700000000" in details


@pytest.mark.parametrize("batch", [True, False])
async def test_after_a_restore_a_position_alone_may_be_of_before(
    tmp_path: Path, batch: bool
) -> None:
    async with running(tmp_path, listener=SOON, users=5) as world:
        writer = world.writer
        writer.commit_all([[(UPDATE, line(1, "never happened"))]] * 50)
        reach = writer.position
        former = writer.sequence
        restore(writer, 0x1000)
        writer.publish(rows(0, 5))
        after = writer.commit((UPDATE, line(1, "after")))

        async def mode(position: int, **more: int) -> int:
            stream = world.sync(batch=batch, last_known_source_position=text(position), **more)
            return (await stream.next("handshake")).mode

        assert after < reach
        # Within reach of the former history: it may hold rows that never were.
        assert await mode(after) == FULL
        # Ahead of us: it would wait for ever for what isn't going to come.
        assert await mode(reach) == FULL
        assert await mode(reach, last_known_sequence=former) == FULL
        beyond = world.sync(batch=batch, last_known_source_position=text(reach + 1))
        code, details = await beyond.ends()
        assert (code, details[:6]) == (grpc.StatusCode.UNAVAILABLE, "behind")


async def test_after_a_restore_a_sequence_of_the_new_history_makes_a_position_sure(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, listener=SOON, users=5) as world:
        writer = world.writer
        writer.commit_all([[(UPDATE, line(1, "never happened"))]] * 50)
        former = writer.sequence
        restore(writer, 0x1000)
        source = writer.store.source
        assert source is not None
        with writer.store.transaction() as txn:
            # As the source does: the time at which it began.
            txn.set_source(replace(source, former_sequences=former + 1))
        writer.publish(rows(0, 5))
        after = writer.commit((UPDATE, line(1, "after")))
        for sequence, wanted in (
            (former, FULL),
            (writer.sequence, DELTA),
        ):
            stream = world.sync(
                last_known_source_position=text(after), last_known_sequence=sequence
            )
            assert (await stream.next("handshake")).mode == wanted


async def test_a_snapshot_says_why_to_whom_asked_for_changes(tmp_path: Path) -> None:
    async with running(tmp_path, users=5) as world:
        writer = world.writer
        old = writer.commit((UPDATE, line(1, "a")))
        pruned = writer.commit((UPDATE, line(1, "b")))
        writer.commit((UPDATE, line(1, "c")))
        writer.prune(keep=1)

        async def reason(**asked: str) -> str:
            stream = await world.greeted(batch=True, **asked)
            return (await stream.next("snapshot_begin")).reason

        said = await reason(last_known_source_position=text(old))
        assert said.startswith(f"the journal is complete from {text(pruned)} on")
        assert await reason() == ""
        source = writer.store.source
        assert source is not None
        with writer.store.transaction() as txn:
            txn.set_source(replace(source, because=LOST, since=writer.position))
            txn.set_position(writer.step(), writer.time_us)
        assert await reason(last_known_source_position=text(old)) == LOST
        other = str(HISTORY._replace(timeline=7))
        assert await reason(last_known_source_position=text(old), history=other) == LOST
        assert await reason() == ""


async def test_a_table_that_is_copied_anew_after_a_lost_slot_says_so_in_the_stream(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, users=5) as world:
        writer = world.writer
        stream = await world.greeted(batch=True)
        await stream.snapshot()
        source = writer.store.source
        assert source is not None
        with writer.store.transaction() as txn:
            record = txn.tables[writer.ids[USERS]]
            closed = type(record.status)("closed")
            txn.put_table(replace(record, status=closed, closed_at=writer.position))
            txn.set_source(replace(source, token="new", because=LOST, since=writer.position + 8))
        # While the new slot is waited for the store has no position; what is shown stays as it was.
        late = world.sync(
            batch=True, last_known_source_position=text(writer.position), history=str(HISTORY)
        )
        async with asyncio.timeout(PATIENCE_S):
            assert (await late.next("handshake")).mode == DELTA
        writer.publish(rows(0, 6))
        await stream.next("schema_change")
        assert (await stream.next("snapshot_begin")).reason == LOST
