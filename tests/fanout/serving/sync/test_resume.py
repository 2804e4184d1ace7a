"""The catch-up modes: what a client that comes back is sent."""

import asyncio
from pathlib import Path

import grpc

from laredo_fanout.serving.options import ListenerOptions
from laredo_model.line import Action
from laredo_model.position import text
from tests.support.processes import until
from tests.support.server.serving_world import HISTORY, Writer, line, rows, running

INSERT, UPDATE, DELETE, TRUNCATE = Action

FULL, DELTA, FROM_SNAPSHOT = 1, 2, 3
BEHIND_SOON = ListenerOptions("127.0.0.1", 0, drain_grace_s=0.2, behind_wait_s=0.3)


def two_transactions(writer: Writer) -> tuple[int, int]:
    """A transaction of two changes and one of one; their positions."""
    writer.publish(rows(0, 10))
    first = writer.commit((UPDATE, line(1, "a")), (UPDATE, line(2, "a")))
    return first, writer.commit((UPDATE, line(3, "b")))


async def test_by_sequence_a_batch_client_is_sent_the_declared_entry_again(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        two_transactions(world.writer)
        last = world.writer.sequence
        stream = world.sync(batch=True, last_known_sequence=last - 1)
        handshake = await stream.next("handshake")
        assert (handshake.mode, handshake.resume_from_sequence) == (DELTA, last - 1)
        assert handshake.server_current_sequence == last
        assert handshake.journal_oldest_sequence == last - 2
        batch = await stream.next("change_batch")
        assert (batch.first_sequence, list(batch.keys)) == (last - 1, [b"2"])


async def test_a_sequence_outside_the_journal_means_a_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        two_transactions(world.writer)
        last = world.writer.sequence
        for sequence in (last - 100, last + 1, last + 100):
            stream = world.sync(last_known_sequence=sequence)
            assert (await stream.next("handshake")).mode == FULL, sequence
        world.writer.prune(keep=1)
        for sequence, mode in ((last - 2, FULL), (last - 1, DELTA), (last, DELTA)):
            stream = world.sync(last_known_sequence=sequence)
            assert (await stream.next("handshake")).mode == mode, sequence


async def test_by_position_a_batch_client_gets_later_transactions_only(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first, second = two_transactions(world.writer)
        stream = world.sync(
            batch=True, last_known_source_position=text(first), history=str(HISTORY)
        )
        assert (await stream.next("handshake")).mode == DELTA
        batch = await stream.next("change_batch")
        assert list(batch.positions) == [second] and list(batch.keys) == [b"3"]


async def test_a_position_within_a_stored_record_is_found(tmp_path: Path) -> None:
    async with running(tmp_path, users=10) as world:
        before = world.writer.position
        last = world.writer.commit_all(
            [[(UPDATE, line(n, "x")), (UPDATE, line(n, "y"))] for n in range(5)]
        )
        third = before + 3 * 0x10
        batch_stream = await world.greeted(batch=True, last_known_source_position=text(third))
        batch = await batch_stream.next("change_batch")
        assert list(batch.positions) == [third + 0x10, last]
        assert list(batch.keys) == [b"3", b"3", b"4", b"4"]
        base_stream = world.sync(last_known_source_position=text(third))
        handshake = await base_stream.next("handshake")
        assert handshake.resume_from_sequence == batch.first_sequence - 2
        entry = await base_stream.next("journal_entry")
        assert (entry.source_position, entry.new_values["name"]) == (text(third), "x")


async def test_a_reader_of_a_quiet_table_gets_an_empty_delta(tmp_path: Path) -> None:
    async with running(tmp_path, users=10) as world:
        barrier = world.writer.position
        world.writer.prune(keep=1)
        for _ in range(5):
            world.writer.advance()
        for position in (barrier, barrier + 0x20, world.writer.position):
            stream = world.sync(batch=True, last_known_source_position=text(position))
            assert (await stream.next("handshake")).mode == DELTA


async def test_a_stale_position_means_a_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first, second = two_transactions(world.writer)
        world.writer.commit((UPDATE, line(4)))
        world.writer.prune(keep=1)
        for batch, position, mode in (
            (True, first, FULL),
            (True, second, DELTA),
            # A base client may have only half of the transaction at the floor, which is pruned.
            (False, second, FULL),
        ):
            stream = world.sync(batch=batch, last_known_source_position=text(position))
            handshake = await stream.next("handshake")
            assert handshake.mode == mode, (batch, text(position))


async def test_position_wins_over_sequence_when_it_parses(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first, _ = two_transactions(world.writer)
        last = world.writer.sequence
        both = world.sync(
            batch=True, last_known_source_position=text(first), last_known_sequence=last - 2
        )
        assert (await both.next("handshake")).resume_from_sequence == last
        unparsable = world.sync(
            batch=True, last_known_source_position="gibberish", last_known_sequence=last - 2
        )
        assert (await unparsable.next("handshake")).resume_from_sequence == last - 2


async def test_from_a_snapshot_by_its_id(tmp_path: Path) -> None:
    async with running(tmp_path, users=3) as world:
        fresh = await world.greeted(batch=True)
        begin, _, end = await fresh.snapshot()
        world.writer.commit((UPDATE, line(1, "a")))
        stream = world.sync(batch=True, last_snapshot_id=begin.snapshot_id)
        handshake = await stream.next("handshake")
        assert (handshake.mode, handshake.snapshot_id) == (FROM_SNAPSHOT, begin.snapshot_id)
        assert (await stream.next("change_batch")).first_sequence == end.sequence + 1

        for _ in range(3):
            world.writer.commit((UPDATE, line(1, "b")))
        world.writer.prune(keep=1)
        for snapshot_id in (begin.snapshot_id, "stream-99-5", "unknown"):
            too_late = world.sync(batch=True, last_snapshot_id=snapshot_id)
            assert (await too_late.next("handshake")).mode == FULL


async def test_a_client_that_is_ahead_waits_for_the_server(tmp_path: Path) -> None:
    async with running(tmp_path, users=3) as world:
        ahead = world.writer.position + 0x20
        stream = world.sync(batch=True, last_known_source_position=text(ahead))
        handshake = asyncio.create_task(stream.next("handshake"))
        await until(lambda: any(each.state.state == "waiting" for each in world.registry.leases))
        world.writer.commit((UPDATE, line(1, "seen")))
        assert not handshake.done()
        world.writer.commit((UPDATE, line(2, "seen")))
        world.writer.commit((UPDATE, line(0, "new")))
        assert (await handshake).mode == DELTA
        assert list((await stream.next("change_batch")).keys) == [b"0"]


async def test_a_client_that_stays_ahead_is_told_that_we_are_behind(tmp_path: Path) -> None:
    async with running(tmp_path, listener=BEHIND_SOON, users=3) as world:
        for batch in (True, False):
            stream = world.sync(
                batch=batch, last_known_source_position=text(world.writer.position + 1)
            )
            code, details = await stream.ends()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert details.startswith("behind")
        assert world.registry.closed[-1][1] == "behind"
