"""Hundreds and thousands of Connect clients at 20 commits a second."""

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.many_clients import Load, after_a_change, case
from benchmarks.processes import free_port, wait_until
from benchmarks.scenario import Scenario, told
from laredo_model import position as position_

SUBJECT = "connect"
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
        # The load generator tells changes apart by the number of bytes: nothing else may come.
        heartbeat="1h",
    )
    figures = [*_as_fast_as_it_takes_them(scenario, port)]
    for clients, target in _CASES:
        load = Load("connect_load", port, clients)
        figures += case(
            scenario,
            SUBJECT,
            load,
            latency=target,
            cpu=_MOST_CPU_US,
            most_memory=_MOST_MEMORY_MB,
        )
    scenario.stop_server()
    return figures


def _as_fast_as_it_takes_them(scenario: Scenario, port: int) -> list[Figure]:
    """A snapshot, and a backlog that the journal has, to one client of the base protocol."""
    position = after_a_change(scenario)
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
