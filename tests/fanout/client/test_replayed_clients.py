"""Our clients when a server brings them level from an archive."""

from __future__ import annotations

import asyncio
from pathlib import Path

from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    Changes,
    Endpoint,
    Handshake,
    Heartbeat,
    Mode,
    Subscription,
    SyncOptions,
)
from laredo_fanout.client.table.replica import Replica
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position
from laredo_model.line import Action
from laredo_model.position import Position
from tests.fanout.client.scripted_replica import (
    COLUMNS,
    CUT,
    as_changes,
    filled,
    greeting,
    insert,
    rows_of,
)
from tests.support.processes import PATIENCE_S
from tests.support.server.archived import Archived
from tests.support.server.replay_reader import archived, names_of
from tests.support.server.scripted_server import Hold, batch, handshake, line, playing, snapshot
from tests.support.server.serving_world import HISTORY, USERS, World

QUICK = Backoff(initial=0.01, maximum=0.05)


def replaying(oldest: int) -> Handshake:
    return Handshake(Mode.REPLAY_ARCHIVE, None, None, COLUMNS, oldest, oldest, 0, "", True)


def test_what_a_broken_replay_brought_is_not_skipped_in_a_transaction() -> None:
    """The window's end and a transaction's are the same position, and not the same changes."""
    replica = filled({b"1": b"one"})
    replica.begin_stream(replaying(100))
    replica.apply(as_changes([(0x40, [(2, b"1", b"one")])], 90, goes_on=True), differences=False)
    replica.heartbeat(Heartbeat(Position(0x10), 91, None))
    assert replica.reached.position == 0x10
    replica.begin_stream(greeting(Mode.DELTA))
    replica.apply(as_changes([(0x40, [(1, b"5", b"five")])], 95), differences=False)
    assert rows_of(replica) == {b"1": b"one", b"5": b"five"}
    assert (replica.reached.position, replica.reached.open_changes) == (0x40, 0)


def test_the_journal_after_a_replay_is_as_always() -> None:
    replica = filled({b"1": b"one"})
    replica.begin_stream(replaying(100))
    replica.apply(as_changes([(0x40, [(2, b"1", b"net")])], 99), differences=False)
    part = as_changes([(0x50, [(1, b"6", b"six")])], 120, goes_on=True)
    replica.apply(part, differences=False)
    assert (replica.reached.open_position, replica.reached.open_changes) == (0x50, 1)
    replica.begin_stream(greeting(Mode.DELTA))
    whole = as_changes([(0x50, [(1, b"6", b"six"), (2, b"6", b"seven")])], 120)
    found = replica.apply(whole, differences=True)
    assert [(each.old, each.new) for each in found] == [(b"six", b"seven")]


def test_a_partial_transaction_needs_a_snapshot() -> None:
    replica = filled({b"1": b"one"})
    assert not replica.needs_snapshot(replaying(100))
    replica.apply(as_changes([(0x40, [(1, b"2", b"x")])], 6, goes_on=True), differences=False)
    assert replica.needs_snapshot(replaying(100))
    assert not replica.needs_snapshot(greeting(Mode.DELTA))


async def test_a_client_that_applied_a_part_starts_over() -> None:
    """The row in it may have gone again within the window: the diff wouldn't say so."""
    first = [
        handshake(),
        *snapshot({b"1": line(1, "x")}, "0/10", 5),
        batch(6, (0x20, [insert(2)]), goes_on=True),
        CUT,
    ]
    replay = [handshake("REPLAY_ARCHIVE"), batch(90, (0x40, [insert(3)])), Hold()]
    fresh = [handshake(), *snapshot({b"1": line(1, "y")}, "0/50", 200), Hold()]
    async with playing(first, replay, fresh) as (endpoint, server):
        client = AsyncFanoutClient(endpoint.server, USERS, client_id="c", backoff=QUICK)
        async with client, asyncio.timeout(PATIENCE_S):
            while client.position != 0x50:
                await asyncio.sleep(0.002)  # poll
            assert len(client) == 1
            assert (await client.lookup(1)) == {"id": 1, "name": "y"}
    assert [r.last_known_source_position for r in server.requests] == ["", "0/10", ""]


