"""Changes of the tables, the slot and the backlog while the backlog is split."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from laredo_fanout.catchup.plan import CatchupOptions
from laredo_fanout.postgres.connections import SlotLost
from laredo_fanout.source_options import OnSlotLost
from tests.fanout.catchup.holding import Held
from tests.support import drawn
from tests.support.clusters import Clusters
from tests.support.ingest import PATIENCE_S, RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until
from tests.support.server.behind import splitting_little, start_behind, status_of, wait_level

_KINDS = ("public.plain", "public.log", "public.parts")
_MADE = """
CREATE TABLE plain (id int PRIMARY KEY, a text);
CREATE SEQUENCE ids;
CREATE TABLE log (at int, what text);
CREATE TABLE parts (id int, day int, a text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20);
"""


_FILLER = "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 300000))"


@pytest.fixture
def options(tmp_path: Path) -> CatchupOptions:
    return replace(splitting_little(tmp_path), threshold_bytes=1_000_000)


def _work(database: Database, rounds: int) -> None:
    """Rows come, change, move and go in tables of every kind."""
    for number in range(rounds):
        database.run(
            f"INSERT INTO plain SELECT g, repeat('x', 60) FROM generate_series({number * 50},"
            f" {number * 50 + 49}) g ON CONFLICT DO NOTHING",
            f"INSERT INTO log SELECT {number} % 7, 'twice' FROM generate_series(1, 20)",
            "INSERT INTO parts SELECT nextval('ids'), g * 2, repeat('p', 60)"
            " FROM generate_series(0, 9) g",
            f"UPDATE parts SET day = (day + 11) % 20 WHERE id % 13 = {number % 13}",
            f"UPDATE plain SET a = a || 'y' WHERE id % 11 = {number % 11}",
            f"DELETE FROM plain WHERE id % 17 = {number % 17}",
        )


@contextmanager
def _live(ingest: RunningIngest) -> Iterator[None]:
    """The tables are live, and the ingest doesn't run within the block."""
    ingest.wait_live()
    ingest.stop()
    yield


@on_versions(16, 18)
def test_tables_without_keys_and_in_partitions_and_a_recopy_meanwhile(
    database: Database, ingesting: Start, options: CatchupOptions
) -> None:
    database.run(_MADE)
    ingest = ingesting(
        *_KINDS, catchup=options, append_only=("public.log",), heartbeat_interval=0.2
    )
    with _live(ingest):
        _work(database, 20)
        database.run("TRUNCATE log", "TRUNCATE parts_1")
        _work(database, 20)
        # Rows go and come that no change is sent for.
        database.run(
            "ALTER TABLE parts DETACH PARTITION parts_0",
            "UPDATE parts_0 SET a = 'unseen' WHERE id % 2 = 0",
            "ALTER TABLE parts ATTACH PARTITION parts_0 FOR VALUES FROM (0) TO (10)",
        )
        _work(database, 20)
    held = Held(ingest)
    start_behind(ingest)
    with held.holding():
        asked = ingest.ingest.recopy("public.plain")
        _work(database, 5)
    asked.result(PATIENCE_S)
    _work(database, 5)
    wait_level(ingest)
    ingest.wait_until(lambda: ingest.status.tables["public.plain"].last_recopy, "it is done")
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.record("public.log").rows > 100


@pytest.mark.thorough
def test_a_backlog_that_grows_behind_its_last_segment_is_split_again(
    database: Database, ingesting: Start, options: CatchupOptions
) -> None:
    database.run(_MADE)
    ingest = ingesting("public.plain", catchup=options, heartbeat_interval=0.2)
    with _live(ingest):
        for _ in range(10):
            _work(database, 3)
            database.run(_FILLER)

    def heard() -> bool:
        tail = status_of(ingest).segments[-1]
        return tail.reached > tail.start

    held = Held(ingest, when=heard)
    start_behind(ingest)
    with held.holding():
        pid = status_of(ingest).segments[-1].pid
        assert pid is not None
        psutil.Process(pid).suspend()
        for _ in range(10):
            _work(database, 1)
            database.run(_FILLER)
    ingest.wait_until(lambda: status_of(ingest).plans == 2, "it is split again")
    wait_level(ingest)
    ingest.assert_equal()
    assert status_of(ingest).given_up == 0
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("full", drawn.first(1, ["max_wal_senders", "max_replication_slots"]))
def test_a_server_with_little_room_has_fewer_segments(
    clusters: Clusters, tmp_path: Path, options: CatchupOptions, full: str
) -> None:
    """One slot is the server's own; each segment needs one more, and a walsender."""
    room = {"max_replication_slots": "3", "max_wal_senders": "2"}
    database = Database(clusters.new(18, **{full: room[full]}), "postgres")
    database.run(_MADE)
    ingest = RunningIngest(
        database,
        tmp_path / "store",
        ("public.plain",),
        catchup=replace(options, reserve=0),
        heartbeat_interval=0.2,
    )
    ingest.start()
    try:
        with _live(ingest):
            _work(database, 40)
        held = Held(ingest)
        start_behind(ingest)
        with held.holding():
            assert len(status_of(ingest).segments) == 2
        wait_level(ingest)
        ingest.assert_equal()
        assert status_of(ingest).given_up == 0
    finally:
        ingest.stop()


@pytest.mark.parametrize("policy", OnSlotLost)
def test_a_slot_that_somebody_moves_beyond_the_plan(
    database: Database, ingesting: Start, options: CatchupOptions, policy: OnSlotLost
) -> None:
    """Its copies would begin there, in silence."""
    database.run(_MADE)
    ingest = ingesting("public.plain", catchup=options, heartbeat_interval=0.2, on_slot_lost=policy)
    with _live(ingest):
        _work(database, 30)
    held = Held(ingest)
    start_behind(ingest)
    held.stop()
    before = ingest.record("public.plain")
    slot = ingest.options.slot_name
    database.run(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    ingest.start()
    if policy is OnSlotLost.FAIL:
        wait_until(lambda: ingest.error, "it is told", PATIENCE_S)
        assert isinstance(ingest.error, SlotLost)
        return
    # It isn't dropped either: it may be somebody else's by now.
    ingest.wait_until(lambda: "isn't dropped" in str(ingest.status.error), "it is refused")
    database.run(f"SELECT pg_drop_replication_slot('{slot}')")
    ingest.wait_until(lambda: ingest.record("public.plain") != before, "it is copied anew")
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.record("public.plain").id != before.id
    assert not status_of(ingest).segments
