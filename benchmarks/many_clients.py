"""Many clients at 20 commits a second: latency, and what they cost the serving process."""

import time
from dataclasses import dataclass

import psutil

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.latency import PER_SECOND, commit
from benchmarks.processes import anonymous_bytes, wait_until
from benchmarks.scenario import Scenario, percentile, told


@dataclass(frozen=True)
class Load:
    """The module that is the load generator, where it connects to, and as how many clients."""

    module: str
    port: int
    clients: int


def case(
    scenario: Scenario,
    subject: str,
    load: Load,
    *,
    latency: float,
    cpu: float | None = None,
    most_memory: float | None = None,
) -> list[Figure]:
    """p95 from commit to read, the serving processes' CPU a message, and their memory.

    The targets are in milliseconds, microseconds and MB.
    """
    clients = load.clients
    position = after_a_change(scenario)
    seconds = scenario.seconds + 2
    commits = round(seconds * PER_SECOND)
    with scenario.running(
        load.module,
        *("--port", load.port, "--table", bench_table.QUALIFIED, "--position", position),
        *("--clients", clients, "--seconds", seconds + 1),
        what="load generator",
    ) as generator:
        told(generator)
        serving = _serving(scenario)
        memory = sum(anonymous_bytes(process.pid) or 0 for process in serving) / 1e6
        before = _cpu_seconds(serving)
        commit(scenario, commits)
        time.sleep(0.5)
        used = _cpu_seconds(serving) - before
        found = told(generator)
    messages = clients * commits
    note = (
        f"p50 {percentile(found['latencies'], 0.5):.1f}, max {max(found['latencies']):.1f} ms;"
        f" {messages / seconds:,.0f} messages/s; the generator took"
        f" {1e6 * found['cpu_seconds'] / found['reads']:.1f} µs a read,"
        f" {100 * found['cpu_seconds'] / found['seconds']:.0f} % of a core"
    )
    return [
        Figure(
            subject,
            f"commit to read, {clients:,} clients, p95",
            percentile(found["latencies"], 0.95),
            "ms",
            target=latency,
            less_is_better=True,
            note=note,
        ),
        Figure(
            subject,
            f"serving CPU a message, {clients:,} clients",
            1e6 * used / messages,
            "µs",
            target=cpu,
            less_is_better=True,
            note=f"{100 * used / seconds:.0f} % of a core",
        ),
        Figure(
            subject,
            f"anonymous memory of the serving process, {clients:,} idle clients",
            memory,
            "MB",
            target=most_memory,
            less_is_better=True,
        ),
    ]


def after_a_change(scenario: Scenario) -> str:
    """A position from which a client of the base protocol may resume: the journal has an entry."""
    copied, _ = scenario.place()
    commit(scenario, 1)
    wait_until(lambda: scenario.place()[0] != copied, timeout=60, what="the change's arrival")
    return scenario.place()[0]


def _serving(scenario: Scenario) -> list[psutil.Process]:
    children = psutil.Process(scenario.server.pid).children(recursive=True)
    return [child for child in children if "serving_process" in " ".join(child.cmdline())]


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (each.cpu_times() for each in processes))