async def windows(table: Archived, count: int = 4) -> None:
    for number in range(count):
        table.commit((number, f"window {number}"), (10 + number, "new"))
        table.commit((4, f"window {number}"))
        table.cut()
    table.commit((1, "journal"))
    table.prune()


async def level(client: AsyncFanoutClient, table: Archived) -> None:
    """Until the client has come to where the server is; its rows are the table's."""
    async with asyncio.timeout(PATIENCE_S):
        while client.position != table.position:
            await asyncio.sleep(0.005)  # poll
    assert len(client) == len(table.state)
    for row in table.state.values():
        name = row.split(b'"name":"')[1].split(b'"')[0].decode()
        number = int(row.split(b'"id":')[1].split(b",")[0])
        found = await client.lookup(number)
        assert found is not None and found["name"] == name


def client_of(world: World, tmp_path: Path) -> AsyncFanoutClient:
    return AsyncFanoutClient(
        world.address,
        USERS,
        client_id="cold",
        local_snapshot_path=tmp_path / "cold.snapshot",
        indexes={"by_name": ("name",)},
        backoff=QUICK,
    )


async def test_readiness_does_not_wait_for_the_next_heartbeat(tmp_path: Path) -> None:
    async with archived(tmp_path, heartbeat_interval_s=600, rows=6) as (world, table):
        async with client_of(world, tmp_path) as client:
            await client.await_ready(PATIENCE_S)
        table.commit((3, None), (5, "away"))
        await windows(table)
        table.cut()
        world.writer.advance()
        async with client_of(world, tmp_path) as client:
            await client.await_ready(PATIENCE_S)
            await level(client, table)


def take(changes: Changes, rows: dict[bytes, bytes]) -> None:
    """Apply them in the plainest way."""
    for action, key, row in zip(changes.actions, changes.keys, changes.lines, strict=True):
        rows.pop(key, None)
        if action != Action.DELETE:
            rows[key] = row


async def test_a_subscription_takes_each_window_as_a_transaction(tmp_path: Path) -> None:
    async with archived(tmp_path, rows=6) as (world, table):
        start = table.position
        await windows(table)
        rows = dict(table.state_at(start))
        history = position.parse_history(str(HISTORY))
        options = SyncOptions(USERS, "c", Position(start), history, want_old=True)
        subscription = Subscription(Endpoint(world.address), options, backoff=QUICK)
        ends: list[int] = []
        async with subscription as events, asyncio.timeout(PATIENCE_S):
            async for event in events:
                if isinstance(event, Handshake):
                    assert event.mode is Mode.REPLAY_ARCHIVE
                if isinstance(event, Changes):
                    take(event, rows)
                    ends += [part.position for part in event.transactions() if part.last]
                    if ends[-1] == table.position:
                        break
        assert rows == table.state
        assert ends == [*[moment.position for moment in table.moments[2::2]], table.position]


async def test_the_base_form_of_our_own_subscription(tmp_path: Path) -> None:
    """All of a window but its last change has the position that the client has already."""
    async with archived(tmp_path) as (world, table):
        table.copied([*range(6), 20])
        table.commit((5, "five"), (20, "twenty"))
        start = table.position
        table.commit((5, "again"), (20, None), (30, "new"))
        table.cut()
        await windows(table)
        options = SyncOptions(USERS, "c", Position(start), batches=False)
        subscription = Subscription(Endpoint(world.address), options, backoff=QUICK)
        held = dict(table.state_at(start))
        async with subscription as events, asyncio.timeout(PATIENCE_S):
            async for event in events:
                if isinstance(event, Handshake):
                    assert event.mode is Mode.REPLAY_ARCHIVE
                elif isinstance(event, Changes):
                    take(event, held)
                elif isinstance(event, Heartbeat) and event.sequence == newest(world):
                    break
        assert names_of(held) == names_of(table.state)


def newest(world: World) -> int:
    return world.writer.store.tables[1].sequence


def test_the_mode_s_number_is_the_wire_s() -> None:
    assert Mode.REPLAY_ARCHIVE == wire.SYNC_MODE_REPLAY_ARCHIVE
    assert not replaying(1).snapshot_follows
    assert Replica(None, {}).reached.open_changes == 0
