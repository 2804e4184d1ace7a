"""A segment waits for a free slot or for space, and isn't taken for a silent one while paused."""

import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from laredo_fanout.batch.status import Counters
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.catchup import segment_process, segment_run
from laredo_fanout.catchup.plan import CatchupOptions, CatchupPlan, Failure, Order, Report, bounded
from laredo_fanout.catchup.release import Release
from laredo_fanout.catchup.segment_process import SegmentDecoder
from laredo_fanout.catchup.segment_stream import SegmentStream
from laredo_fanout.postgres.connections import SourceUnavailable
from laredo_fanout.store.writer import Store
from laredo_fanout.watchdog import Watchdog
from laredo_service.retry import Backoff
from tests.support.processes import PATIENCE_S

_NO_SLOT = Report(0, 0, 0, 0, failure=Failure.NO_ROOM, error="all replication slots are in use")
_NO_SPACE = Report(0, 0, 0, 0, failure=Failure.NO_SPACE, error="No space left on device")
_SEGMENTS = 10
_RETRIES = 8


def order(directory: Path) -> Order:
    return Order("", "slot", "publication", 5.0, 60.0, "", 0, 0x10, 0x90, str(directory), 0, 1000)


def _program(directory: Path, failed: Report, decoding: str) -> Path:
    """The segments ``decoding`` decode for ever; any other one reports ``failed``, and ends a bit
    later.

    The report is read before the process ends, as that of a Python process is.
    """
    report = directory / "report"
    report.write_bytes(failed.to_bytes())
    program = directory / "program"
    program.write_text(
        "#!/bin/sh\nread -r order\n"
        f"case $order in *'\"segment\":'[{decoding}]*) exec sleep 600;; esac\n"
        f"cat {report}\nsleep 0.1\nexit 1\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@contextmanager
def _release(directory: Path) -> Iterator[Release]:
    with Store.open(directory / "store", max_size=1 << 30) as store:
        release = Release(
            CatchupOptions(directory / "spools"),
            order(directory / "spools" / "plan"),
            CatchupPlan("0" * 16, "here", bounded([0x10 * n for n in range(1, _SEGMENTS + 1)])),
            WriteBatch(store, lambda _: None, 1.0, Counters()),
            store.position,
            may_end=lambda _: False,
            watchdog=Watchdog(),
        )
        try:
            yield release
        finally:
            release.close()


@pytest.mark.parametrize(("failed", "decoding"), [(_NO_SLOT, "0"), (_NO_SPACE, "1-9")])
def test_a_segment_waits_for_what_others_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: Report, decoding: str
) -> None:
    """However often a later one finds no slot, and the head no space, of which each of the later
    ones makes some."""
    program = _program(tmp_path, failed, decoding)
    monkeypatch.setattr(segment_run.sys, "executable", str(program))
    monkeypatch.setattr(segment_run, "_NO_ROOM_RETRY", Backoff(initial=0.01, maximum=0.01))
    monkeypatch.setattr(segment_run, "_RETRY", Backoff(initial=0.01, maximum=0.01))
    deadline = time.monotonic() + PATIENCE_S
    with _release(tmp_path) as release:
        poll = select.poll()
        poll.register(release.fileno(), select.POLLIN)
        while max(run.restarts for run in release.runs) < _RETRIES and release.trouble is None:
            assert time.monotonic() < deadline
            poll.poll(20)
            release.read_available()
        assert release.trouble is None


class _Quiet:
    """A stream on which nothing comes."""

    local = True

    def read_available(self) -> int:
        return 0

    def get(self, _: int) -> tuple[int, bytes]:
        return 0, b""

    def confirm(self, position: int, *, reply: bool = False) -> None:
        """Nobody hears it."""


class _Clock:
    """The time that a segment's process sees."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_a_pause_is_no_silence_of_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reports = _Clock(), list[Report]()
    monkeypatch.setattr(segment_process, "time", clock)
    stream = cast("SegmentStream", _Quiet())
    segment = SegmentDecoder(order(tmp_path), stream, reports.append)
    segment.paused = True
    for _ in range(3):
        clock.now += order(tmp_path).receive_timeout
        segment.turn()
    segment.paused = False
    clock.now += 1.0
    segment.turn()
    clock.now += order(tmp_path).receive_timeout
    with pytest.raises(SourceUnavailable, match="PostgreSQL sent nothing for 61 s"):
        segment.turn()
