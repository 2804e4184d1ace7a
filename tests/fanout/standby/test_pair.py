"""Servers of one slot: a standby takes over without a copy, and nothing is lost or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from threading import Event, Thread

import grpc
import psutil
import pytest

from laredo_archive.maintain.compare_postgres import Comparison, compare
from laredo_archive.reader import Archive
from laredo_fanout.client import Endpoint, StreamError, SyncOptions
from laredo_fanout.client.stream.grpc_transport import replication_status
from laredo_fanout.client.stream.stream import open_stream
from laredo_fanout.wire import replication_pb2 as wire
from tests.support import processes
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout
from tests.support.server.pair import Pair, copies, shown, wipe
from tests.support.server.states import States
from tests.support.writer.archiving_programs import SNAPSHOTTER

A, B = "public.a", "public.b"
TABLES = "{ table = a }, { table = b }"


BY_HAND = "takeover_after = 0s"


def made(directory: Path, database: Database, extra: str = BY_HAND, *, number: int = 2) -> Pair:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, 'v' || i FROM generate_series(1, 50) i",
        "INSERT INTO b SELECT i, 'w' || i FROM generate_series(1, 50) i",
    )
    return Pair(directory, database, TABLES, extra=extra, number=number)


def change(pair: Pair, first: int, last: int) -> int:
    """Two transactions for each of the numbers; the position that has them all."""
    for number in range(first, last):
        pair.database.run(
            f"INSERT INTO a VALUES ({number}, 'new')",
            f"BEGIN; UPDATE b SET v = 'n{number}' WHERE id % 7 = {number} % 7;"
            f" DELETE FROM a WHERE id = {number - 90}; COMMIT",
        )
    return pair.written()


def rows(pair: Pair, table: str) -> set[bytes]:
    with pair.database.connect() as owner:
        found = owner.execute(f"SELECT row_to_json(t)::text FROM {table} t".encode()).fetchall()
    return {str(line).replace(" ", "").encode() for (line,) in found}


def sequences(server: Fanout) -> list[int]:
    return [int(server.table(name)["sequence"]) for name in (A, B)]


def epochs(writer: Archive) -> int:
    return max(each.epoch for each in writer.manifest.artifacts)


@pytest.mark.thorough
async def test_the_standby_of_a_killed_holder_is_promoted_without_a_copy(
    tmp_path: Path, database: Database
) -> None:
    pair = made(tmp_path, database)
    with pair.started() as (holder, standby):
        assert (shown(holder)["role"], shown(standby)["role"]) == ("holder", "standby")
        async with (
            States(standby.grpc_port, A, boundaries=True) as stays,
            States(holder.grpc_port, B) as moves,
        ):
            reached = change(pair, 100, 110)
            await stays.until(reached)
            await moves.until(reached)
            before = sequences(holder)
            assert sequences(standby) == before
        holder.program.kill()
        change(pair, 110, 120)
        pair.promote(standby)
        assert shown(standby)["role"] == "holder"
        moves.port = standby.grpc_port
        async with stays, moves:
            reached = change(pair, 120, 130)
            await stays.until(reached, verified=True)
            await moves.until(reached)
            assert set(stays.rows.values()) == rows(pair, "a")
            assert set(moves.rows.values()) == rows(pair, "b")
            assert (len(stays.snapshots), len(moves.snapshots)) == (1, 1)
        assert copies(holder, standby) == 2  # the holder's own, at first
        # An INSERT and a DELETE for each number.
        assert sequences(standby)[0] == before[0] + 20 + 20


async def test_a_killed_holder_is_replaced_by_itself(tmp_path: Path, database: Database) -> None:
    pair = made(tmp_path, database, "takeover_after = 1s")
    with pair.started() as (holder, standby), archived(tmp_path, standby, holder) as archive:
        async with States(holder.grpc_port, A) as client:
            await client.until(change(pair, 100, 110))
        before = sequences(standby)
        holder.program.kill()
        client.port = standby.grpc_port
        async with client:
            reached = change(pair, 110, 120)
            await client.until(reached)
            assert set(client.rows.values()) == rows(pair, "a")
            assert len(client.snapshots) == 1
        assert shown(standby)["role"] == "holder"
        assert sequences(standby)[0] == before[0] + 20
        holder.program.start()
        holder.program.wait_ready()
        wait_until(lambda: pair.complete(standby) == 1, "the former holder is complete")
        assert shown(holder)["role"] == "standby"
        change(pair, 120, 125)
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
    pair = made(tmp_path, database)
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
    pair = made(tmp_path, database, BY_HAND)
    with pair.started() as (holder, standby):
        async with States(standby.grpc_port, A) as client:
            await client.until(change(pair, 100, 110))
            process = psutil.Process(holder.program.pid)
            process.terminate()
            wait_until(lambda: shown(standby)["role"] == "holder", "it holds the slot")
            assert process.is_running()
            reached = change(pair, 110, 120)
            await client.until(reached)
            assert len(client.snapshots) == 1
        process.wait(PATIENCE_S)
        holder.program.start()
        holder.program.wait_ready()
        wait_until(lambda: pair.complete(standby) == 1, "the former holder is complete")
        assert shown(holder)["role"] == "standby"
        assert copies(holder, standby) == 2
        assert sequences(holder) == sequences(standby)


@pytest.mark.thorough
async def test_a_holder_that_was_frozen_wakes_up_as_a_standby(
    tmp_path: Path, database: Database
) -> None:
    pair = made(tmp_path, database)
    with pair.started() as (holder, standby):
        async with States(holder.grpc_port, A) as client:
            reached = change(pair, 100, 110)
            await client.until(reached)
            with frozen(holder):
                change(pair, 110, 120)
                refused = standby.run("promote")
                assert refused.returncode == 1
                assert "is in use by pid" in refused.stderr
                assert shown(standby)["role"] == "standby"
                end_walsender(pair)
                pair.promote(standby)
                change(pair, 120, 130)
            wait_until(lambda: shown(holder)["role"] == "standby", "it is a standby")
            wait_until(lambda: pair.complete(standby) == 1, "it is complete")
            reached = change(pair, 130, 140)
            await client.until(reached)
            assert set(client.rows.values()) == rows(pair, "a")
            assert len(client.snapshots) == 1
        assert copies(holder, standby) == 2
        assert sequences(holder) == sequences(standby)
        wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
        standby.program.kill()
        pair.promote(holder)
        assert shown(holder)["term"] == 3


@pytest.mark.thorough
async def test_a_frozen_holder_is_replaced_by_itself_and_wakes_up_as_a_standby(
    tmp_path: Path, database: Database
) -> None:
    """PostgreSQL ends the walsender of a holder that doesn't answer: here an operator does."""
    pair = made(tmp_path, database, "takeover_after = 1s")
    with (
        pair.started() as (holder, standby),
        archived(tmp_path, holder, standby) as archive,
        confirmations(pair) as confirmed,
    ):
        async with States(holder.grpc_port, A) as client:
            await client.until(change(pair, 100, 110))
            with frozen(holder):
                change(pair, 110, 115)
                assert not pair.is_free()
                end_walsender(pair)
                wait_until(lambda: shown(standby)["role"] == "holder", "it took over")
                change(pair, 115, 120)
            wait_until(lambda: shown(holder)["role"] == "standby", "it is a standby")
            wait_until(lambda: pair.complete(standby) == 1, "it is complete")
            reached = change(pair, 120, 130)
            await client.until(reached)
            assert set(client.rows.values()) == rows(pair, "a")
            assert len(client.snapshots) == 1
        check_archive(archive, pair)
        assert copies(holder, standby) == 2
        assert sequences(holder) == sequences(standby)
    check_confirmations(confirmed)


