"""The ingest falls behind: segments bring it level, whatever is under way, breaks or is full."""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.catchup.plan import CatchupMode, CatchupOptions, from_bytes
from laredo_fanout.ingest import startup
from laredo_fanout.store.writer import Store
from tests.fanout.catchup.holding import Held
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until
from tests.support.server.behind import (
    kill_one,
    splitting_little,
    start_behind,
    status_of,
    wait_level,
    wait_split,
)
from tests.support.server.interleaving import TABLES, Interleaving
from tests.support.server.journal_oracle import Replay

_STEPS = 400


@pytest.fixture
def options(tmp_path: Path) -> CatchupOptions:
    return splitting_little(tmp_path)


@pytest.fixture
def behind(
    database: Database, ingesting: Start, options: CatchupOptions
) -> Iterator[tuple[RunningIngest, Interleaving]]:
    """Live tables, a stopped ingest, and what overlapping sessions have done since."""
    with Interleaving(database, seed=7) as work:
        ingest = ingesting(*TABLES, catchup=options, heartbeat_interval=0.2)
        work.begin(ingest)
        ingest.wait_live()
        ingest.stop()
        for _ in range(_STEPS):
            work.step()
        yield ingest, work


@on_versions(16, 18)
def test_every_commit_of_a_backlog_is_in_the_journal_as_it_was(
    database: Database, ingesting: Start, options: CatchupOptions
) -> None:
    chance = random.Random(3)
    with Interleaving(database, seed=5) as work, database.connect() as connection:
        ingest = ingesting(*TABLES, catchup=options, heartbeat_interval=0.2)
        work.begin(ingest)
        ingest.wait_live()
        begun = [Replay(ingest, name) for name in TABLES]
        ingest.stop()
        for _ in range(_STEPS):
            work.step()
        connection.execute("CREATE TABLE later (id int PRIMARY KEY, a text)")
        connection.execute("INSERT INTO later SELECT g, g FROM generate_series(1, 2000) g")
        # A table that is new in the configuration is copied meanwhile.
        start_behind(ingest, *TABLES, "public.later")
        for _ in range(60):
            work.step()
            connection.execute("UPDATE later SET a = a || 'x' WHERE id % 7 = 0")
            if chance.random() < 0.1:
                kill_one(ingest, chance)
        work.finish()
        wait_level(ingest)
        ingest.wait_live()
        ingest.assert_equal()
        for replay in begun:
            assert replay.compare(work.commits) > 20
    assert _slots(database) == [ingest.options.slot_name]
    assert not list(options.spool_directory.iterdir())


def _slots(database: Database) -> list[object]:
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        )
        return [row[0] for row in rows.fetchall()]


