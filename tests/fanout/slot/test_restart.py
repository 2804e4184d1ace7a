"""Starting again: from the stored position when nothing is lost, never over a gap in silence."""

from dataclasses import replace

import pytest
from psycopg import sql

from laredo_fanout.postgres.connections import Connection, SlotLost, SourceUnavailable
from laredo_fanout.slot import slot
from laredo_fanout.source_options import OnSlotLost
from laredo_fanout.store.table import Status
from laredo_fanout.store.writer import Store
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.server.ingest_process import IngestProcess

pytestmark = on_versions(16, 18)


def test_restart_goes_on_without_a_copy_or_a_gap(filled: Database, live: Start) -> None:
    ingest = live("public.t")
    before = ingest.record("public.t")
    ingest.stop()
    filled.run(
        "UPDATE t SET a = 'while away' WHERE id < 50",
        "DELETE FROM t WHERE id > 450",
        "INSERT INTO t VALUES (1000, 'new')",
    )
    ingest.start()
    ingest.assert_equal()
    after = ingest.record("public.t")
    assert (after.id, after.floor) == (before.id, before.floor)
    assert ingest.status.tables["public.t"].copied_rows == 0
    assert after.sequence == before.sequence + 49 + 50 + 1


def test_an_idle_slot_advances_to_durable_positions_alone(filled: Database, live: Start) -> None:
    ingest = live("public.t", heartbeat_interval=0.1)
    start = filled.confirmed()
    filled.run("CREATE TABLE unrelated AS SELECT generate_series(1, 1000)")
    now = ingest.store.position
    ingest.wait_until(lambda: filled.confirmed() > max(start, now), "the slot advances")
    for number in range(200):
        filled.run(f"INSERT INTO t VALUES ({number + 5000}, 'x')")
        assert filled.confirmed() <= ingest.store.position
    ingest.assert_equal()


def _drop_slot(_: RunningIngest, database: Database) -> None:
    database.drop_slots()


def _advance_slot(ingest: RunningIngest, database: Database) -> None:
    name = ingest.options.slot_name
    database.run(f"SELECT pg_replication_slot_advance('{name}', pg_current_wal_lsn())")


def _make_publication_again(ingest: RunningIngest, database: Database) -> None:
    name = ingest.options.publication.name
    database.run(f"DROP PUBLICATION {name}", f"CREATE PUBLICATION {name} FOR TABLE t")


GAPS = {
    "slot dropped": (_drop_slot, "doesn't exist"),
    "slot moved": (_advance_slot, "was advanced to"),
    "publication made again": (_make_publication_again, "isn't the stored one"),
}


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_stops_the_ingest_or_is_copied_over(
    filled: Database, live: Start, monkeypatch: pytest.MonkeyPatch, gap: str
) -> None:
    make_gap, message = GAPS[gap]
    ingest = live("public.t", on_slot_lost=OnSlotLost.FAIL)
    before, position = ingest.record("public.t"), ingest.store.position
    ingest.stop()
    filled.run("UPDATE t SET a = 'lost' WHERE id < 50", "DELETE FROM t WHERE id > 450")
    make_gap(ingest, filled)
    ingest.start()
    with pytest.raises(AssertionError, match=message) as raised:
        ingest.wait_until(lambda: False, "it fails")
    assert isinstance(raised.value.__cause__, SlotLost)
    assert "on_slot_lost = recreate" in str(raised.value.__cause__)
    assert ingest.store.position == position
    record = ingest.record("public.t")
    assert record.status is Status.LIVE
    ingest.options = replace(ingest.options, on_slot_lost=OnSlotLost.RECREATE)
    ingest.error = None
    cut, drop = [], slot.drop

    def cut_once(connection: Connection, found: slot.Slot) -> None:
        cut.append(found)
        if len(cut) == 1:
            raise SourceUnavailable("the connection was cut")
        drop(connection, found)

    monkeypatch.setattr(slot, "drop", cut_once)
    ingest.restart()
    if gap == "slot moved":
        # By whom isn't known: it may be another server's by now.
        ingest.wait_until(lambda: "isn't dropped" in str(ingest.status.error), "it is refused")
        _drop_slot(ingest, filled)
    ingest.wait_copied_again(before)
    ingest.assert_equal()
    assert len(cut) == (2 if gap == "publication made again" else 0)
    after = ingest.record("public.t")
    assert after.floor > before.floor
    assert after.sequence > before.sequence
    assert len(ingest.store.tables) == 1


