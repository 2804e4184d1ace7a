"""The whole server as its console script, over a real PostgreSQL, with real clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import grpc
import psutil
import psycopg
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from laredo_fanout.client import Mode
from laredo_fanout.store.writer import Store
from tests.support.postgres import Database
from tests.support.processes import BIN, PATIENCE_S, eventually, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.server.states import States

Connection = psycopg.Connection[tuple[object, ...]]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# No heartbeat may hide that nobody was woken.
QUIET = "targets = [ { heartbeat_interval = 1h } ]"
TABLES = f"{{ table = a, {QUIET} }}, {{ table = b, {QUIET} }}"


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """Two tables, the first with the rows 1..100."""
    database.make("a", rows=100)
    database.make("b", rows=0)
    return fanout(tmp_path / "server", database, TABLES)


def keys(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


def children(server: Fanout) -> list[psutil.Process]:
    return psutil.Process(server.program.pid).children(recursive=True)


def has_ended(process: psutil.Process) -> bool:
    """A zombie has: where nobody adopts orphans (a container's pid 1) it stays one."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def is_free(port: int) -> bool:
    """True if a server can listen there: connections that are being closed don't prevent that."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def test_rows_and_changes_reach_clients_and_every_endpoint_tells(
    server: Fanout, database: Database
) -> None:
    with started(server), database.connect() as owner:
        async with (
            server.follower("public.a", "watcher-1") as a,
            server.follower("public.b", "other") as b,
        ):
            await a.until_keys(keys(*range(1, 101)))
            owner.execute("INSERT INTO b VALUES (7, 'x')")
            owner.execute("UPDATE a SET v = 'new' WHERE id = 5")
            owner.execute("DELETE FROM a WHERE id = 6")
            await b.until_keys(keys(7))
            await a.until_keys(keys(*(n for n in range(1, 101) if n != 6)))
            assert a.rows[b"5"] == b'{"id":5,"v":"new"}'
            wait_until(
                lambda: [c["state"] for c in server.status["clients"]] == ["live", "live"],
                "both clients live",
            )
            _endpoints_tell(server)
            _the_terminal_tells(server)
        eventually(lambda: server.status["fanout"]["clients"], 0)
        left = 'laredo_fanout_disconnects_total{reason="client"}'
        eventually(lambda: server.metrics[left], 2)
    away = server.run("status")
    assert away.returncode == 1
    assert "doesn't answer" in away.stderr
    assert "Traceback" not in away.stderr


def _endpoints_tell(server: Fanout) -> None:
    live = server.program.get("/health/live")
    assert live is not None and live.status_code == 200
    status = server.status
    assert (status["ready"], status["problems"]) == (True, [])
    source = status["sources"]["pg"]
    assert source["connected"] and source["error"] is None
    assert source["slot"]["wal_status"] in ("reserved", "extended")
    table = {"status": "live", "rows": 99, "clients": 1, "error": None}
    table |= {"copied_rows": 100, "key_fields": ["id"]}
    eventually(lambda: {key: server.table("public.a")[key] for key in table}, table)
    eventually(lambda: server.table("public.a")["journal"]["entries"], 2)
    expected = {
        'laredo_source_connected{source="pg"}': 1,
        'laredo_copy_rows_total{table="public.a"}': 100,
        'laredo_changes_total{action="insert",source="pg"}': 1,
        'laredo_changes_total{action="update",source="pg"}': 1,
        'laredo_changes_total{action="delete",source="pg"}': 1,
        'laredo_table_rows{table="public.a"}': 99,
        'laredo_table_rows{table="public.b"}': 1,
        'laredo_fanout_connected_clients{table="public.a"}': 1,
        "laredo_fanout_max_clients": 500,
        'laredo_fanout_journal_entries{table="public.a"}': 2,
        'laredo_fanout_client_buffer_depth{table="public.a"}': 0,
        'laredo_source_recopies_total{source="pg"}': 0,
        'laredo_fanout_snapshots_total{table="public.a"}': 0,
    }
    eventually(lambda: {name: server.metrics.get(name) for name in expected}, expected)
    metrics = server.metrics
    assert metrics["laredo_store_bytes"] > 0
    assert metrics['laredo_fanout_journal_oldest_age_seconds{table="public.a"}'] >= 0
    assert metrics['laredo_source_lag_bytes{source="pg"}'] >= 0
    assert metrics['laredo_source_lag_seconds{source="pg"}'] >= 0
    assert metrics["process_resident_memory_bytes"] > 0


def _the_terminal_tells(server: Fanout) -> None:
    shown = server.run("status")
    assert shown.returncode == 0, shown.stderr
    assert "public.a" in shown.stdout and "live" in shown.stdout
    listed = json.loads(server.run("clients", "--json").stdout)
    known = {(client["client_id"], client["table"]) for client in listed}
    assert known == {("watcher-1", "public.a"), ("other", "public.b")}
    assert "watcher-1" in server.run("clients").stdout
    _watching_ends_with_ctrl_c(server)


def _watching_ends_with_ctrl_c(server: Fanout) -> None:
    command = [str(BIN / "laredo-fanout"), "clients", "--watch", "--url", server.program.http]
    shown = server.directory / "watched"
    with shown.open("wb") as file:
        watching = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until(lambda: shown.read_bytes().count(b"watcher-1") >= 2, "the client shown twice")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) == 0
    finally:
        watching.kill()
        watching.wait()


async def test_kill_9_and_a_drain_need_no_copy(server: Fanout, database: Database) -> None:
    """Of a serving process, of the main one, and a signal: each client goes on from its place."""
    with database.connect() as owner, started(server):
        async with server.follower("public.a") as a:
            await a.until_keys(keys(*range(1, 101)))
            await _a_serving_process_is_killed(server, owner, a)
            await _the_main_process_is_killed(server, owner, a)
            others = children(server)
            stopping = asyncio.create_task(asyncio.to_thread(server.program.stop))
            await until(lambda: a.goaways)
            assert await stopping == 0, server.program.tail(20000)
            assert all(map(has_ended, others))
            active = owner.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s",
                (f"s_{database.name}",),
            ).fetchone()
            assert active == (False,)
            server.program.start()
            server.program.wait_ready()
            owner.execute("INSERT INTO a VALUES (201, 'x')")
            await a.until_keys(keys(*range(51, 202)))
            assert {each.mode for each in a.handshakes[1:]} == {Mode.DELTA}
        assert server.table("public.a")["copied_rows"] == 0


async def _a_serving_process_is_killed(server: Fanout, owner: Connection, a: States) -> None:
    (pid,) = server.status["fanout"]["pids"]
    os.kill(pid, signal.SIGKILL)
    seen = len(a.positions)
    for number in range(101, 111):
        owner.execute("INSERT INTO a VALUES (%s, 'x')", (number,))
    await a.until_keys(keys(*range(1, 111)))
    assert [h.mode for h in a.handshakes] == [Mode.FULL_SNAPSHOT, Mode.DELTA]
    assert len(a.positions) == seen + 10 and a.positions == sorted(set(a.positions))
    fanout_status = server.status["fanout"]
    assert fanout_status["restarts"] == 1, server.program.tail(20000)
    assert pid not in fanout_status["pids"]
    cut = 'laredo_fanout_disconnects_total{reason="process"}'
    eventually(lambda: server.metrics[cut], 1)
    assert server.table("public.a")["copied_rows"] == 100, "the source was begun anew"


async def _the_main_process_is_killed(server: Fanout, owner: Connection, a: States) -> None:
    others = children(server)
    assert others
    server.program.kill()
    wait_until(lambda: all(map(has_ended, others)), "serving processes gone")
    wait_until(lambda: is_free(server.grpc_port), "its port free")
    owner.execute("INSERT INTO a SELECT i, 'late' FROM generate_series(111, 200) i")
    owner.execute("DELETE FROM a WHERE id <= 50")
    server.program.start()
    server.program.wait_ready()
    await a.until_keys(keys(*range(51, 201)))
    assert server.table("public.a")["copied_rows"] == 0
    eventually(lambda: server.table("public.a")["rows"], 150)


async def test_one_table_s_failure_leaves_the_others_running_and_is_cured(
    tmp_path: Path, database: Database
) -> None:
    with database.connect() as owner:
        owner.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        owner.execute("CREATE TABLE nokey (id int)")
        tables = "{ table = a }, { table = nokey }, { table = nosuch }"
        server = fanout(tmp_path / "s", database, tables)
        with server.program, grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            health, asked = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()

            def status() -> int:
                """The gRPC port's health, as /health/ready has it."""
                found: int = health.Check(asked, wait_for_ready=True, timeout=PATIENCE_S).status
                return found

            wait_until(
                lambda: (
                    {"public.nokey", "public.nosuch"}
                    <= {word.strip(":") for text in server.problems for word in text.split()}
                ),
                "both problems told",
            )
            async with server.follower("public.a") as a:
                owner.execute("INSERT INTO a VALUES (1, 'x')")
                await a.until_keys(keys(1))
            assert not server.program.is_ready() and status() == NOT_SERVING
            assert len(server.problems) == 2
            assert "ADD PRIMARY KEY" in server.table("public.nokey")["error"]
            assert "doesn't exist" in server.table("public.nosuch")["error"]
            # What the problem text says to do cures it, without a restart.
            owner.execute("UPDATE nokey SET id = 1")
            owner.execute("ALTER TABLE nokey ADD PRIMARY KEY (id)")
            owner.execute("CREATE TABLE nosuch (id int PRIMARY KEY)")
            server.program.wait_ready()
            wait_until(lambda: status() == SERVING, "it serves")
            watched = health.Watch(asked, timeout=PATIENCE_S)
            assert next(watched).status == SERVING
            assert server.program.stop(signal.SIGINT) == 0, "it drains as by SIGTERM"
            assert next(watched).status == NOT_SERVING


def test_what_cannot_be_used_ends_it_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        Store.open(tmp_path / "held", max_size=1 << 28),
    ):
        port = other.getsockname()[1]
        taken = f"can't listen on 127.0.0.1:{port} ({{}}): Address already in use; stop what"
        expected = {
            f"fanout.grpc.port={port}": taken.format("fanout.grpc.port"),
            f"http.port={port}": taken.format("http.port"),
            f"state.path={tmp_path}/file/state": f"{tmp_path}/file",
            f"state.path={tmp_path}/held": "in use by another server",
        }
        refused = []
        for number, setting in enumerate(expected):
            program = fanout(tmp_path / f"s{number}", "host=x", TABLES).program
            program.start("--set", setting)
            refused.append(program)
        for program, message in zip(refused, expected.values(), strict=True):
            assert program.wait() == 1
            said = program.tail(20000)
            assert message in said
            assert "Traceback" not in said


