"""A prepared backlog of updates: slot -> durable store, and on to one batch client."""

import subprocess
import time

import psycopg

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import Scenario, told
from laredo_model import position as position_

SUBJECT = "backlog"
_LIMIT_SLOT = "bench_recvlogical"
_SIZE = 1000
_PATIENCE_S = 600
_LOOK_S = 0.05


def run(scenario: Scenario) -> list[Figure]:
    """Keys in order, then keys at random; into the store alone, then with a client.

    Each with PostgreSQL connected by TCP, as across a network, and by its unix socket, whose
    buffer is far smaller: it is full within 1.5 ms, and PostgreSQL then waits for its reader.
    """
    with scenario.by_tcp():
        found = _all(scenario, "TCP")
    return found + _all(scenario, "unix socket")


def _all(scenario: Scenario, way: str) -> list[Figure]:
    """The ingest process stands still (SIGSTOP) while the updates are made, so that no start of a
    program is in the figure."""
    return [
        _into_store(scenario, f"keys in order, {way}", 0.9, in_order=True),
        _into_store(scenario, f"random keys, {way}", 0.5, in_order=False),
        _to_client(scenario, f"keys in order, {way}", 0.7, in_order=True),
        _to_client(scenario, f"random keys, {way}", 0.4, in_order=False),
    ]


def _into_store(scenario: Scenario, what: str, target: float, *, in_order: bool) -> Figure:
    scenario.ready_server()
    with scenario.connect() as database, scenario.paused_server() as server:
        limit, end = _prepare(scenario, database, what, in_order=in_order)
        wanted = position_.parse(end)
        scenario.say("draining with laredo-fanout")
        began = time.time()
        server.go_on()
        wait_until(
            lambda: position_.parse(scenario.place()[0]) >= wanted,
            timeout=_PATIENCE_S,
            what="the backlog's end",
            pause=_LOOK_S,
        )
        seconds = time.time() - began
    return _figure(
        scenario.updates / seconds,
        limit,
        f"{scenario.updates:,} updates into the durable store, {what}",
        target,
        "from the ingest's first look to the store's position",
    )


def _to_client(scenario: Scenario, what: str, target: float, *, in_order: bool) -> Figure:
    position, history = scenario.place()
    made = scenario.updates
    arguments = ("follow", "--server", scenario.address, "--table", bench_table.QUALIFIED)
    place = ("--position", position, "--history", history, "--changes", made)
    with (
        scenario.connect() as database,
        scenario.running("counting_client", *arguments, *place, what="client, counting") as client,
    ):
        assert told(client)["event"] == "handshake"
        with scenario.paused_server() as server:
            limit, _ = _prepare(scenario, database, what, in_order=in_order)
            scenario.say("draining with laredo-fanout, to a client")
            began = time.time()
            server.go_on()
            assert told(client)["event"] == "first"
            seconds = told(client)["at"] - began
    return _figure(
        made / seconds,
        limit,
        f"{made:,} updates to one client, {what}",
        target,
        "from the ingest's first look to the last change at the client",
    )


def _prepare(
    scenario: Scenario,
    database: "psycopg.Connection[tuple[object, ...]]",
    what: str,
    *,
    in_order: bool,
) -> tuple[float, str]:
    """Make the updates; gives the rate at which pg_recvlogical drains them, and where they end.

    WAL that concerns no table follows them (a checkpoint's): its position reaches the server by the
    next keepalive alone, seconds later.
    """
    made = scenario.updates
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_LIMIT_SLOT,))
    scenario.say(f"preparing {made:,} updates, {what}")
    update = bench_table.update_in_order if in_order else bench_table.update_at_random
    update(database, made, scenario.rows, _SIZE)
    end = scenario.wal_position()
    database.execute("CHECKPOINT")
    scenario.say("draining with pg_recvlogical")
    rate = made / _recvlogical(scenario)
    database.execute("SELECT pg_drop_replication_slot(%s)", (_LIMIT_SLOT,))
    return rate, end


def _figure(value: float, limit: float, what: str, target: float, note: str) -> Figure:
    return Figure(
        SUBJECT,
        what,
        value,
        "changes/s",
        limit,
        "pg_recvlogical",
        target=target,
        target_is_ratio=True,
        note=note,
    )


def _recvlogical(scenario: Scenario) -> float:
    began = time.perf_counter()
    until = f"--endpos={scenario.wal_position()}"
    subprocess.run(scenario.recvlogical(_LIMIT_SLOT, until, "--file=/dev/null"), check=True)
    return time.perf_counter() - began
