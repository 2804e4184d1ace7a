"""A backlog that the server fell behind by: read through its one slot, and split into segments."""

import time
from typing import NamedTuple

import httpx
import psutil

from benchmarks.catchup_backlogs import Backlog, NullConsumers, backlogs
from benchmarks.figures import Figure
from benchmarks.processes import cpu_seconds, wait_until
from benchmarks.scenario import Scenario
from laredo_model import position

SUBJECT = "catchup"
_SEGMENTS = 2
_PATIENCE_S = 600
_GB = 1e9


class _Measured(NamedTuple):
    """One backlog worked off: bytes of WAL, and CPU seconds of both sides."""

    seconds: float
    wal: int
    ours: float
    theirs: float


def run(scenario: Scenario) -> list[Figure]:
    """Seconds until everything is durable in the store, from when the server goes on.

    The ingest process is stopped (SIGSTOP) while the backlog is made. It is read by the one slot,
    and then by segments.
    """
    figures = []
    for backlog in backlogs(scenario):
        nulls = NullConsumers(scenario)
        alone = _one(scenario, backlog, nulls=nulls)
        with scenario.connect() as database:
            one, two = nulls.measure(database)
        figures.append(_figure(backlog, "one slot", alone, one, "one null consumer"))
        split = _one(scenario, backlog, segments=_SEGMENTS)
        figures.append(_figure(backlog, f"{_SEGMENTS} segments", split, alone.seconds, "one slot"))
        figures.append(
            Figure(
                SUBJECT,
                f"{backlog.name}: two null consumers",
                backlog.changes / two,
                "changes/s",
                backlog.changes / one,
                "one null consumer",
                note="the second one's slot made in the middle",
            )
        )
    scenario.stop_server()
    return figures


def _one(
    scenario: Scenario,
    backlog: Backlog,
    *,
    segments: int = 0,
    nulls: NullConsumers | None = None,
) -> _Measured:
    scenario.stop_server()
    scenario.start_server(
        "sources.pg.catchup.mode=manual",
        f"sources.pg.catchup.max_segments={segments or 1}",
        "sources.pg.catchup.threshold_bytes=50000000",
        "sources.pg.catchup.min_segment_bytes=20000000",
        "sources.pg.catchup.check_interval=100ms",
    )
    with scenario.connect() as database, scenario.paused_server() as server:
        scenario.say(f"preparing {backlog.changes:,} published updates: {backlog.name}")
        start = position.parse(scenario.wal_position())
        if nulls is not None:
            nulls.begin(database)

        def middle() -> None:
            if nulls is not None:
                nulls.middle(database)

        backlog.make(database, scenario, backlog.changes, middle)
        database.execute("CHECKPOINT")
        end = position.parse(scenario.wal_position())
        scenario.say(f"catching up, {(end - start) / _GB:.2f} GB, segments: {segments}")
        postmaster = _postmaster(database.info.backend_pid)
        before = cpu_seconds(server.pid), cpu_seconds(postmaster)
        began = time.perf_counter()
        server.go_on()
        if segments:
            httpx.post(f"http://127.0.0.1:{scenario.http_port}/catchup", trust_env=False)
        wait_until(
            lambda: _is_level(scenario, end), timeout=_PATIENCE_S, what="being level", pause=0.05
        )
        seconds = time.perf_counter() - began
        ours = cpu_seconds(server.pid) - before[0]
        theirs = cpu_seconds(postmaster) - before[1]
    status = scenario.status()
    assert status is not None
    catchup = status["sources"]["pg"]["catchup"]
    if segments and not catchup["plans"]:
        raise RuntimeError(f"nothing was split: {catchup}")
    return _Measured(seconds, end - start, ours, theirs)


def _figure(backlog: Backlog, what: str, found: _Measured, limit: float, limit_of: str) -> Figure:
    a_change = 1e6 / backlog.changes
    return Figure(
        SUBJECT,
        f"{backlog.name}, {found.wal / _GB:.2f} GB: {what}",
        backlog.changes / found.seconds,
        "changes/s",
        backlog.changes / limit,
        limit_of,
        note=f"until durable in the store, {found.seconds:.1f} s. CPU: ours"
        f" {a_change * found.ours:.1f}, PostgreSQL's {a_change * found.theirs:.1f} µs a published"
        " change",
    )


def _is_level(scenario: Scenario, end: int) -> bool:
    status = scenario.status()
    if status is None:
        return False
    source = status["sources"]["pg"]
    return position.parse(source["position"]) >= end and source["phase"] == "streaming"


def _postmaster(backend: int) -> int:
    return psutil.Process(backend).ppid()
