"""Servers of one slot: a standby takes over without a copy, and nothing is lost or repeated."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import psutil
import pytest

from laredo_fanout.client import Endpoint, StreamError, SyncOptions
from laredo_fanout.client.stream.grpc_transport import replication_status
from laredo_fanout.client.stream.stream import open_stream
from laredo_fanout.wire import replication_pb2 as wire
from tests.support import drawn
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server.fanout_program import Fanout
from tests.support.server.pair import (
    BY_HAND,
    A,
    Pair,
    archived,
    check_archive,
    check_client,
    check_confirmations,
    check_servers,
    copies,
    end_walsender,
    frozen,
    rehearsed,
    sequences,
    shown,
    wait_role,
    wipe,
)
from tests.support.server.states import States


async def test_a_killed_holder_is_replaced_by_itself(tmp_path: Path, database: Database) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 1s")
    with pair.started() as (holder, standby), archived(tmp_path, standby, holder) as archive:
        assert (shown(holder)["role"], shown(standby)["role"]) == ("holder", "standby")
        async with States(holder.grpc_port, A) as client:
            await client.until(pair.change(100, 110))
        before = sequences(standby)
        holder.program.kill()
        client.port = standby.grpc_port
        async with client:
            reached = pair.change(110, 120)
            await client.until(reached)
            check_client(client, pair)
        wait_role(standby, "holder")
        assert sequences(standby)[0] == before[0] + 20
        pair.rejoin(holder, standby)
        assert shown(holder)["role"] == "standby"
        pair.change(120, 125)
        check_archive(archive, pair)
        assert copies(holder, standby) == 2


async def asked(server: Fanout, token: str | None) -> grpc.StatusCode:
    """Answer to the report of a standby that claims to have everything."""
    report = wire.StandbyReport(
        server_id="f" * 32,
        tables=[wire.TableReport(table=A, incarnation=1, position=2**62)],
    )
    request = wire.GetReplicationStatusRequest(capabilities=["standby.v1"], standby=report)
    endpoint = Endpoint(f"127.0.0.1:{server.grpc_port}", token=token)
    try:
        await replication_status(endpoint, request, 5)
    except StreamError as error:
        assert isinstance(error.__cause__, grpc.RpcError)
        return error.__cause__.code()
    return grpc.StatusCode.OK


async def test_only_who_has_the_token_may_report_or_be_told_the_secret(
    tmp_path: Path, database: Database
) -> None:
    pair = Pair(tmp_path, database)
    with pair.started() as (holder, standby):
        for token in (None, "", "another"):
            assert await asked(holder, token) is grpc.StatusCode.PERMISSION_DENIED
        stranger = Endpoint(f"127.0.0.1:{holder.grpc_port}")
        options = SyncOptions(A, "stranger", relay=True, standby=True)
        with pytest.raises(StreamError, match="only servers of the same slot"):
            async with open_stream(stranger, options) as events:
                await anext(aiter(events))
        assert len(shown(holder)["standbys"]) == 1
        assert await asked(holder, "between-us") is grpc.StatusCode.OK
        assert len(shown(holder)["standbys"]) == 2
        found = standby.run("check")
        assert "holds the slot, term 1" in found.stdout
        assert "this server is a standby" in found.stdout


async def test_a_holder_that_is_stopped_hands_over(tmp_path: Path, database: Database) -> None:
    pair = Pair(tmp_path, database, BY_HAND)
    with pair.started() as (holder, standby):
        async with States(standby.grpc_port, A) as client:
            await client.until(pair.change(100, 110))
            process = psutil.Process(holder.program.pid)
            process.terminate()
            wait_role(standby, "holder")
            assert process.is_running()
            reached = pair.change(110, 120)
            await client.until(reached)
            assert len(client.snapshots) == 1
        process.wait(PATIENCE_S)
        pair.rejoin(holder, standby)
        assert shown(holder)["role"] == "standby"
        check_servers(holder, standby)


@pytest.mark.parametrize("busy", drawn.first(1, [False, True]))
def test_a_standby_that_has_left_is_not_waited_for_as_a_busy_one_is(
    tmp_path: Path, database: Database, busy: bool
) -> None:
    with Pair(tmp_path, database, BY_HAND).started() as (holder, standby):
        if busy:
            with frozen(standby):
                assert holder.program.stop() == 0
        else:
            standby.program.kill()
            assert holder.program.stop() == 0
        lines = map(json.loads, holder.program.log.read_text().splitlines())
        (given_up,) = [
            each for each in lines if each["event"] == "slot not taken over by a standby"
        ]
        assert (given_up["waited_s"] >= 5) is busy


@pytest.mark.thorough
async def test_a_frozen_holder_is_replaced_by_itself_and_wakes_up_as_a_standby(
    tmp_path: Path, database: Database
) -> None:
    """PostgreSQL ends the walsender of a holder that doesn't answer: here an operator does."""
    pair = Pair(tmp_path, database, "takeover_after = 1s")
    holder, standby = pair.servers
    with rehearsed(pair, tmp_path, holder, standby) as confirmed:
        async with States(holder.grpc_port, A) as client:
            await client.until(pair.change(100, 110))
            with frozen(holder):
                pair.change(110, 115)
                assert not pair.is_free()
                refused = standby.run("promote")
                assert refused.returncode == 1
                assert "is in use by pid" in refused.stderr
                assert shown(standby)["role"] == "standby"
                end_walsender(pair)
                wait_role(standby, "holder")
                pair.change(115, 120)
            wait_role(holder, "standby")
            wait_until(lambda: pair.complete(standby) == 1, "it is complete")
            reached = pair.change(120, 130)
            await client.until(reached)
            check_client(client, pair)
    assert check_confirmations(confirmed) > 1