def test_another_cluster_under_the_same_name(filled: Database, live: Start) -> None:
    """A restored backup: positions mean something else, so nothing of before is shown.

    Of the slot with our name nothing says that it is ours.
    """
    ingest = live("public.t")
    ingest.stop()
    with Store.open(ingest.path, max_size=1 << 30) as store:
        known, position = store.source, store.position
        assert known is not None
        other = known.history._replace(system_identifier=known.history.system_identifier + 1)
        with store.transaction() as transaction:
            transaction.set_source(replace(known, history=other))
            transaction.set_position(position + (1 << 40), 1)
    ingest.start()
    ingest.wait_until(lambda: "isn't dropped" in str(ingest.status.error), "it is refused")
    _drop_slot(ingest, filled)
    ingest.wait_until(lambda: ingest.store.source.history == known.history, "the true history")  # type: ignore[union-attr]
    ingest.wait_live()
    ingest.assert_equal()
    assert ingest.store.position < position + (1 << 40)


def test_a_slot_of_another_store_is_not_taken_if_configured_so(
    filled: Database, ingesting: Start
) -> None:
    filled.run(f"SELECT pg_create_logical_replication_slot('slot_{filled.name}', 'pgoutput')")
    ingest = ingesting("public.t", on_slot_lost=OnSlotLost.FAIL)
    with pytest.raises(AssertionError, match="has never used it"):
        ingest.wait_until(lambda: False, "it fails")


def test_table_taken_out_of_the_configuration_is_dropped_and_may_come_back(
    filled: Database, live: Start
) -> None:
    filled.run("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    ingest = live("public.t", "public.u")
    ingest.stop()
    ingest.start("public.t")
    ingest.assert_equal()
    assert ingest.known("public.u") is None
    filled.run("INSERT INTO u VALUES (2)", "DELETE FROM u WHERE id = 1")
    ingest.catch_up()
    ingest.stop()
    ingest.start("public.t", "public.u")
    ingest.wait_live()
    ingest.assert_equal()


def test_killed_again_and_again_while_copying_under_writes(
    database: Database, ingesting: Start
) -> None:
    """kill -9 after a number of commits that differs each time; then the rest in this process."""
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE c (a int, b text, v int, PRIMARY KEY (b, a))",
        "INSERT INTO t SELECT g, g, repeat(md5(g::text), 80) FROM generate_series(1, 6000) g",
        "INSERT INTO c SELECT g % 100, 'b' || g, g FROM generate_series(1, 6000) g",
    )
    ingest = ingesting("public.t", "public.c", range_bytes=256 << 10)
    ingest.stop()
    with database.connect() as connection:
        for commits in (3, 1, 4, 9, 6, 12):
            following = IngestProcess(ingest.options, ingest.path, "t", "c")
            for number in range(commits):
                following.wait_commit()
                step = sql.SQL("{}").format(number * 7 + commits)
                for statement in (
                    "UPDATE t SET a = -a WHERE id % 97 = {}",
                    "UPDATE t SET id = id + 100000 WHERE id % 89 = {} AND id < 100000",
                    "DELETE FROM t WHERE id % 83 = {}",
                    "UPDATE c SET b = b || 'x' WHERE v % 79 = {}",
                    "DELETE FROM c WHERE v % 73 = {}",
                ):
                    connection.execute(sql.SQL(statement).format(step))  # type: ignore[arg-type]
            following.kill()
    ingest.start()
    ingest.wait_live()
    ingest.assert_equal()
