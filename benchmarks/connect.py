"""Hundreds and thousands of Connect clients at 20 commits a second."""

import time

import psutil

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import anonymous_bytes, free_port, wait_until
from benchmarks.scenario import Scenario, percentile, told
from laredo_model import position as position_

SUBJECT = "connect"
_PER_SECOND = 20
_CASES = ((500, 30.0), (2000, 60.0), (5000, 200.0))
_MOST_CPU_US = 12.0
_LEAST_RATE = 100_000
_MOST_MEMORY_MB = 200.0


def run(scenario: Scenario) -> list[Figure]:
    """p95 from commit to read, the serving processes' CPU a message, and their memory."""
    port = free_port()
    scenario.stop_server()
    most = max(clients for clients, _ in _CASES) + 100
    scenario.start_server(
        f"fanout.connect.port={port}",
        f"fanout.grpc.max_clients={most}",
        f"fanout.grpc.max_clients_per_identity={most}",
        "fanout.grpc.workers=1",
        # What a client was sent is told by the number of its bytes: they must be changes' alone.
        heartbeat="1h",
    )
    figures = [*_as_fast_as_it_takes_them(scenario, port)]
    for clients, target in _CASES:
        figures += _case(scenario, port, clients, target)
    scenario.stop_server()
    return figures


def _as_fast_as_it_takes_them(scenario: Scenario, port: int) -> list[Figure]:
    """A snapshot, and a backlog that the journal has, to one client of the base protocol."""
    position = _after_a_change(scenario)
    updates = scenario.updates
    with scenario.connect() as database:
        bench_table.update_in_order(database, updates, scenario.rows, 1000)
    end = scenario.wal_position()
    wait_until(lambda: _has(scenario, end), timeout=600, what="the updates' arrival")
    return [
        _one_reader(scenario, port, f"snapshot of {scenario.rows:,} rows", "", scenario.rows),
        _one_reader(scenario, port, f"backlog of {updates:,} updates", position, updates),
    ]


def _has(scenario: Scenario, end: str) -> bool:
    return position_.parse(scenario.place()[0]) >= position_.parse(end)


def _one_reader(scenario: Scenario, port: int, what: str, position: str, messages: int) -> Figure:
    arguments = ["--port", port, "--table", bench_table.QUALIFIED, "--messages", messages]
    if position:
        arguments += ["--position", position]
    with scenario.running("connect_reader", *arguments, what="connect reader") as reader:
        found = told(reader)
    return Figure(
        SUBJECT,
        f"{what} to one base-protocol client",
        found["messages"] / found["seconds"],
        "rows/s",
        target=_LEAST_RATE,
        note=f"the client took {1e6 * found['cpu_seconds'] / found['messages']:.1f} µs a message",
    )


def _case(scenario: Scenario, port: int, clients: int, target: float) -> list[Figure]:
    position = _after_a_change(scenario)
    seconds = scenario.seconds + 2
    with scenario.running(
        "connect_load",
        *("--port", port, "--table", bench_table.QUALIFIED, "--position", position),
        *("--clients", clients, "--seconds", seconds + 1),
        what="load generator",
    ) as load:
        told(load)
        serving = _serving(scenario)
        memory = sum(anonymous_bytes(process.pid) or 0 for process in serving) / 1e6
        before = _cpu_seconds(serving)
        _commit(scenario, seconds)
        time.sleep(0.5)
        used = _cpu_seconds(serving) - before
        found = told(load)
    messages = clients * round(seconds * _PER_SECOND)
    note = (
        f"p50 {percentile(found['latencies'], 0.5):.1f}, max {max(found['latencies']):.1f} ms;"
        f" {messages / seconds:,.0f} messages/s; the generator took"
        f" {1e6 * found['cpu_seconds'] / found['reads']:.1f} µs a read,"
        f" {100 * found['cpu_seconds'] / found['seconds']:.0f} % of a core"
    )
    return [
        Figure(
            SUBJECT,
            f"commit to read, {clients:,} clients, p95",
            percentile(found["latencies"], 0.95),
            "ms",
            target=target,
            less_is_better=True,
            note=note,
        ),
        Figure(
            SUBJECT,
            f"serving CPU a message, {clients:,} clients",
            1e6 * used / messages,
            "µs",
            target=_MOST_CPU_US,
            less_is_better=True,
            note=f"{100 * used / seconds:.0f} % of a core",
        ),
        Figure(
            SUBJECT,
            f"anonymous memory of the serving process, {clients:,} idle clients",
            memory,
            "MB",
            target=_MOST_MEMORY_MB,
            less_is_better=True,
        ),
    ]


def _after_a_change(scenario: Scenario) -> str:
    """A position from which a client of the base protocol may resume: the journal has an entry."""
    copied, _ = scenario.place()
    _commit(scenario, 1 / _PER_SECOND)
    wait_until(lambda: scenario.place()[0] != copied, timeout=60, what="the change's arrival")
    return scenario.place()[0]


def _serving(scenario: Scenario) -> list[psutil.Process]:
    children = psutil.Process(scenario.server.pid).children(recursive=True)
    return [child for child in children if "serving_process" in " ".join(child.cmdline())]


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (each.cpu_times() for each in processes))


def _commit(scenario: Scenario, seconds: float) -> None:
    with scenario.connect() as database:
        began = time.perf_counter()
        for number in range(round(seconds * _PER_SECOND)):
            time.sleep(max(0.0, began + number / _PER_SECOND - time.perf_counter()))
            database.execute(
                f"UPDATE {bench_table.NAME} SET n = n + 1, updated = now() WHERE id = %s",
                (number % scenario.rows + 1,),
            )
