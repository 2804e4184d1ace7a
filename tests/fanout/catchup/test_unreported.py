"""Unreported pieces of a segment's process are deleted: they would take others' room."""

import stat
import sys
import time
from pathlib import Path

import pytest

from laredo_fanout.catchup import segment_run
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


@pytest.mark.parametrize(
    ("there", "planned", "reports", "left"),
    [
        ([50, 900, 70], (), (Report(0, 50, 0x20, 0x20), Report(1, 40, 0x30, 0x30)), [50, 40]),
        ([900], (), (Report(0, 0, 0x10, 0x10),), []),
        ([50, 60, 900], (SpoolPiece(0, 50, 0x20), SpoolPiece(1, 40, 0x30)), (), [50, 40]),
    ],
    ids=["reported", "nothing whole is reported", "what the plan has, before the first report"],
)
def test_the_end_of_a_piece_and_what_comes_after_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: list[int],
    planned: tuple[SpoolPiece, ...],
    reports: tuple[Report, ...],
    *,
    left: list[int],
) -> None:
    directory = tmp_path / "spools"
    directory.mkdir()
    others = {"0003-000000": 800, "0003-000005": 10}
    sizes = {f"0002-{number:06}": size for number, size in enumerate(there)}
    for name, size in (others | sizes).items():
        (directory / name).write_bytes(b"x" * size)
    run = SegmentRun(Segment(2, 0x10, 0x90, pieces=planned), order(directory), Watchdog())
    ends_after(monkeypatch, directory, run, *reports)
    stays = {f"0002-{number:06}": size for number, size in enumerate(left)}
    found = {file.name: file.stat().st_size for file in directory.iterdir()}
    assert found == others | stays
    assert run.failure is Failure.NO_SPACE and [piece.size for piece in run.pieces] == left
