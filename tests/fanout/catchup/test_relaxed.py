"""A backlog released as it is decoded: mixed on the way, right in the end, whatever is killed."""

import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from laredo_fanout.catchup.options import CatchupOptions, Ordering
from laredo_fanout.catchup.plan import from_bytes
from laredo_fanout.source.status import CommitInfo
from laredo_fanout.store.transaction import Transaction
from laredo_fanout.store.writer import Store
from tests.fanout.catchup.behind import (
    head_stopped,
    kill_one,
    splitting_little,
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
_COMMIT_BYTES = 4096


@pytest.fixture
def options(tmp_path: Path) -> CatchupOptions:
    return replace(splitting_little(tmp_path), ordering=Ordering.RELAXED, max_segments=6)


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


def _assert_ordered_within(watch: _Watch, starts: list[int]) -> None:
    """Of each segment every transaction came once, in its order."""
    for positions in watch.transactions.values():
        once = [position for position, _ in groupby(positions)]
        assert len(once) == len(set(once))
        for start, stop in pairwise([*starts, 1 << 63]):
            # A commit record may begin in one segment and end in the next.
            own = [each for each in once if start + _COMMIT_BYTES < each <= stop]
            assert own == sorted(own)


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
        ingest.asks_to_catch_up = True
        ingest.start()
        ingest.asks_to_catch_up = False
        with head_stopped(os.getpid()):
            wait_until(lambda: status_of(ingest).out_of_order, "some is released early", 60)
            starts = [segment.start for segment in status_of(ingest).segments]
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
    assert len(starts) > 2
    _assert_ordered_within(watch, starts)
    for table_id in watch.transactions:
        record = ingest.store.tables[table_id]
        assert record.disorder is None
    assert ingest.store.reach == ingest.store.position


class _Held:
    """Holds the ingest after the first commit that has something early."""

    def __init__(self, ingest: RunningIngest) -> None:
        self._ingest = ingest
        self._reached = threading.Event()
        self._go_on = threading.Event()
        ingest.on_commit = self._committed

    def _committed(self, _: CommitInfo) -> None:
        if self._ingest.store.reach > self._ingest.store.position:
            self._reached.set()
            self._go_on.wait(60)

    def stop(self) -> None:
        """Stop it there."""
        assert self._reached.wait(60), "nothing came early"
        self._ingest.on_commit = None
        self._ingest.ingest.stop()
        self._go_on.set()
        self._ingest.stop()


@pytest.fixture
def stopped(database: Database, ingesting: Start, options: CatchupOptions) -> RunningIngest:
    """Stopped while a backlog was released out of order, with early changes in its store."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text STORAGE EXTERNAL)")
        for number in range(50):
            connection.execute("INSERT INTO t VALUES (%s, 0, repeat('x', 3000))", (number,))
        options = replace(options, min_segment_bytes=5_000, keep_interval=1000.0)
        ingest = ingesting("public.t", catchup=options, heartbeat_interval=0.2)
        ingest.wait_live()
        ingest.stop()
        chance = random.Random(5)
        for number in range(400):
            key = chance.randrange(50)
            dice = chance.random()
            if dice < 0.6:
                connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (key,))
            elif dice < 0.8:
                connection.execute(
                    "UPDATE t SET big = repeat(%s, 3000) WHERE id = %s",
                    (chr(97 + number % 26), key),
                )
            else:
                connection.execute("DELETE FROM t WHERE id = %s", (key,))
                connection.execute("INSERT INTO t VALUES (%s, 1, repeat('y', 3000))", (key,))
    held = _Held(ingest)
    ingest.asks_to_catch_up = True
    ingest.start()
    with head_stopped(os.getpid()):
        held.stop()
    ingest.asks_to_catch_up = False
    return ingest


def _change(ingest: RunningIngest, change: Callable[[Transaction], None]) -> None:
    with Store.open(ingest.path, max_size=4 << 30) as store:
        assert store.catchup_plan is not None
        assert any(segment.released for segment in from_bytes(store.catchup_plan).segments)
        assert store.reach > store.position
        with store.transaction() as transaction:
            change(transaction)


def _drop_plan(transaction: Transaction) -> None:
    transaction.set_catchup_plan(None)


def _reach_beyond(transaction: Transaction) -> None:
    """As if what came early weren't in this server's WAL."""
    transaction.head = replace(transaction.head, early_until=1 << 50)


@pytest.mark.parametrize("ordering", Ordering)
def test_stopped_out_of_order_it_goes_on(stopped: RunningIngest, ordering: Ordering) -> None:
    assert stopped.catchup is not None
    stopped.catchup = replace(stopped.catchup, ordering=ordering)
    stopped.start()
    wait_level(stopped)
    stopped.assert_equal()
    assert stopped.status.recopies == 0
    assert stopped.store.reach == stopped.store.position
    positions = _journaled(stopped)
    assert len(positions) == len(set(positions)), "a transaction was released twice"


def _journaled(ingest: RunningIngest) -> list[int]:
    """The positions of the table's transactions, as they came."""
    record = ingest.record("public.t")
    assert record is not None
    found: list[int] = []
    after = record.oldest_sequence - 1
    while entries := ingest.store.reader().journal(record.id, after, 1 << 20):
        for entry in entries:
            found += entry.decode().positions
            after = entry.last_sequence
    return [position for position, _ in groupby(found)]


def test_plan_that_is_lost_isn_t_needed(stopped: RunningIngest) -> None:
    """Everything comes again in order; what came early wins until then."""
    _change(stopped, _drop_plan)
    stopped.start()
    stopped.assert_equal()
    assert stopped.status.recopies == 0
    assert stopped.store.reach == stopped.store.position


def test_early_changes_that_the_server_lacks_are_a_lost_history(stopped: RunningIngest) -> None:
    _change(stopped, _reach_beyond)
    stopped.start()
    stopped.wait_until(lambda: stopped.status.slot_losses == 1, "the history is lost")
    stopped.wait_live()
    stopped.assert_equal()
    assert stopped.store.reach == stopped.store.position