@pytest.mark.thorough
async def test_of_three_the_one_with_most_takes_over_and_then_the_last_one(
    tmp_path: Path, database: Database
) -> None:
    pair = made(tmp_path, database, "takeover_after = 5s", number=3)
    first, second, third = pair.servers
    ports = [each.grpc_port for each in pair.servers]
    with (
        pair.started(),
        archived(tmp_path, *pair.servers) as archive,
        confirmations(pair) as confirmed,
    ):
        async with States(ports[0], A, others=tuple(ports[1:])) as client:
            third.program.kill()
            await client.until(change(pair, 100, 110))
            first.program.kill()
            third.program.start()
            change(pair, 110, 120)
            wait_until(lambda: shown(second)["role"] == "holder", "the one with most took over")
            wait_until(lambda: pair.complete(second) == 1, "the third follows it")
            await client.until(change(pair, 120, 130))
            second.program.kill()
            reached = change(pair, 130, 140)
            await client.until(reached)
            assert shown(third)["role"] == "holder"
            for each in (first, second):
                each.program.start()
                each.program.wait_ready()
            wait_until(lambda: pair.complete(third) == 2, "both are complete")
            await client.until(change(pair, 140, 145))
            assert set(client.rows.values()) == rows(pair, "a")
            assert len(client.snapshots) == 1
        check_archive(archive, pair)
        assert copies(*pair.servers) == 2
        assert sequences(first) == sequences(second) == sequences(third)
    check_confirmations(confirmed)


@pytest.mark.thorough
async def test_both_are_killed_at_once(tmp_path: Path, database: Database) -> None:
    pair = made(tmp_path, database, "takeover_after = 1s")
    with pair.started() as (holder, standby), archived(tmp_path, standby, holder) as archive:
        async with States(standby.grpc_port, A) as client:
            await client.until(change(pair, 100, 110))
        holder.program.kill()
        standby.program.kill()
        change(pair, 110, 120)
        standby.program.start()
        wait_until(lambda: standby.program.get("/status"), "it answers")
        wait_until(lambda: shown(standby)["role"] == "holder", "it took over")
        holder.program.start()
        holder.program.wait_ready()
        wait_until(lambda: pair.complete(standby) == 1, "the former holder is complete")
        client.port = holder.grpc_port
        async with client:
            await client.until(change(pair, 120, 130))
            assert set(client.rows.values()) == rows(pair, "a")
            assert len(client.snapshots) == 1
        check_archive(archive, pair)
        assert copies(holder, standby) == 2


