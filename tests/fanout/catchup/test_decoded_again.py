"""A process that ended is followed by one that goes on where it was, not by one that begins anew.

What is decoded twice is passed over, so no row is wrong by it: only how much was decoded
tells.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_fanout.catchup.plan import bounded
from laredo_fanout.catchup.release import Release
from laredo_fanout.catchup.segment_run import SegmentRun
from laredo_fanout.postgres import pgoutput
from tests.fanout.catchup.overlapping import Overlapping
from tests.fanout.catchup.reading import SegmentedReading, normal, prepare, single, start_of
from tests.support.postgres import Database

_ROWS = (pgoutput.INSERT, pgoutput.UPDATE, pgoutput.DELETE)


def _rows_from(messages: list[bytes], position: int) -> int:
    """Number of rows in transactions whose commit record begins at or after ``position``."""
    rows, counts = 0, False
    for each in messages:
        if each[0] == pgoutput.BEGIN:
            counts = int.from_bytes(each[1:9], "big") >= position
        rows += counts and each[0] in _ROWS
    return rows


class _KilledInTheMiddle:
    """Kills the only segment's process once it has told of all that there is; then more comes."""

    def __init__(self, reading: SegmentedReading, more: Callable[[], None]) -> None:
        self.left_at = self.changes = 0
        self._reading = reading
        self._more = more
        # Its end isn't to be seen before there is more.
        self._first_end, reading.end = reading.end, 1 << 63

    def __call__(self, release: Release) -> bool:
        run = release.runs[0]
        self.changes = run.changes
        if not self.left_at and run.pid is not None and run.reached >= self._first_end:
            os.kill(run.pid, signal.SIGKILL)
            self.left_at = run.position
            self._more()
            self._reading.end = self._reading.database.position()
        return False


@pytest.mark.thorough
def test_after_a_kill_decoding_goes_on_where_it_was(database: Database, tmp_path: Path) -> None:
    prepare(database)
    with Overlapping(database, 8) as work:
        work.run(200)
        reading = SegmentedReading(database, tmp_path)
        reading.begin(bounded([start_of(database)]))
        killed = _KilledInTheMiddle(reading, lambda: work.run(100))
        assert reading.session(killed)
    truth = single(database)
    assert normal(reading.messages) == truth
    left = _rows_from(truth, killed.left_at)
    assert 0 < left < _rows_from(truth, 0)
    assert killed.changes == left


class _Spooled:
    """Ends a life when all of the first segment and, of the second, what there is lies in spools
    as far as a power loss would leave it."""

    def __init__(self, reading: SegmentedReading) -> None:
        self._reading = reading

    def __call__(self, release: Release) -> bool:
        first, second = release.runs
        told = second.segment.pieces == tuple(second.pieces)
        return first.done and second.reached >= self._reading.end and told and self._reading.kept


def test_after_a_restart_nothing_that_is_spooled_is_decoded_again(
    database: Database, tmp_path: Path
) -> None:
    prepare(database)
    with Overlapping(database, 9) as work:
        work.run(300)
    truth = single(database)
    reading = SegmentedReading(database, tmp_path)
    start, end = start_of(database), database.position()
    reading.begin(bounded([start, start + (end - start) // 2]))
    reading.commits_a_turn = 0
    assert not reading.session(_Spooled(reading))
    reading.commits_a_turn = 5
    seen: list[SegmentRun] = []

    def on_turn(release: Release) -> bool:
        seen[:] = release.runs
        assert release.runs[0].pid is None, "the first segment is decoded again"
        return False

    assert reading.session(on_turn)
    assert normal(reading.messages) == truth
    assert [run.changes for run in seen] == [0, 0]
