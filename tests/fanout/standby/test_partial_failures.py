"""Servers of one slot that lose a part of their world: PostgreSQL, peers, the time, stored rows."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from laredo_fanout.app.ingest_thread import IngestThread
from laredo_fanout.batch.write_batch import OnCommit
from laredo_fanout.relay.path import RelayOptions
from laredo_fanout.slot.reports import StandbyOptions
from laredo_fanout.source_options import SourceOptions, SourceTableOptions
from laredo_fanout.standby import StandbyIngest
from laredo_fanout.store.writer import Store
from tests.support.clusters import Clusters, position_of, promote, wait_replayed, wait_synced
from tests.support.faults.clock import WallClock
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server import rot
from tests.support.server.fanout_program import Fanout
from tests.support.server.pair import (
    TABLES,
    A,
    Pair,
    archived,
    check_archive,
    check_client,
    check_confirmations,
    check_servers,
    copies,
    rehearsed,
    sequences,
    shown,
    wait_role,
)
from tests.support.server.states import States
from tests.support.server.stuck_proxy import Proxy

HOUR = 3600


def redirected(server: Fanout, old: object, new: object) -> None:
    """In the configuration of the server, which isn't started yet."""
    file = server.program.config
    text = file.read_text()
    assert str(old) in text
    file.write_text(text.replace(str(old), str(new)))


async def test_a_holder_that_lost_postgresql_alone_is_replaced(
    tmp_path: Path, database: Database, proxy: Proxy
) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 1s")
    holder, standby = pair.servers
    redirected(holder, database.server.socket_directory, proxy.directory)
    with rehearsed(pair, tmp_path, holder) as confirmed:
        async with States(holder.grpc_port, A) as client:
            await client.until(pair.change(100, 110))
            proxy.sever()
            await client.until(pair.change(110, 120))
            wait_role(standby, "holder")
            wait_until(lambda: pair.complete(standby) == 1, "the former holder is complete")
            assert shown(holder)["role"] == "standby"
            await client.until(pair.change(120, 125))
            check_client(client, pair)
    assert check_confirmations(confirmed) == 2


def test_a_reload_during_a_takeover_is_not_lost(tmp_path: Path, database: Database) -> None:
    pair = Pair(tmp_path, database)
    holder, standby = pair.servers
    database.run("CREATE TABLE c (id int PRIMARY KEY)")
    with pair.started(), ThreadPoolExecutor(2) as threads:
        holder.program.kill()
        wait_until(pair.is_free, "the slot is free")
        store = lmdb.open(str(standby.directory / "state"), max_dbs=16)
        # The takeover's first commit waits for this transaction.
        with closing(store), store.begin(write=True):
            promoted = threads.submit(pair.promote, standby)
            wait_until(lambda: "takeover begun" in standby.program.log.read_text(), "it has begun")
            redirected(standby, TABLES, TABLES + ", { table = c }")
            reload = threads.submit(standby.run, "reload", "--json")
            wait_until(lambda: "public.c" in standby.status["tables"], "it is configured")
        promoted.result()
        assert json.loads(reload.result().stdout)["waits_for"] is None
        wait_until(lambda: standby.table("public.c")["status"] == "live", "it is followed")


@pytest.mark.thorough
async def test_a_holder_is_not_replaced_as_postgresql_was_away_for_all(
    tmp_path: Path, database: Database, proxy: Proxy
) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 3s")
    holder, standby = pair.servers
    for each in pair.servers:
        redirected(each, database.server.socket_directory, proxy.directory)
    with pair.started(), archived(tmp_path, holder) as archive:
        proxy.sever()
        error = wait_until(lambda: shown(standby)["error"], "the standby has looked")
        assert "can't reach PostgreSQL" in error and "PostgreSQL can't be asked" in error
        proxy.lead_to(str(database.server.socket_directory / ".s.PGSQL.5432"))
        reached = pair.change(100, 110)
        wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
        assert (shown(holder)["role"], shown(holder)["term"]) == ("holder", 1)
        check_archive(archive, pair)
        assert copies(holder, standby) == 2