def end_walsender(pair: Pair) -> None:
    with pair.database.connect() as owner:
        owner.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{pair.slot}'".encode()
        )


Confirmation = tuple[int | None, int]
"""The walsender that reads the slot, and the confirmed position."""


@contextmanager
def confirmations(pair: Pair) -> Iterator[list[Confirmation]]:
    """The history of the slot, as it is seen every few milliseconds."""
    seen: list[Confirmation] = []
    over = Event()

    def watch() -> None:
        query = (
            "SELECT active_pid, confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            f" WHERE slot_name = '{pair.slot}'"
        )
        with pair.database.connect() as owner:
            while not over.wait(0.01):
                row = owner.execute(query.encode()).fetchone()
                found = row and (row[0], int(row[1]))
                if found and [found] != seen[-1:]:
                    seen.append(found)

    watching = Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def check_confirmations(seen: list[Confirmation]) -> None:
    """The slot's position never went back, and no walsender came back after another one."""
    positions = [position for _, position in seen]
    assert positions == sorted(positions)
    readers = [pid for pid, _ in groupby(pid for pid, _ in seen if pid is not None)]
    assert len(readers) == len(set(readers)) > 1


@contextmanager
def frozen(server: Fanout) -> Iterator[None]:
    """All of the server's processes are stopped within."""
    main = psutil.Process(server.program.pid)
    found = [main, *main.children(recursive=True)]
    for process in found:
        process.suspend()
    try:
        yield
    finally:
        for process in found:
            process.resume()


@pytest.mark.thorough
async def test_a_lost_disk_is_filled_by_the_peer_and_the_archive_goes_on(
    tmp_path: Path, database: Database
) -> None:
    pair = made(tmp_path, database)
    with pair.started() as (first, second), archived(tmp_path, second) as archive:
        change(pair, 100, 110)
        first.program.kill()
        wipe(first)
        pair.promote(second)
        first.program.start()
        first.program.wait_ready()
        wait_until(lambda: pair.complete(second) == 1, "the wiped one is complete")
        assert shown(first)["role"] == "standby"
        reached = change(pair, 110, 120)
        wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
        second.program.kill()
        change(pair, 120, 130)
        pair.promote(first)
        second.program.start()
        second.program.wait_ready()
        assert shown(second)["role"] == "standby"
        change(pair, 130, 140)
        check_archive(archive, pair)
        assert copies(first, second) == 2


def check_archive(archive: Path, pair: Pair) -> None:
    """Each boundary is whole, the last one equals PostgreSQL, and all are of one epoch."""
    for name in ("a", "b"):
        found = Archive.at(str(archive / name))
        verdict = compare(found, pair.database.dsn, wait_s=120)
        assert verdict.outcome is Comparison.EQUAL, verdict.reason
        assert epochs(Archive.at(str(archive / name))) == 1
        verified = processes.run("laredo-archive", "verify", str(archive / name))
        assert verified.returncode == 0, verified.stdout


@contextmanager
def archived(directory: Path, *servers: Fanout) -> Iterator[Path]:
    """A writer that follows the first of these servers that serves; its destination."""
    http = free_port()
    file = directory / "writer.conf"
    tables = ", ".join(f"{{ source {{ schema = public, table = {name} }} }}" for name in "ab")
    file.write_text(
        SNAPSHOTTER.format(
            grpc=servers[0].grpc_port,
            directory=directory,
            http=http,
            tables=tables,
            bases="jsonl, protobuf",
        )
    )
    one = f'server = "127.0.0.1:{servers[0].grpc_port}"'
    listed = ", ".join(f'"127.0.0.1:{each.grpc_port}"' for each in servers)
    file.write_text(file.read_text().replace(one, f"server = [{listed}]"))
    writer = Program("laredo-snapshotter", file, http, log=directory / "writer.log")
    with writer:
        writer.wait_ready()
        yield directory / "archive"


@pytest.mark.thorough
def test_what_no_standby_has_is_not_confirmed(tmp_path: Path, database: Database) -> None:
    pair = made(tmp_path, database, f"patience = 2s, alone = wait, {BY_HAND}")
    with pair.started() as (holder, standby):
        standby.program.kill()
        had = pair.confirmed()
        reached = change(pair, 100, 110)
        wait_until(lambda: shown(holder)["standbys"] == [], "no report counts")
        change(pair, 110, 111)
        assert had <= pair.confirmed() < reached
        standby.program.start()
        wait_until(lambda: pair.confirmed() >= reached, "it is confirmed")
        assert not shown(holder)["alone"]


@pytest.mark.thorough
def test_a_standby_that_the_slot_has_passed_is_not_promoted(
    tmp_path: Path, database: Database
) -> None:
    pair = made(tmp_path, database, f"patience = 1s, {BY_HAND}")
    with pair.started() as (holder, standby):
        standby.program.kill()
        reached = change(pair, 100, 110)
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
        holder.program.start()
        holder.program.wait_ready()
        wait_until(lambda: pair.complete(holder) == 1, "the standby has caught up")
        assert copies(holder, standby) == 2
