"""A relay that was away too long, or is sent another incarnation: what its own clients are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from laredo_fanout.batch.status import Counters
from laredo_fanout.client.events import Changes, Handshake, Mode
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import SyncOptions, open_stream
from laredo_fanout.relay.path import RelayCounters, RelayOptions
from laredo_fanout.relay.session import RelaySession
from laredo_fanout.source_options import SourceTableOptions
from laredo_fanout.store.environment import SourceIdentity
from laredo_fanout.store.errors import Damage
from laredo_fanout.store.rows import TableChanges
from laredo_fanout.store.writer import Store
from laredo_model.column import Column
from laredo_model.line import Action
from laredo_model.position import Ancestor, Position
from tests.support.processes import until
from tests.support.server.relayed import Relayed, relaying
from tests.support.server.serving_world import (
    COLUMNS,
    HISTORY,
    USERS,
    Writer,
    key_of,
    line,
    rows,
    running,
)
from tests.support.server.states import States


def missed(writer: Writer) -> list[int]:
    """Changes that a relay doesn't see: one is taken back, and the journal forgets all of them."""
    positions = [
        writer.commit((Action.UPDATE, line(1, "for a while"))),
        writer.commit((Action.UPDATE, line(1, "name 1"))),
        writer.commit((Action.INSERT, line(900)), (Action.DELETE, key_of(line(2)))),
        writer.commit((Action.UPDATE, line(3, "three"))),
    ]
    writer.prune(1)
    return positions


async def resumed(relay: Relayed, position: int, *, boundaries: bool = False) -> Handshake:
    """Handshake for a client that has the rows of this position."""
    options = SyncOptions(USERS, "resumes", Position(position), HISTORY, boundaries=boundaries)
    async with open_stream(Endpoint(f"127.0.0.1:{relay.port}"), options) as events:
        async for event in events:
            assert isinstance(event, Handshake)
            return event
    raise AssertionError("no handshake")


@asynccontextmanager
async def followed(
    directory: Path, lines: Sequence[bytes]
) -> AsyncIterator[tuple[Writer, Relayed, States]]:
    """A writer that has published these rows, a relay of it, and a client of the relay's."""
    async with running(directory / "up") as world:
        world.writer.publish(lines)
        async with (
            relaying(directory / "relay", world.port) as relay,
            States(relay.port, USERS) as client,
        ):
            await client.until(world.writer.position)
            yield world.writer, relay, client


async def test_a_snapshot_reaches_clients_as_the_rows_that_differ(tmp_path: Path) -> None:
    async with running(tmp_path / "up", users=100) as world:
        writer = world.writer
        before = writer.position
        async with relaying(tmp_path / "relay", world.port) as relay:
            sequence = (await relay.until(before)).sequence
        between = missed(writer)
        async with relaying(tmp_path / "relay", world.port) as relay:
            record = await relay.until(writer.position)
            assert record.sequence == sequence + 3
            assert relay.ingest.status().tables[USERS].recopied_rows == 3
            async with States(relay.port, USERS, boundaries=True) as client:
                await client.until(writer.position)
                assert set(client.rows.values()) == {
                    *rows(0, 1),
                    line(1, "name 1"),
                    line(3, "three"),
                    *rows(4, 100),
                    line(900),
                }
            # From where it was they lead on; from what it never saw they don't.
            assert (await resumed(relay, before)).mode is Mode.DELTA
            assert (await resumed(relay, between[0])).mode is Mode.FULL_SNAPSHOT
            assert (await resumed(relay, between[0], boundaries=True)).mode is Mode.FULL_SNAPSHOT
            assert (await resumed(relay, writer.position)).mode is Mode.DELTA


async def test_a_live_client_gets_the_differences_as_one_transaction(tmp_path: Path) -> None:
    async with running(tmp_path / "up", users=100) as world:
        writer = world.writer
        writer.verify()
        async with relaying(tmp_path / "relay", world.port) as relay:
            start = (await relay.until(writer.position)).position
            await until(lambda: relay.record().verified == start)
        missed(writer)
        async with relaying(tmp_path / "relay", world.port) as relay:
            await relay.until(writer.position)
            options = SyncOptions(USERS, "keeps", Position(start), HISTORY, boundaries=True)
            endpoint = Endpoint(f"127.0.0.1:{relay.port}")
            async with open_stream(endpoint, options) as events:
                async for event in events:
                    assert not isinstance(event, Handshake) or event.mode is Mode.DELTA
                    if isinstance(event, Changes):
                        break
            assert isinstance(event, Changes)
            assert event.since == start
            assert list(event.positions) == [writer.position]
            assert len(event) == 3
            assert not event.open