@pytest.mark.thorough
async def test_of_three_the_one_with_most_takes_over_and_then_the_last_one(
    tmp_path: Path, database: Database
) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 5s", number=3)
    first, second, third = pair.servers
    ports = [each.grpc_port for each in pair.servers]
    with rehearsed(pair, tmp_path, *pair.servers) as confirmed:
        async with States(ports[0], A, others=tuple(ports[1:])) as client:
            third.program.kill()
            await client.until(pair.change(100, 110))
            first.program.kill()
            third.program.start()
            pair.change(110, 120)
            wait_role(second, "holder")
            wait_until(lambda: pair.complete(second) == 1, "the third follows it")
            await client.until(pair.change(120, 130))
            second.program.kill()
            reached = pair.change(130, 140)
            await client.until(reached)
            wait_role(third, "holder")
            for each in (first, second):
                each.program.start()
                each.program.wait_ready()
            wait_until(lambda: pair.complete(third) == 2, "both are complete")
            await client.until(pair.change(140, 145))
            check_client(client, pair)
    assert check_confirmations(confirmed) > 1


@pytest.mark.thorough
async def test_both_are_killed_at_once(tmp_path: Path, database: Database) -> None:
    pair = Pair(tmp_path, database, "takeover_after = 1s")
    with pair.started() as (holder, standby), archived(tmp_path, standby, holder) as archive:
        async with States(standby.grpc_port, A) as client:
            await client.until(pair.change(100, 110))
        holder.program.kill()
        standby.program.kill()
        pair.change(110, 120)
        standby.program.start()
        wait_until(lambda: standby.program.get("/status"), "it answers")
        wait_role(standby, "holder")
        pair.rejoin(holder, standby)
        client.port = holder.grpc_port
        async with client:
            await client.until(pair.change(120, 130))
            check_client(client, pair)
        check_archive(archive, pair)
        assert copies(holder, standby) == 2


@pytest.mark.thorough
async def test_a_lost_disk_is_filled_by_the_peer_and_the_archive_goes_on(
    tmp_path: Path, database: Database
) -> None:
    pair = Pair(tmp_path, database)
    with pair.started() as (first, second), archived(tmp_path, second) as archive:
        pair.change(100, 110)
        first.program.kill()
        wipe(first)
        pair.promote(second)
        pair.rejoin(first, second)
        assert shown(first)["role"] == "standby"
        reached = pair.change(110, 120)
        wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
        second.program.kill()
        pair.change(120, 130)
        pair.promote(first)
        assert shown(first)["term"] == 3
        second.program.start()
        second.program.wait_ready()
        assert shown(second)["role"] == "standby"
        pair.change(130, 140)
        check_archive(archive, pair)
        assert copies(first, second) == 2


@pytest.mark.thorough
def test_what_no_standby_has_is_not_confirmed(tmp_path: Path, database: Database) -> None:
    pair = Pair(tmp_path, database, f"patience = 2s, alone = wait, {BY_HAND}")
    with pair.started() as (holder, standby):
        standby.program.kill()
        had = pair.confirmed()
        reached = pair.change(100, 110)
        wait_until(lambda: shown(holder)["standbys"] == [], "no report counts")
        pair.change(110, 111)
        assert had <= pair.confirmed() < reached
        standby.program.start()
        wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
        assert not shown(holder)["alone"]


@pytest.mark.thorough
def test_a_standby_that_the_slot_has_passed_is_not_promoted(
    tmp_path: Path, database: Database
) -> None:
    pair = Pair(tmp_path, database, f"patience = 1s, {BY_HAND}")
    with pair.started() as (holder, standby):
        standby.program.kill()
        reached = pair.change(100, 110)
        wait_until(lambda: pair.confirmed() >= reached, "the holder went on alone")
        assert shown(holder)["alone"]
        holder.program.kill()
        standby.program.start()
        wait_until(lambda: standby.program.get("/status"), "it answers")
        wait_until(pair.is_free, "the slot is free")
        refused = standby.run("promote")
        assert refused.returncode == 1
        assert "would have to be copied again" in refused.stderr and A in refused.stderr
        assert shown(standby)["role"] == "standby"
        pair.rejoin(holder, holder)
        assert copies(holder, standby) == 2
