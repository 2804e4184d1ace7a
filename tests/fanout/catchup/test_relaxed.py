"""A backlog released as it is decoded: mixed on the way, right in the end, whatever is killed."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from laredo_fanout.catchup.options import CatchupOptions, Ordering
from laredo_fanout.source.status import CommitInfo
from tests.fanout.catchup.behind import (
    head_stopped,
    kill_one,
    start_behind,
    status_of,
    wait_level,
)
from tests.fanout.source.interleaving import TABLES, Interleaving
from tests.fanout.source.journal_oracle import Rows, apply
from tests.fix_ingest import RunningIngest
from tests.fix_postgres import Database, on_versions
from tests.processes import wait_until

Start = Callable[..., RunningIngest]
_STEPS = 300


@pytest.fixture
def options(tmp_path: Path) -> CatchupOptions:
    return CatchupOptions(
        tmp_path / "spools",
        threshold_bytes=2_000_000,
        check_interval=0.02,
        min_segment_bytes=50_000,
        piece_bytes=100_000,
        keep_interval=0.1,
        ordering=Ordering.RELAXED,
        max_segments=6,
    )


class _Watch:
    """Follows the journals as clients do, and compares with the rows after each commit."""

    def __init__(self, ingest: RunningIngest, *names: str) -> None:
        self._ingest = ingest
        self._rows: dict[int, Rows] = {}
        self._sequences: dict[int, int] = {}
        self.transactions: dict[int, list[int]] = {}
        """Their positions, as entries came."""
        self.early = self.frozen = 0
        for name in names:
            record = ingest.record(name)
            assert record is not None
            self._rows[record.id] = self._read(record.id)
            self._sequences[record.id] = record.sequence
            self.transactions[record.id] = []

    def __call__(self, _: CommitInfo) -> None:
        for table_id in self._rows:
            self.look(table_id)

    def look(self, table_id: int) -> None:
        record = self._ingest.store.tables[table_id]
        reader = self._ingest.store.reader()
        while self._sequences[table_id] < record.sequence:
            for entry in reader.journal(table_id, self._sequences[table_id], 1 << 20):
                self._sequences[table_id] = entry.last_sequence
                batch = entry.decode()
                for action, key, line in zip(batch.actions, batch.keys, batch.lines, strict=True):
                    apply(self._rows[table_id], action, key, line)
                self.transactions[table_id] += batch.positions
        if record.disorder is not None:
            self.early += 1
            assert reader.table_by_id(table_id).position == record.disorder.start
        assert self._rows[table_id] == self._read(table_id)

    def _read(self, table_id: int) -> Rows:
        rows: Rows = {}
        with self._ingest.store.reader().snapshot(table_id) as snapshot:
            for keys, lines in snapshot.batches():
                rows.update(zip(keys, lines, strict=True))
        return rows


def _was_mixed(watch: _Watch) -> bool:
    """Whether some transaction came before one that was committed earlier."""
    return any(positions != sorted(positions) for positions in watch.transactions.values())


@on_versions(16, 18)
def test_mixed_on_the_way_and_right_in_the_end(
    database: Database, ingesting: Start, options: CatchupOptions
) -> None:
    chance = random.Random(1)
    with Interleaving(database, 1) as work:
        ingest = ingesting(*TABLES, catchup=options, heartbeat_interval=0.2)
        work.begin(ingest)
        ingest.wait_live()
        watch = _Watch(ingest, *TABLES)
        ingest.stop()
        for _ in range(_STEPS):
            work.step()
        ingest.on_commit = watch
        start_behind(ingest)
        with head_stopped(ingest):
            wait_until(lambda: status_of(ingest).out_of_order, "some is released early", 60)
        for _ in range(30):
            work.step()
            if chance.random() < 0.1:
                kill_one(ingest, chance)
        work.finish()
        wait_level(ingest)
        ingest.wait_live()
        ingest.assert_equal()
    assert watch.early > 0
    assert _was_mixed(watch)
    for table_id in watch.transactions:
        record = ingest.store.tables[table_id]
        assert record.disorder is None
    assert ingest.store.reach == ingest.store.position