async def test_other_tables_changes_come_while_a_large_one_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laredo_fanout.store.barrier._BLOCK", 1)
    names = (USERS, "public.other")
    async with running(tmp_path / "up", names=names) as world:
        writer = world.writer
        writer.publish(rows(0, 30_000))
        writer.publish(rows(0, 3), table=names[1])
        async with relaying(tmp_path / "relay", world.port, names) as relay:
            for name in names:
                await relay.until(writer.position, name)
        writer.commit((Action.UPDATE, line(2, "two")))
        wanted = writer.commit((Action.UPDATE, line(3, "three")))
        writer.prune(1)
        async with relaying(tmp_path / "relay", world.port, names) as relay:

            def compares() -> bool:
                phase = relay.ingest.status().tables[USERS].phase
                return phase == "snapshot, 30,000 of 30,000 rows"

            async with States(relay.port, names[1]) as client:
                await until(compares)
                position = writer.commit((Action.INSERT, line(100)), table=names[1])
                await client.until(position)
                assert compares()
            assert relay.record().position < wanted
            await relay.until(wanted)
            assert relay.ingest.status().tables[USERS].recopied_rows == 2


async def test_nothing_differs_and_nothing_is_sent(tmp_path: Path) -> None:
    async with running(tmp_path / "up", users=10) as world:
        writer = world.writer
        async with relaying(tmp_path / "relay", world.port) as relay:
            record = await relay.until(writer.position)
        writer.commit((Action.UPDATE, line(1, "x")))
        inside = writer.position
        writer.commit((Action.UPDATE, line(1, "name 1")))
        writer.prune(1)
        async with relaying(tmp_path / "relay", world.port) as relay:
            now = await relay.until(writer.position)
            assert (now.sequence, now.id) == (record.sequence, record.id)
            # The row of this position is neither the one before nor the one after.
            assert (await resumed(relay, inside)).mode is Mode.FULL_SNAPSHOT


async def copied_again(relay: Relayed, writer: Writer) -> None:
    """A recopy of a table that has everything: the snapshot is at the position that it has."""
    await until(lambda: relay.ingest.status().connected)
    relay.ingest.recopy(USERS).result()
    writer.commit((Action.INSERT, line(50)))
    await until(lambda: relay.ingest.status().tables[USERS].copied_rows == 11)
    await relay.until(writer.position)


async def test_a_recopy_sends_what_differs_and_nothing_where_nothing_does(tmp_path: Path) -> None:
    async with running(tmp_path / "up", users=10) as world:
        writer = world.writer
        async with relaying(tmp_path / "relay", world.port) as relay:
            before = await relay.until(writer.position)
        async with relaying(tmp_path / "relay", world.port) as relay:
            async with States(relay.port, USERS) as client:
                await client.until(writer.position)
                await copied_again(relay, writer)
                await until(lambda: USERS in relay.store.last_recopies)
                writer.commit((Action.DELETE, key_of(line(50))))
                await client.until(writer.position)
                assert len(client.snapshots) == len(client.handshakes) == 1
                assert [len(each) for each in client.changes] == [1, 1]
            assert relay.record().id == before.id
            assert relay.store.last_recopies[USERS].differing == 0
            record = await relay.until(writer.position)
        with Store.open(tmp_path / "relay", max_size=1 << 30) as store, store.transaction() as txn:
            wrong = line(3, "not the upstream's")
            columns = ([key_of(wrong)], [wrong], [1], [record.position], [1])
            txn.apply(record.id, TableChanges(bytearray([Action.UPDATE]), *columns))
        async with (
            relaying(tmp_path / "relay", world.port) as relay,
            States(relay.port, USERS) as client,
        ):
            assert wrong in (await client.until(writer.position)).values()
            await copied_again(relay, writer)
            await until(lambda: set(client.rows.values()) == {*rows(0, 10), line(50)})