@pytest.mark.thorough
async def test_journals_are_pruned_and_snapshots_taken_and_old_ones_go(
    tmp_path: Path, database: Database
) -> None:
    (tmp_path / "file").write_text("")
    tables = f"""
        {{ table = a, targets = [ {{ journal {{ max_entries = 10 }} }} ] }},
        {{ table = b, targets = [ {{ snapshot {{
            interval = 1s, store_config {{ path = "{tmp_path}/file" }} }} }} ] }},
        {{ table = "a/b", targets = [ {{ snapshot {{
            interval = 1s, retention {{ keep_count = 2, max_age = 1h }} }} }} ] }}"""
    with database.connect() as owner:
        for table in ("a", "b", '"a/b"'):
            owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)".encode())
        owner.execute("INSERT INTO b VALUES (1)")
        server = fanout(tmp_path / "s", database, tables)
        with started(server):
            async with server.follower("public.a") as a:
                for number in range(100):
                    owner.execute("INSERT INTO a VALUES (%s, 'x')", (number,))
                await a.until_keys(keys(*range(100)))
            _snapshots_are_taken(server, owner)
            wait_until(
                lambda: server.table("public.a")["journal"]["entries"] <= 10, "the journal pruned"
            )
            assert server.table("public.a")["journal"]["entries"] >= 1
            pruned = "laredo_fanout_journal_pruned_total"
            wait_until(lambda: server.metrics[pruned] >= 90, "what was pruned is counted")
            # One that can't be written is told, and harms nothing.
            wait_until(lambda: server.table("public.b")["snapshots"]["failed"], "the failure told")
            assert "file" in server.table("public.b")["snapshots"]["error"]
            assert server.program.is_ready()


def _snapshots_are_taken(server: Fanout, owner: Connection) -> None:
    directory = server.directory / "state" / "snapshots" / "public.a%2Fb"
    for number in range(4):
        owner.execute('INSERT INTO "a/b" VALUES (%s)', (number,))
        wait_until(
            lambda n=number: (
                (server.table("public.a/b")["snapshots"]["last"] or {}).get("rows") == n + 1
            ),
            f"a snapshot with {number + 1} rows",
        )
    wait_until(lambda: len(list(directory.glob("*.jsonl"))) == 2, "two are kept")
    shown = server.table("public.a/b")["snapshots"]
    assert (shown["error"], shown["failed"]) == (None, 0)
    assert shown["written"] >= 4
    assert server.metrics['laredo_fanout_snapshots_total{table="public.a/b"}'] >= 4
    newest = max(directory.glob("*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    lines = newest.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [0, 1, 2, 3]