def test_stopped_in_the_middle_it_goes_on_with_the_same_plan(
    behind: tuple[RunningIngest, Interleaving],
    options: CatchupOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has as many segments as there is room for, spools within their bound, waits for no long
    transaction, and compares no WAL again that was released."""
    ingest, work = behind
    with ingest.database.connect() as connection:
        row = connection.execute(
            "SELECT current_setting('max_replication_slots')::int - count(*)"
            " FROM pg_replication_slots"
        ).fetchone()
    assert row is not None
    ingest.catchup = replace(
        options, reserve=int(str(row[0])) - 2, spool_max_bytes=300_000, piece_bytes=20_000
    )
    compared: list[object] = []
    differs_at = startup.differs_at

    def seen(*given: Any) -> str | None:
        compared.append(given[0])
        return differs_at(*given)

    spooled: list[int] = []
    with ingest.database.connect() as connection, connection.transaction():
        connection.execute("CREATE TEMP TABLE unfinished (a int)")
        connection.execute("SELECT pg_current_xact_id()")
        held = Held(ingest)
        start_behind(ingest)
        with held.holding():
            assert len(status_of(ingest).segments) == 2
            ingest.ingest.stop()
        ingest.stop()
        with Store.open(ingest.path, max_size=4 << 30) as store:
            assert store.catchup_plan is not None
            plan = from_bytes(store.catchup_plan)
            assert plan.segments[0].start <= store.position
        for _ in range(20):
            work.step()
        ingest.on_commit = lambda _: spooled.append(status_of(ingest).spool_bytes)
        ingest.start()
        wait_split(ingest)
        # The next life would read all WAL from where the slot stands before it takes anything.
        monkeypatch.setattr(startup, "differs_at", seen)
        wait_level(ingest)
        ingest.assert_equal()
    assert status_of(ingest).plans == 0
    assert max(spooled) > 0
    assert not compared


def test_a_plan_that_cannot_go_on_is_given_up(
    behind: tuple[RunningIngest, Interleaving], options: CatchupOptions
) -> None:
    """Slots that went meanwhile are done without, and the plan of another history."""
    ingest, work = behind
    held = Held(ingest)
    start_behind(ingest)
    held.stop()
    with Store.open(ingest.path, max_size=4 << 30) as store:
        assert store.catchup_plan is not None
        plan = store.catchup_plan
        with store.transaction() as transaction:
            other = replace(from_bytes(plan), source="7:2:5 slot token")
            transaction.set_catchup_plan(other.to_bytes())
    before = list(options.spool_directory.iterdir())
    assert before
    # Without room the one slot is read.
    ingest.catchup = replace(options, reserve=100)
    ingest.asks_to_catch_up = True
    ingest.start()
    ingest.assert_equal()
    assert not set(before) & set(options.spool_directory.iterdir())
    status = status_of(ingest)
    assert status.plans == 0
    assert status.trouble is not None
    assert "reserve_slots" in status.trouble
    ingest.stop()
    ingest.catchup = options
    for _ in range(_STEPS // 2):
        work.step()
    held = Held(ingest)
    start_behind(ingest)
    held.stop()
    made = []
    with ingest.database.connect() as connection:
        try:
            with suppress(Exception):
                for number in range(100):
                    name = f"{ingest.database.name}_full_{number}"
                    connection.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
                    made.append(name)
            ingest.start()
            wait_until(lambda: status_of(ingest).given_up, "the plan is given up")
            ingest.assert_equal()
        finally:
            for name in made:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    trouble = status_of(ingest).trouble
    assert trouble is not None
    assert "no slot is free" in trouble


def _insert(database: Database, first: int, thousands: int) -> None:
    with database.connect() as connection:
        for number in range(first, first + thousands):
            connection.execute(
                "INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(%s::int, %s::int) g",
                (number * 1000, number * 1000 + 999),
            )


def test_auto_splits_above_the_threshold_and_manual_does_not(
    database: Database, live: Start, options: CatchupOptions
) -> None:
    """By as many segments as are configured, whatever the cores of this machine."""
    small = replace(options, threshold_bytes=200_000, max_segments=3)
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    ingest = live("public.t", catchup=small)
    ingest.stop()
    _insert(database, 0, 5)
    ingest.start()
    ingest.assert_equal()
    assert status_of(ingest).plans == 0
    ingest.stop()
    # More than the stream has read before the second check.
    _insert(database, 1000, 60)
    ingest.catchup = replace(small, mode=CatchupMode.AUTO)
    held = Held(ingest)
    ingest.start()
    with held.holding():
        assert len(status_of(ingest).segments) == 3
    wait_level(ingest)
    ingest.assert_equal()


@pytest.mark.thorough
def test_a_large_transaction_is_not_begun_anew(
    database: Database, live: Start, options: CatchupOptions
) -> None:
    """While the last segment decodes it nothing comes of that, and much is still to be decoded.

    PostgreSQL's own WAL meanwhile (pages after a checkpoint, vacuum) stays below the threshold.
    """
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        ingest = live("public.t", catchup=replace(options, threshold_bytes=5_000_000))
        ingest.stop()
        _insert(database, 0, 5)
        connection.execute("UPDATE t SET a = repeat('y', 60)")
        connection.execute(
            "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(100000, 130000) g"
        )
    start_behind(ingest)
    wait_level(ingest)
    ingest.assert_equal()
    assert status_of(ingest).plans == 1