async def test_other_columns_are_a_new_incarnation_there_too(tmp_path: Path) -> None:
    other = (*COLUMNS[:2], Column("price", "text", ordinal=3), COLUMNS[3])
    async with followed(tmp_path, rows(0, 10)) as (writer, relay, client):
        old = relay.record()
        writer.publish(rows(5, 20), columns=other)
        writer.commit((Action.INSERT, line(77)))
        await client.until(writer.position)
        assert set(client.rows.values()) == {*rows(5, 20), line(77)}
        assert len(client.snapshots) == 2
        assert len(client.handshakes) == 1
        assert relay.record().columns == other
        assert relay.record().sequence > old.sequence


async def test_a_history_that_goes_on_is_taken_over_with_its_ancestors(tmp_path: Path) -> None:
    promoted = HISTORY._replace(timeline=2)
    async with followed(tmp_path, rows(0, 10)) as (writer, relay, client):
        switch = writer.position
        with writer.store.transaction() as txn:
            txn.set_source(
                SourceIdentity(promoted, "laredo", "laredo", "token", (Ancestor(HISTORY, switch),))
            )
            txn.set_position(switch, writer.time_us)
        writer.commit((Action.INSERT, line(50)))
        await client.until(writer.position)
        assert client.handshakes[-1].history == promoted
        assert len(client.snapshots) == 1
        source = relay.store.source
        assert source is not None
        assert source.lineage.holds(HISTORY, switch)
        assert not source.lineage.holds(HISTORY, switch + 1)


async def test_another_history_begins_with_a_snapshot(tmp_path: Path) -> None:
    other = HISTORY._replace(system_identifier=1)
    async with followed(tmp_path, rows(0, 10)) as (writer, relay, client):
        old = relay.record()
        with writer.store.transaction() as txn:
            txn.drop_table(writer.ids[USERS])
            because = "the server is another cluster"
            txn.set_source(SourceIdentity(other, "laredo", "laredo", "t", because=because))
        # As positions go, this is the old history's past.
        writer.position = 0x20
        client.position = 0
        writer.publish(rows(20, 30))
        await until(lambda: set(client.rows.values()) == set(rows(20, 30)))
        assert client.handshakes[-1].history == other
        assert client.snapshots[-1].reason == because
        assert relay.record().sequence > old.sequence
        assert relay.record().position == writer.position
        source = relay.store.source
        assert source is not None
        assert source.former_reach >= old.position


async def test_several_tables_have_a_position_each(tmp_path: Path) -> None:
    names = (USERS, "public.other")
    async with running(tmp_path / "up", names=names) as world:
        writer = world.writer
        writer.publish(rows(0, 10))
        writer.publish(rows(0, 3), table=names[1])
        async with relaying(tmp_path / "relay", world.port, names) as relay:
            for number in range(20):
                writer.commit((Action.INSERT, line(100 + number)), table=names[number % 2])
            for name in names:
                await relay.until(writer.position, name)
            await until(lambda: relay.store.position == writer.position)
            assert relay.record(names[0]).rows == 20
            assert relay.record(names[1]).rows == 13


async def test_a_transaction_larger_than_a_message_is_one_there_too(tmp_path: Path) -> None:
    async with followed(tmp_path, rows(0, 1)) as (writer, _, client):
        giant = writer.commit(*((Action.INSERT, each) for each in rows(1, 5000)))
        await client.until(giant)
        assert len(client.rows) == 5000
        assert set(client.seen) >= {giant}
        assert all(len(seen) in (1, 5000) for seen in client.seen.values())


def test_damage_reported_between_two_sessions_leaves_the_store_usable(tmp_path: Path) -> None:
    with Store.open(tmp_path, max_size=1 << 30) as store:
        with store.transaction() as txn:
            table_id = txn.add_table("public", "users", 0, COLUMNS).id
            txn.publish(table_id, 0x10, 0)
        counters = Counters()
        ended = RelaySession(
            RelayOptions("127.0.0.1:1", "relay"),
            [SourceTableOptions("public", "users")],
            store,
            on_commit=lambda _: None,
            prune=lambda: None,
            counters=counters,
            relay_counters=RelayCounters(),
            found_path=lambda _: None,
        )
        ended.repair(Damage(table_id, "a row", space=store.tables[table_id].space), counters)
        with store.transaction() as txn:
            assert not txn.tables[table_id].damage