@pytest.mark.thorough
async def test_a_holder_that_lost_its_peers_alone_goes_on_alone(
    tmp_path: Path, database: Database
) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 1s, patience = 1s")
    holder, standby = pair.servers
    to_holder, to_standby = (Proxy(each.grpc_port) for each in pair.servers)
    for each, other, way in ((holder, standby, to_standby), (standby, holder, to_holder)):
        peers = f'peers = ["127.0.0.1:{holder.grpc_port}", "127.0.0.1:{standby.grpc_port}"]'
        redirected(each, peers, peers.replace(str(other.grpc_port), str(way.port)))
    with rehearsed(pair, tmp_path, standby, holder) as confirmed:
        async with States(holder.grpc_port, A) as client:
            await client.until(pair.change(100, 110))
            to_holder.sever()
            to_standby.sever()
            had = pair.confirmed()
            reached = pair.change(110, 120)
            wait_until(lambda: pair.confirmed() >= reached > had, "the holder went on")
            assert shown(holder)["alone"]
            error = wait_until(lambda: shown(standby)["error"], "the standby has looked")
            assert "is still read" in error or "is confirmed up to" in error
            await client.until(pair.change(120, 130))
            for proxy, to in ((to_holder, holder), (to_standby, standby)):
                proxy.lead_to(to.grpc_port)
            wait_until(lambda: pair.complete(holder) == 1, "the standby is complete")
            assert (shown(holder)["role"], shown(standby)["role"]) == ("holder", "standby")
            await client.until(pair.change(130, 135))
            wait_until(lambda: not shown(holder)["alone"], "it isn't alone")
            assert len(client.snapshots) == 1
    assert check_confirmations(confirmed) == 1
    for proxy in (to_holder, to_standby):
        proxy.close()


@pytest.mark.thorough
async def test_the_clock_of_one_machine_is_set_back(tmp_path: Path, database: Database) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 1s")
    holder, standby = pair.servers
    clock = WallClock(tmp_path)
    holder.program.environment = clock.environment
    with rehearsed(pair, tmp_path, standby, holder) as confirmed:
        ports = (holder.grpc_port, standby.grpc_port)
        async with States(ports[0], A, others=ports[1:]) as client:
            await client.until(pair.change(100, 110))
            clock.set_by(-HOUR)
            reached = pair.change(110, 115)
            await client.until(reached)
            wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
            holder.program.kill()
            await client.until(pair.change(115, 120))
            wait_role(standby, "holder")
            pair.rejoin(holder, standby)
            standby.program.kill()
            await client.until(pair.change(120, 125))
            wait_role(holder, "holder")
            clock.set_by(-2 * HOUR)
            pair.rejoin(standby, holder)
            await client.until(pair.change(125, 130))
            check_client(client, pair)
    assert check_confirmations(confirmed) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("holder_lives", [True, False])
async def test_postgresql_is_promoted_in_between(
    tmp_path: Path, clusters: Clusters, holder_lives: bool
) -> None:
    """The slot is on the promoted server; with the holder alive, or killed with the primary."""
    primary = clusters.new(18)
    pair = Pair(tmp_path, clusters.lead_to(primary), "takeover_after = 2s")
    holder, standby = pair.servers
    replica = clusters.standby(primary, 18, sync_replication_slots="on")
    with pair.started(), archived(tmp_path, standby, holder) as archive:
        ports = (holder.grpc_port, standby.grpc_port)
        async with States(ports[0], A, others=ports[1:]) as client:
            reached = pair.change(100, 110)
            await client.until(reached)
            wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
            wait_synced(primary, replica)
            pair.oracle.last_commit()
            wait_replayed(replica, position_of(primary))
            primary.stop()
            if not holder_lives:
                holder.program.kill()
            promote(replica)
            pair.database = clusters.lead_to(replica)
            pair.oracle.move(pair.database.dsn)
            await client.until(pair.change(110, 120))
            wait_role(holder if holder_lives else standby, "holder")
            if not holder_lives:
                holder.program.start()
                holder.program.wait_ready()
            server, other = (holder, standby) if holder_lives else (standby, holder)
            wait_until(lambda: pair.complete(server) == 1, "the other one is complete")
            server.program.kill()
            await client.until(pair.change(120, 130))
            wait_role(other, "holder")
            pair.rejoin(server, other)
            await client.until(pair.change(130, 135))
            check_client(client, pair)
        check_archive(archive, pair)
        check_servers(holder, standby)


