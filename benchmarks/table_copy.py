"""Copy into the durable store, beside what psql needs to throw the same rows away; what it takes
meanwhile of memory, and of WAL that the slot keeps while somebody writes."""

import shutil
import threading
import time
import urllib.request
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import orjson

from benchmarks import bench_table
from benchmarks.figures import Figure
from benchmarks.processes import AnonymousMemory, Program, wait_until
from benchmarks.scenario import SLOT, Scenario

SUBJECT = "copy"
_STATEMENT = f"COPY (SELECT row_to_json(t) FROM {bench_table.NAME} t) TO STDOUT"
_BEGINS, _LIVE, _COMPARED = "copy started", "table live", "re-copy completed"
_MEGABYTE = 1_000_000
_INGEST = "ingest"
_LOOK_EVERY = 0.1
_ROWS_A_WRITE = 50
_WRITE_EVERY = 0.05
_SLOW_S = 40
_KEPT = (
    "SELECT pg_current_wal_lsn() - confirmed_flush_lsn, pg_current_wal_lsn() - restart_lsn,"
    " pg_current_wal_lsn() - '0/0'::pg_lsn"
    " FROM pg_replication_slots WHERE slot_name = %s"
)


@dataclass
class _Copy:
    """``rate`` in rows/s, ``memory`` the most anonymous memory of the ingesting process."""

    rate: float
    memory: float


def run(scenario: Scenario) -> list[Figure]:
    """First starts of the server, by its own log: from the first chunk to the live table."""
    figures = []
    for workers in (1, 4, 2):
        psql = [scenario.psql(_STATEMENT)]
        copied = _copy(scenario, workers)
        scenario.wait_ready()
        psql.append(scenario.psql(_STATEMENT))
        figures.append(
            Figure(
                SUBJECT,
                f"copy into the durable store, {workers} worker{'s' if workers > 1 else ''}",
                copied.rate,
                "rows/s",
                scenario.rows / median(psql),
                "psql COPY of row_to_json",
                target=0.8 if workers == 2 else None,
                target_is_ratio=True,
                note=f"most anonymous memory {copied.memory / _MEGABYTE:.0f} MB",
            )
        )
    figures.append(_again(scenario, figures[-1].value))
    figures.append(_kept_under_writes(scenario))
    return figures


def _again(scenario: Scenario, first: float) -> Figure:
    """Copy the table again while its live state is served."""
    address = f"http://127.0.0.1:{scenario.http_port}/tables/{bench_table.QUALIFIED}/recopy"
    server = scenario.server
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=30):
        found = wait_until(
            lambda: _told(server, _COMPARED),
            timeout=600,
            what="the re-copy's end",
            pause=_LOOK_EVERY,
        )
    seconds = time.monotonic() - began
    assert found[_COMPARED]["differing"] == 0
    return Figure(
        SUBJECT,
        "re-copy beside the live table, 2 workers",
        scenario.rows / seconds,
        "rows/s",
        first,
        "the first copy",
        note=f"the stream waits {found[_COMPARED]['compared_in_s']:.2f} s for the comparison",
    )


def _copy(scenario: Scenario, workers: int, *sets: str) -> _Copy:
    """One copy from nothing."""
    _forget(scenario)
    server = scenario.start_server(f"sources.pg.copy.workers={workers}", *sets)
    memory = AnonymousMemory()
    memory.watch(server.pid, _INGEST)
    try:
        # Its log, because each look at /status would take time from the copy.
        found = wait_until(
            lambda: _told(server, _LIVE), timeout=600, what="the copy's end", pause=_LOOK_EVERY
        )
    finally:
        memory.stop()
    assert found[_LIVE]["rows"] >= scenario.rows
    seconds = (_time(found[_LIVE]) - _time(found[_BEGINS])).total_seconds()
    return _Copy(scenario.rows / seconds, memory.peaks[_INGEST])


def _kept_under_writes(scenario: Scenario) -> Figure:
    """The most that isn't confirmed to the slot while rows are copied and others are updated,
    beside the WAL that was written: it stays flat however long the copy takes. (What the slot keeps
    is more: PostgreSQL moves restart_lsn with records that it writes every 15 seconds.)"""
    stop = threading.Event()
    kept: list[tuple[int, ...]] = []

    def write() -> None:
        with scenario.connect() as database:
            # A load that the stream follows: what is measured is what the copy adds.
            while not stop.wait(_WRITE_EVERY):
                bench_table.update_in_order(database, _ROWS_A_WRITE, scenario.rows, _ROWS_A_WRITE)

    def look() -> None:
        with scenario.connect() as database:
            while not stop.wait(_LOOK_EVERY):
                row = database.execute(_KEPT, (SLOT,)).fetchone()
                if row is not None:
                    kept.append(tuple(int(str(value)) for value in row))

    threads = [threading.Thread(target=each) for each in (write, look)]
    for thread in threads:
        thread.start()
    try:
        # So slowly that checkpoints' and running transactions' records come several times.
        rate = max(1, int(scenario.rows / _SLOW_S))
        _copy(scenario, 2, f"sources.pg.copy.max_rows_per_second={rate}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    written = kept[-1][2] - kept[0][2]
    half = len(kept) // 2
    first, second = (max(size for size, _, _ in part) for part in (kept[:half], kept[half:]))
    return Figure(
        SUBJECT,
        f"WAL that isn't confirmed in a copy of {_SLOW_S} s under writes, at most",
        max(first, second) / _MEGABYTE,
        "MB",
        written / _MEGABYTE,
        "WAL written meanwhile",
        less_is_better=True,
        note=f"first half {first / _MEGABYTE:.1f}, second {second / _MEGABYTE:.1f} MB;"
        f" kept by the slot at most {max(size for _, size, _ in kept) / _MEGABYTE:.0f} MB",
    )


def _forget(scenario: Scenario) -> None:
    """The next start is a first one."""
    scenario.stop_server()
    shutil.rmtree(scenario.directory / "state", ignore_errors=True)
    (scenario.directory / "fanout.log").unlink(missing_ok=True)
    with scenario.connect() as database:
        database.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s",
            (SLOT,),
        )


def _told(server: Program, event: str) -> dict[str, Any] | None:
    """The log's last entries by what they tell, once ``event`` is among them."""
    server.check()
    found = {
        entry["event"]: entry
        for line in server.log.read_bytes().splitlines()
        if line.startswith(b"{") and (entry := orjson.loads(line)).get("event")
    }
    return found if event in found else None


def _time(entry: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(entry["timestamp"])
