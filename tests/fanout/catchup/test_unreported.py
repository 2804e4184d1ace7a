"""Unreported pieces of a segment's process are deleted: they would take others' room."""

import stat
import sys
import time
from pathlib import Path

import pytest

from laredo_fanout.catchup import segment_run, spool
from laredo_fanout.catchup.plan import Failure, Order, Report, Segment, SpoolPiece
from laredo_fanout.catchup.segment_run import SegmentRun
from laredo_fanout.watchdog import Watchdog
from tests.support.processes import PATIENCE_S

FULL = Report(0, 0, 0, 0, failure=Failure.NO_SPACE, error="No space left on device")


def order(directory: Path) -> Order:
    return Order(
        "", "slot", "publication", 5.0, 60.0, "", 2, 0x10, 0x90, str(directory), 0, 1 << 20
    )


def ends_after(
    monkeypatch: pytest.MonkeyPatch, directory: Path, run: SegmentRun, *reports: Report
) -> None:
    """A process of the segment that says this and ends as one whose disk is full."""
    said = directory.parent / "said"
    said.write_bytes(b"".join(report.to_bytes() for report in (*reports, FULL)))
    program = directory.parent / "program"
    program.write_text(f"#!/bin/sh\ncat {said}\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(segment_run.sys, "executable", str(program))
    run.start(0)
    monkeypatch.setattr(segment_run.sys, "executable", sys.executable)
    deadline = time.monotonic() + PATIENCE_S
    while run.pid is not None:
        assert time.monotonic() < deadline
        run.take_reports()
        time.sleep(0.005)  # poll


def put(directory: Path, segment: int, sizes: dict[int, int]) -> None:
    for number, size in sizes.items():
        spool.path(directory, segment, number).write_bytes(b"x" * size)


def there(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in directory.iterdir()}


def test_the_end_of_a_piece_and_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "spools"
    directory.mkdir()
    put(directory, 2, {0: 50, 1: 900, 2: 70})
    put(directory, 3, {0: 800, 5: 10})
    run = SegmentRun(Segment(2, 0x10, 0x90), order(directory), Watchdog())
    ends_after(monkeypatch, directory, run, Report(0, 50, 0x20, 0x20), Report(1, 40, 0x30, 0x30))
    assert there(directory) == {"0002-000000": 50, "0002-000001": 40, "0003-000000": 800} | {
        "0003-000005": 10
    }
    assert run.failure is Failure.NO_SPACE and [piece.size for piece in run.pieces] == [50, 40]


def test_of_one_that_reported_nothing_whole_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "spools"
    directory.mkdir()
    put(directory, 2, {0: 900})
    run = SegmentRun(Segment(2, 0x10, 0x90), order(directory), Watchdog())
    ends_after(monkeypatch, directory, run, Report(0, 0, 0x10, 0x10))
    assert there(directory) == {}


def test_what_the_plan_has_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a process that ends before its first report."""
    directory = tmp_path / "spools"
    directory.mkdir()
    put(directory, 2, {0: 50, 1: 60, 2: 900})
    pieces = (SpoolPiece(0, 50, 0x20), SpoolPiece(1, 40, 0x30))
    run = SegmentRun(Segment(2, 0x10, 0x90, pieces=pieces), order(directory), Watchdog())
    ends_after(monkeypatch, directory, run)
    assert there(directory) == {"0002-000000": 50, "0002-000001": 40}
