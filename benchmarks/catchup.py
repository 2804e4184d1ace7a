"""A backlog that the server fell behind by: read through its one slot, and split into segments."""

import time

import psutil

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import Scenario
from laredo_model import position

SUBJECT = "catchup"
_SIZE = 1000
_BACKLOGS = 2
"""Of so many times the other subjects' updates."""
_SEVERAL = (2, 4)


def run(scenario: Scenario) -> list[Figure]:
    """Seconds until everything is durable in the store, from when the server goes on.

    The ingest process stands still (SIGSTOP) while the updates are made; keys at random.
    """
    alone, cost = _one(scenario, 1)
    figures = [_figure(scenario, "through the one slot", alone, cost, None)]
    for segments in _SEVERAL:
        rate, cost = _one(scenario, segments)
        figures.append(_figure(scenario, f"{segments} segments", rate, cost, alone))
    scenario.stop_server()
    return figures


def _one(scenario: Scenario, segments: int) -> tuple[float, str]:
    made = _BACKLOGS * scenario.updates
    scenario.stop_server()
    scenario.start_server(
        f"sources.pg.catchup.mode={'auto' if segments > 1 else 'off'}",
        f"sources.pg.catchup.max_segments={segments}",
        "sources.pg.catchup.threshold_bytes=50000000",
        "sources.pg.catchup.min_segment_bytes=20000000",
        "sources.pg.catchup.check_interval=100ms",
    )
    with scenario.connect() as database, scenario.paused_server() as server:
        scenario.say(f"preparing {made:,} updates, random keys")
        bench_table.update_at_random(database, made, scenario.rows, _SIZE)
        database.execute("CHECKPOINT")
        end = position.parse(scenario.wal_position())
        scenario.say(f"catching up, segments: {segments}")
        postmaster = _postmaster(database.info.backend_pid)
        before = _seconds(server.pid), _seconds(postmaster)
        began = time.perf_counter()
        server.go_on()
        wait_until(lambda: _is_level(scenario, end), timeout=600, what="being level", pause=0.05)
        seconds = time.perf_counter() - began
        ours, theirs = (
            after - earlier
            for after, earlier in zip(
                (_seconds(server.pid), _seconds(postmaster)), before, strict=True
            )
        )
    used = f"CPU: ours {1e6 * ours / made:.1f}, PostgreSQL's {1e6 * theirs / made:.1f} µs a change"
    return made / seconds, used


def _figure(scenario: Scenario, what: str, rate: float, cost: str, alone: float | None) -> Figure:
    return Figure(
        SUBJECT,
        f"{_BACKLOGS * scenario.updates:,} updates behind, {what}",
        rate,
        "changes/s",
        alone,
        "" if alone is None else "the one slot",
        target=None if alone is None else 1.0,
        target_is_ratio=alone is not None,
        note=f"until durable in the store. {cost}",
    )


def _is_level(scenario: Scenario, end: int) -> bool:
    status = scenario.status()
    if status is None:
        return False
    source = status["sources"]["pg"]
    return position.parse(source["position"]) >= end and source["phase"] == "streaming"


def _postmaster(backend: int) -> int:
    return psutil.Process(backend).ppid()


def _seconds(pid: int) -> float:
    """CPU seconds of a process and its children, ended ones too."""
    process = psutil.Process(pid)
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
