"""Any cut of a backlog gives what one slot gives, whoever is killed meanwhile."""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from laredo_fanout.catchup.plan import Segment, bounded
from laredo_fanout.catchup.release import Release
from laredo_fanout.postgres import pgoutput
from laredo_fanout.postgres.connections import SourceUnavailable
from tests.fanout.catchup.overlapping import Overlapping
from tests.fanout.catchup.reading import (
    SegmentedReading,
    normal,
    prepare,
    single,
    slot_of,
    start_of,
)
from tests.support import drawn
from tests.support.postgres import Database, on_versions


def _backlog(database: Database, seed: int, steps: int = 600) -> None:
    prepare(database)
    with Overlapping(database, seed) as overlapping:
        overlapping.run(steps)


def _cut(database: Database, truth: list[bytes], seed: int) -> tuple[Segment, ...]:
    """Segments at any positions, however odd, and at the very edges of commits."""
    chance = random.Random(seed)
    start, end = start_of(database), database.position()
    commits = [int.from_bytes(each[1:9], "big") for each in truth if each[0] == pgoutput.BEGIN]
    edges = {chance.choice(commits) + chance.choice([0, 0, 1]) for _ in range(2)}
    return bounded([start, *sorted({*edges, chance.randint(start, end)})])


class _Killing:
    """Kills segments' processes, and now and then everything."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.killed = self.ended = 0
        self._turns = 0

    def __call__(self, release: Release) -> bool:
        self._turns += 1
        if self.killed + self.ended > 8:
            return False
        dice = self._chance.random()
        pids = [run.pid for run in release.runs if run.pid is not None]
        if dice < 0.2 and pids:
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
            self.killed += 1
        elif dice < 0.24:
            self.ended += 1
            return True
        return False


@pytest.mark.parametrize("seed", drawn.first(1, [3, 4]))
@on_versions(16, 18)
def test_segments_are_what_one_slot_gives_whoever_is_killed(
    database: Database, tmp_path: Path, seed: int
) -> None:
    _backlog(database, seed)
    truth = single(database)
    assert len(truth) > 300
    reading = SegmentedReading(database, tmp_path)
    reading.begin(_cut(database, truth, seed))
    killing = _Killing(seed)
    while not reading.session(killing):
        continue
    assert normal(reading.messages) == truth
    assert killing.killed > 0


def test_release_goes_on_within_any_spool(database: Database, tmp_path: Path) -> None:
    """Everything is spooled first; then each life releases a little of it."""
    _backlog(database, 6, steps=300)
    truth = single(database)
    reading = SegmentedReading(database, tmp_path)
    reading.begin(bounded([start_of(database), database.position()]))
    reading.commits_a_turn = 0
    releases: list[Release] = []

    def is_spooled(release: Release) -> bool:
        releases[:] = [release]
        return release.runs[0].segment.done and reading.kept

    assert not reading.session(is_spooled)
    # The side connection's thread may be late: the descriptor may be another file's by now.
    releases[0].wake()
    reading.commits_a_turn = 2
    lives = 1
    while not reading.session(_EndAfter(turns=2)):
        lives += 1
    assert normal(reading.messages) == truth
    assert lives > 5


class _EndAfter:
    """Ends a life after a few of its turns have released something."""

    def __init__(self, turns: int) -> None:
        self._left = turns
        self._durable = 0

    def __call__(self, release: Release) -> bool:
        if release.durable > self._durable:
            self._durable = release.durable
            self._left -= 1
        return self._left == 0


def test_a_slot_that_was_moved_beyond_is_refused(database: Database, tmp_path: Path) -> None:
    """START_REPLICATION would begin where the slot is, in silence."""
    _backlog(database, 5, steps=300)
    reading = SegmentedReading(database, tmp_path)
    reading.begin(_cut(database, single(database), 5))
    with database.connect() as connection:
        connection.execute(
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot_of(database),)
        )
    with pytest.raises(SourceUnavailable, match=r"was advanced to .*, after "):
        reading.session()
    assert normal(reading.messages) == []
