"""A backlog of updates into the store, decoded by the ingest or by processes of its own."""

import time
from collections import defaultdict

import psutil

from benchmarks import backlog
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import Scenario
from laredo_model import position as position_

SUBJECT = "decoding"
_WORKERS = (0, 1, 2)
_TARGET, _OF_WORKERS = 0.65, 1
"""Of pg_recvlogical's rate for random keys, with one process."""
_PATIENCE_S = 600
_LOOK_S = 0.05


def run(scenario: Scenario) -> list[Figure]:
    """Each number of processes, keys at random and in order, beside pg_recvlogical; by TCP."""
    figures = []
    for workers in _WORKERS:
        with scenario.by_tcp():
            scenario.start_server(f"sources.pg.decode_workers={workers}")
            for in_order in (False, True):
                figures.append(_one(scenario, workers, in_order=in_order))
    return figures


def _one(scenario: Scenario, workers: int, *, in_order: bool) -> Figure:
    scenario.ready_server()
    keys = "keys in order" if in_order else "random keys"
    what = f"{scenario.updates:,} updates into the durable store, {keys}, decode_workers {workers}"
    with scenario.connect() as database, scenario.paused_server() as server:
        limit = backlog.prepare(scenario, database, keys, in_order=in_order)
        wanted = position_.parse(scenario.wal_position())
        scenario.say(f"draining with decode_workers {workers}")
        before = _seconds(server.pid)
        began = time.time()
        server.go_on()
        wait_until(
            lambda: position_.parse(scenario.place()[0]) >= wanted,
            timeout=_PATIENCE_S,
            what="the backlog's end",
            pause=_LOOK_S,
        )
        seconds = time.time() - began
        after = _seconds(server.pid)
    shares = ", ".join(
        f"{name} {1e6 * (cpu - before.get(name, 0)) / scenario.updates:.1f}"
        for name, cpu in sorted(after.items())
    )
    aimed_at = workers == _OF_WORKERS and not in_order
    return Figure(
        backlog.SUBJECT,
        what,
        scenario.updates / seconds,
        "changes/s",
        limit,
        "pg_recvlogical",
        target=_TARGET if aimed_at else None,
        target_is_ratio=aimed_at,
        note=f"CPU, µs a change: {shares}; load {psutil.getloadavg()[0]:.1f}",
    )


def _seconds(server: int) -> dict[str, float]:
    """CPU seconds so far: of the server's processes, and of PostgreSQL's that send to it."""
    found: dict[str, float] = defaultdict(float)
    process = psutil.Process(server)
    for each in (process, *process.children(recursive=True)):
        found[_name(each, server)] += _cpu(each)
    for each in psutil.process_iter(["cmdline"]):
        if "walsender" in " ".join(each.info["cmdline"] or ()):
            found["walsender"] += _cpu(each)
    return found


def _name(process: psutil.Process, server: int) -> str:
    if process.pid == server:
        return "ingest"
    command = " ".join(process.cmdline())
    return "decoding" if "decode_worker" in command else "serving"


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
