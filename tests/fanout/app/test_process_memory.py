"""Processes that come and go have their memory in the metrics while they are there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from laredo_fanout.app import logs, scrape
from laredo_fanout.app.processes.snapshot_schedule import SnapshotSchedule
from laredo_fanout.catchup.plan import CatchupStatus, SegmentStatus
from laredo_fanout.config import load
from laredo_service.metrics import process_memory
from tests.support.processes import until

WAITING = (sys.executable, "-c", "import sys; sys.stdin.read()")
"""A process that does nothing until its stdin ends, as a snapshot's does."""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    says_so = (*WAITING[:2], f"print(flush=True); {WAITING[2]}")
    with subprocess.Popen(says_so, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        # Only now its memory is what it stays: a process that is just forked has one page.
        started.stdout.readline()
        yield started
        started.terminate()


def shown(processes: dict[str, int]) -> dict[str, float]:
    samples = process_memory("laredo", processes.items()).samples
    return {sample.labels["process"]: sample.value for sample in samples}


def test_one_that_has_ended_is_absent(process: subprocess.Popen[bytes]) -> None:
    figures = shown({"segment-0": process.pid})
    assert figures.keys() == {"main", "segment-0"}
    resident = psutil.Process(process.pid).memory_info().rss
    assert figures["segment-0"] == pytest.approx(resident, rel=0.5)
    process.kill()
    process.wait()
    assert shown({"segment-0": process.pid}).keys() == {"main"}


def test_segments_are_named_by_their_number() -> None:
    def segment(number: int, pid: int | None) -> SegmentStatus:
        return SegmentStatus(number, 1, 2, 1, 1, "decoding", 0, pid)

    split = CatchupStatus(
        "auto", 1, 2, 3, 1, 0, 0, None, 5, 0, (segment(0, None), segment(1, 77), segment(2, 88))
    )
    assert scrape._segment_pids(split) == {"segment-1": 77, "segment-2": 88}
    assert scrape._segment_pids(None) == {}


async def test_a_snapshot_s_process_is_there_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "fanout.conf"
    file.write_text(
        f'state.path = "{tmp_path}/state"\n'
        'sources.pg.connection = "host=127.0.0.1 dbname=none"\n'
        "tables = [{ table = users, targets = [{ snapshot { interval = 1h } }] }]\n"
    )
    schedule = SnapshotSchedule(
        load(file, ()), lambda _: True, logs.LogSettings(logs.JSON), lambda: None, program=WAITING
    )
    assert schedule.named_pids == {}
    schedule.start()
    await until(lambda: schedule.named_pids)
    (pid,) = schedule.named_pids.values()
    assert shown(schedule.named_pids).keys() == {"main", "snapshot"}
    assert psutil.Process(pid).is_running()
    await asyncio.gather(schedule.stop())
    assert schedule.named_pids == {}