@pytest.mark.thorough
@pytest.mark.parametrize("found_by", ["the standby", "the new holder"])
async def test_rows_rot_on_a_standby(tmp_path: Path, database: Database, found_by: str) -> None:
    """They are read for the first time as a standby, or after a takeover."""
    pair = Pair(tmp_path, database, "takeover_after = 1s")
    holder, standby = pair.servers
    redirected(standby, "state.path", "state.max_size = 256 MB\nstate.path")
    with rehearsed(pair, tmp_path, holder, standby) as confirmed:
        ports = (holder.grpc_port, standby.grpc_port)
        async with States(ports[0], A, others=ports[1:]) as client:
            await client.until(pair.change(100, 110))
            wait_until(lambda: sequences(holder) == sequences(standby), "the standby has it")
            standby.program.kill()
            for place in (b'"id":30,"v":"v30"', b'"id":40,"v":"w40"'):
                rot.flip(standby.directory / "state", place, at=14)
            pair.rejoin(standby, holder)
            if found_by == "the new holder":
                holder.program.kill()
                await client.until(pair.change(110, 120))
                wait_role(standby, "holder")
            for name, table in ((A, "a"), ("public.b", "b")):
                async with States(standby.grpc_port, name, f"reads {table}") as reader:
                    await reader.until(client.position)
                    assert set(reader.rows.values()) == pair.rows(table)
                damages = f'laredo_store_damage_total{{table="{name}"}}'
                wait_until(lambda: standby.metrics[damages], "it is counted")  # noqa: B023
            if found_by == "the standby":
                wait_until(lambda: pair.complete(holder) == 1, "it is complete again")
                holder.program.kill()
            await client.until(pair.change(120, 130))
            pair.rejoin(holder, standby)
            await client.until(pair.change(130, 135))
            check_client(client, pair)
    check_confirmations(confirmed)


def test_nobody_waits_for_an_ingest_that_crashed(tmp_path: Path, database: Database) -> None:
    """The server's stop would hand the slot over to the standby, which is complete."""
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    source = SourceOptions(database.dsn, slot_name=f"s_{database.name}", heartbeat_interval=0.1)
    peer, rule = RelayOptions("127.0.0.1:1", "peer"), StandbyOptions(0, 1.0, False, 0.0)
    crashed = threading.Event()

    def make(on_commit: OnCommit) -> StandbyIngest:
        table = SourceTableOptions("public", "a")
        return StandbyIngest(source, [table], store, on_commit, prune, peers=[peer], rule=rule)

    def prune() -> None:
        live = {each.qualified: (each.id, 1) for each in store.tables.values() if each.live}
        if live and ingest.standby and ingest.standby.standby_status().holder:
            ingest.standby.report({"server": "b", "tables": live, "take_over": ""})
            raise ZeroDivisionError("pruned by nothing")

    with closing(Store.open(tmp_path / "store", max_size=1 << 28)) as store:
        ingest = IngestThread(make, store, lambda: None)
        ingest.start(on_end=crashed.set)
        assert crashed.wait(PATIENCE_S)
        assert isinstance(ingest.crash, ZeroDivisionError) and ingest.standby is not None
        assert ingest.standby.standby_status()[:3] == (True, 1, 1)
        assert ingest.standby.hand_over().result(PATIENCE_S) is False
        assert ingest.stop(PATIENCE_S)
