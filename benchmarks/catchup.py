"""A backlog that the server fell behind by: read through its one slot, split into segments, and
as fall-behind mode chooses by itself."""

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

from benchmarks import backlogs, bench_table
from benchmarks.backlogs import Made
from benchmarks.figures import Figure
from benchmarks.processes import wait_until
from benchmarks.scenario import SLOT, Scenario
from laredo_model import position

SUBJECT = "catchup"
PARTS = ("sparse", "spilled", "dense")
_KEPT_SLOT = "laredo_bench_kept"
_WAL_BYTES = 4_000_000_000
_BACKLOGS = 2
"""The dense backlog has so many times the other subjects' updates."""
_SPLIT_AIM = 1.6
_AWAY_AIM = 0.95
_PATIENCE_S = 600
_ENDS = {"off": "through the one slot", "manual": "2 segments", "auto": "mode = auto"}


class Run(NamedTuple):
    """One time that a backlog was read."""

    rate: float
    note: str


def run(scenario: Scenario) -> list[Figure]:
    """Seconds from the ingest's first look until the slot's own stream has brought a change that
    was committed when the backlog was durable in the store.

    The very same backlog each time: slot and store are put back to where it begins.
    """
    parts: dict[str, Callable[[], list[Figure]]] = {
        "sparse": lambda: _part(scenario, backlogs.sparse(_WAL_BYTES)),
        "spilled": lambda: _part(scenario, backlogs.spilled(_WAL_BYTES)),
        "dense": lambda: _dense(scenario),
    }
    chosen = [name for name in parts if not scenario.parts or name in scenario.parts]
    return [figure for name in chosen for figure in parts[name]()]


def _part(scenario: Scenario, shape: backlogs.Shape) -> list[Figure]:
    backlog = _Backlog(
        scenario, lambda database: backlogs.make(database, shape, scenario.rows, scenario.say)
    )
    runs = backlog.read("off", "manual", "auto")
    return _figures(shape.name, backlog.made, runs, {"manual": _SPLIT_AIM, "auto": _SPLIT_AIM})


def _dense(scenario: Scenario) -> list[Figure]:
    updates = _BACKLOGS * scenario.updates
    backlog = _Backlog(
        scenario, lambda database: backlogs.make_dense(database, updates, scenario.rows)
    )
    runs = backlog.read("off", "manual", "auto")
    return _figures("random keys", backlog.made, runs, {"auto": _AWAY_AIM})


def _figures(name: str, made: Made, runs: dict[str, Run], aims: dict[str, float]) -> list[Figure]:
    alone = runs["off"].rate
    what = (
        f"{made.wal_bytes / 1e9:.1f} GB behind, {100 * made.published_share:.0f} % of it published"
        f" ({made.changes:,} changes), {name}"
    )
    return [
        Figure(
            SUBJECT,
            f"{what}, {_ENDS[mode]}",
            run.rate,
            "changes/s",
            None if mode == "off" else alone,
            "" if mode == "off" else "the one slot",
            target=aims.get(mode),
            target_is_ratio=mode in aims,
            note=run.note,
        )
        for mode, run in runs.items()
    ]


class _Backlog:
    """A backlog with the slot and the store as they are where it begins."""

    def __init__(self, scenario: Scenario, make: Callable[[backlogs.Database], Made]) -> None:
        self._scenario = scenario
        scenario.stop_server()
        scenario.start_server("sources.pg.catchup.mode=off")
        scenario.wait_ready()
        scenario.stop_server()
        self._state = scenario.directory / "state"
        self._kept = scenario.directory / "kept"
        _copy(self._state, self._kept)
        with scenario.connect() as database:
            with suppress(Exception):
                database.execute("SELECT pg_drop_replication_slot(%s)", (_KEPT_SLOT,))
            self._copy_slot(database, SLOT, _KEPT_SLOT)
            scenario.say("making a backlog")
            self.made = make(database)
            self._end = position.parse(scenario.wal_position())

    def read(self, *modes: str) -> dict[str, Run]:
        """Catch up with it in each of the modes."""
        runs = {mode: self._read(mode) for mode in modes}
        with self._scenario.connect() as database:
            database.execute("SELECT pg_drop_replication_slot(%s)", (_KEPT_SLOT,))
        return runs

    def _read(self, mode: str) -> Run:
        scenario = self._scenario
        scenario.stop_server()
        with scenario.connect() as database:
            database.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
            self._copy_slot(database, _KEPT_SLOT, SLOT)
            _copy(self._kept, self._state)
            scenario.say(f"catching up, {_ENDS[mode]}")
            server = scenario.start_server(
                f"sources.pg.catchup.mode={mode}",
                *(("sources.pg.catchup.max_segments=2",) if mode == "manual" else ()),
                "sources.pg.catchup.threshold_bytes=100000000",
            )
            postmaster = psutil.Process(database.info.backend_pid).ppid()
            if mode == "manual":
                self._wait(lambda _: self._ask())
            self._wait(lambda source: source["phase"] in ("streaming", "catching up"))
            began = time.perf_counter()
            before = _seconds(server.pid), _seconds(postmaster)
            self._wait(self._is_level)
            level = time.perf_counter() - began
            database.execute(f"UPDATE {bench_table.NAME} SET n = n + 1 WHERE id = 1")
            last = position.parse(scenario.wal_position())
            self._wait(lambda source: position.parse(source["position"]) >= last)
            seconds = time.perf_counter() - began
            used = _seconds(server.pid) - before[0], _seconds(postmaster) - before[1]
            trouble = self._source()["catchup"]["trouble"] if mode != "off" else None
            plans = self._source()["catchup"]["plans"] if mode != "off" else 0
        ours, theirs = (1e6 * each / self.made.changes for each in used)
        note = (
            f"{seconds:.1f} s ({seconds - level:.1f} of it the slot's own stream's begin), CPU a"
            f" change: ours {ours:.1f}, PostgreSQL's {theirs:.1f} µs; backlogs split: {plans}"
            + (f"; {trouble}" if trouble else "")
        )
        scenario.say(note)
        return Run(self.made.changes / seconds, note)

    def _wait(self, condition: Callable[[dict[str, Any]], object]) -> None:
        def holds() -> object:
            source = self._source()
            return bool(source) and condition(source)

        wait_until(holds, timeout=_PATIENCE_S, what="catching up", pause=0.1)

    def _source(self) -> dict[str, Any]:
        status = self._scenario.status()
        found: dict[str, Any] = {} if status is None else status["sources"].get("pg", {})
        return found

    def _is_level(self, source: dict[str, Any]) -> bool:
        return position.parse(source["position"]) >= self._end and source["phase"] == "streaming"

    def _ask(self) -> bool:
        url = f"http://127.0.0.1:{self._scenario.http_port}/catchup"
        return httpx.post(url, timeout=5, trust_env=False).is_success

    @staticmethod
    def _copy_slot(database: backlogs.Database, name: str, copy: str) -> None:
        database.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (name, copy))


def _copy(directory: Path, to: Path) -> None:
    """Copy a store: its file is mostly holes."""
    shutil.rmtree(to, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", directory, to], check=True)


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
