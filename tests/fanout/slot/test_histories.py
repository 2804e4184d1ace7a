"""Failover, restored backups, lost slots: real ones. What can't go on is reported.

In each test PostgreSQL's rows and the store's are compared at the end; that alone would not show
a history that went on over a gap, so each also says whether the table was copied again.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.postgres.connections import Connection, SlotLost, SourceUnavailable
from laredo_fanout.slot import slot
from laredo_fanout.source_options import OnSlotLost
from laredo_fanout.store.environment import SourceIdentity
from laredo_model.position import History
from tests.support import drawn
from tests.support.clusters import (
    Clusters,
    invalidate,
    position_of,
    promote,
    wait_replayed,
    wait_synced,
    write_wal,
)
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until

Follow = Callable[..., RunningIngest]
TABLE = "public.t"


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """An ingest that runs over a server's table of 100 rows until the test ends."""
    with ExitStack() as stack:

        def start(database: Database, **options: object) -> RunningIngest:
            ingest = RunningIngest(
                database,
                tmp_path / "store",
                (TABLE,),
                receive_timeout=3,
                **{"heartbeat_interval": 0.2, **options},  # type: ignore[arg-type]
            )
            stack.callback(ingest.stop)
            run(
                database.server,
                "CREATE TABLE t (id int PRIMARY KEY, a text)",
                "INSERT INTO t SELECT g, 'a' FROM generate_series(1, 100) g",
            )
            ingest.start()
            ingest.wait_live()
            return ingest

        yield start


def run(server: EmbeddedPostgres, *statements: str) -> None:
    with server.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def source_of(ingest: RunningIngest) -> SourceIdentity:
    source = ingest.store.source
    assert source is not None
    return source


def table_id(ingest: RunningIngest) -> int:
    record = ingest.known(TABLE)
    return 0 if record is None else record.id


def meets_its_marker(ingest: RunningIngest) -> None:
    """A new catalog check has been passed, so that its message is the store's marker in the WAL."""
    before = ingest.store.marker
    ingest.wait_until(
        lambda: ingest.store.marker not in (None, before), "a catalog check was passed"
    )


def copied_again(ingest: RunningIngest, before: int) -> None:
    ingest.wait_until(
        lambda: table_id(ingest) != before and ingest.is_live(TABLE), "the table is copied again"
    )
    ingest.assert_equal()


# ---------------------------------------------------------------- failover


def failed_over(
    clusters: Clusters, follow: Follow, version: int, *, synced: bool
) -> tuple[RunningIngest, int]:
    """An ingest that followed a primary that is gone now, with all its WAL on the new one."""
    primary = clusters.new(version)
    database = clusters.lead_to(primary)
    ingest = follow(database, heartbeat_interval=2.0)
    standby = clusters.standby(
        primary, version, **({"sync_replication_slots": "on"} if synced else {})
    )
    run(primary, "UPDATE t SET a = 'b' WHERE id <= 50")
    ingest.catch_up()
    if synced:
        wait_synced(primary, standby)
        # A server that shuts down waits for its streams' confirmations.
        ingest.catch_up()
    wait_replayed(standby, position_of(primary))
    record = table_id(ingest)
    primary.stop()
    promote(standby)
    clusters.lead_to(standby)
    run(standby, "UPDATE t SET a = 'c' WHERE id <= 10", "DELETE FROM t WHERE id > 90")
    ingest.database = clusters.lead_to(standby)
    return ingest, record


@pytest.mark.parametrize("version", drawn.first(1, [18, 17]))
def test_failover_with_the_slot_on_the_standby_goes_on(
    clusters: Clusters, follow: Follow, version: int
) -> None:
    ingest, record = failed_over(clusters, follow, version, synced=True)
    ingest.wait_until(lambda: source_of(ingest).history.timeline == 2, "the new timeline")
    ingest.assert_equal()
    assert table_id(ingest) == record, "it was copied again"
    source = source_of(ingest)
    (ancestor,) = source.ancestors
    assert ancestor.history == source.history._replace(timeline=1)
    assert ancestor.until <= ingest.store.position
    assert source.lineage.holds(ancestor.history, ancestor.until)
    assert not source.lineage.holds(ancestor.history, ancestor.until + 1)
    assert source.because == "" and source.former_reach == 0


@pytest.mark.parametrize("version", drawn.first(1, [18, 16]))
def test_failover_without_the_slot_is_copied_again(
    clusters: Clusters, follow: Follow, version: int
) -> None:
    ingest, record = failed_over(clusters, follow, version, synced=False)
    copied_again(ingest, record)
    source = source_of(ingest)
    assert source.history.timeline == 2
    assert "doesn't exist any more" in source.because
    # The same WAL up to the switch: what was shown could stay shown meanwhile.
    assert source.former_reach == 0
    assert ingest.status.slot_losses == 1


def test_failover_to_a_standby_that_was_behind(clusters: Clusters, follow: Follow) -> None:
    """Changes that the store has and the new primary lacks count as never made."""
    primary = clusters.new(18)
    ingest = follow(clusters.lead_to(primary))
    standby = clusters.standby(primary, 18)
    wait_replayed(standby, position_of(primary))
    standby.stop()
    run(primary, "UPDATE t SET a = 'never happened'")
    ingest.catch_up()
    position, record = ingest.store.position, table_id(ingest)
    primary.stop()
    standby.start()
    promote(standby)
    ingest.database = clusters.lead_to(standby)
    copied_again(ingest, record)
    source = source_of(ingest)
    assert source.history.timeline == 2
    assert "before the stored position" in source.because
    assert source.former_reach >= position
    assert not source.lineage.holds(source.history._replace(timeline=1), position)


# ---------------------------------------------------------------- restored backups


def went_back(clusters: Clusters, follow: Follow) -> RunningIngest:
    """A stopped ingest and its stopped server, whose disk is of before the last changes."""
    server = clusters.new()
    ingest = follow(clusters.lead_to(server))
    meets_its_marker(ingest)
    server.stop()
    saved = clusters.saved(server)
    server.start()
    run(server, "UPDATE t SET a = 'never happened'", "DELETE FROM t WHERE id > 50")
    ingest.catch_up()
    meets_its_marker(ingest)
    ingest.stop()
    server.stop()
    clusters.put_back(server, saved)
    return ingest


def history_of(ingest: RunningIngest) -> History:
    return source_of(ingest).history


def test_a_disk_that_was_put_back_is_seen_by_where_its_wal_ends(
    clusters: Clusters, follow: Follow
) -> None:
    """Told to fail it stops there, and nothing is changed."""
    ingest = went_back(clusters, follow)
    ingest.database.server.start()
    recreating = ingest.options
    ingest.options = replace(recreating, on_slot_lost=OnSlotLost.FAIL)
    ingest.start()
    record, before, position = table_id(ingest), source_of(ingest), ingest.store.position
    with pytest.raises(AssertionError) as raised:
        ingest.wait_until(lambda: False, "it fails")
    assert isinstance(raised.value.__cause__, SlotLost)
    assert "an earlier state of the database was restored" in str(raised.value.__cause__)
    assert (table_id(ingest), source_of(ingest)) == (record, before), "something was changed"
    ingest.error, ingest.options = None, recreating
    run(ingest.database.server, "UPDATE t SET a = 'after' WHERE id < 5")
    ingest.restart()
    known = before.history
    copied_again(ingest, record)
    source = source_of(ingest)
    assert "the server's WAL ends at" in source.because
    assert source.history.restored and source.history._replace(restored=0) == known
    assert source.former_reach >= position
    # It stays itself over restarts.
    record = table_id(ingest)
    ingest.restart()
    ingest.assert_equal()
    assert history_of(ingest) == source.history and table_id(ingest) == record


def test_a_disk_that_was_put_back_and_written_beyond_our_position_is_seen_by_its_wal(
    clusters: Clusters, follow: Follow
) -> None:
    ingest = went_back(clusters, follow)
    server = ingest.database.server
    server.start()
    write_wal(server, 4)
    run(server, "UPDATE t SET a = 'after' WHERE id < 5")
    ingest.start()
    assert position_of(server) > ingest.store.position
    known, record = history_of(ingest), table_id(ingest)
    copied_again(ingest, record)
    source = source_of(ingest)
    assert "isn't the WAL that the store followed" in source.because
    assert source.history.restored and source.history._replace(restored=0) == known


def test_a_slot_that_isn_t_created_at_once_is_still_of_the_new_history(
    clusters: Clusters, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt finds no position in the store, as in a fresh one."""
    ingest = went_back(clusters, follow)
    known, record = history_of(ingest), table_id(ingest)
    ingest.database.server.start()
    create, failures = slot.create, [SourceUnavailable("the answer was lost")]

    def created(connection: Connection, name: str, token: str) -> int:
        if failures:
            raise failures.pop()
        return create(connection, name, token)

    monkeypatch.setattr(slot, "create", created)
    ingest.start()
    copied_again(ingest, record)
    assert not failures
    source = source_of(ingest)
    assert "the server's WAL ends at" in source.because
    assert source.history.restored and source.history._replace(restored=0) == known


def test_a_backup_that_was_recovered_to_a_new_timeline(clusters: Clusters, follow: Follow) -> None:
    ingest = went_back(clusters, follow)
    server = ingest.database.server
    again = clusters.recovered(server.data)
    write_wal(again, 4)
    ingest.database = clusters.lead_to(again)
    ingest.start()
    record = table_id(ingest)
    copied_again(ingest, record)
    source = source_of(ingest)
    assert (source.history.timeline, source.history.restored) == (2, 0)
    assert "timeline 2 branched off the store's 1 at" in source.because


@pytest.mark.thorough
def test_a_backup_that_was_recovered_twice_to_timelines_of_one_number(
    clusters: Clusters, follow: Follow
) -> None:
    """Both are timeline 2; only where they begin tells them apart."""
    server = clusters.new()
    database = clusters.lead_to(server)
    ingest = follow(database)
    server.stop()
    saved = clusters.saved(server)
    first, second = (_restored_after(clusters, ingest, server, saved, mb) for mb in (0, 2))
    assert first.timeline == second.timeline == 2
    assert first != second and first == second._replace(restored=0)
    assert "a backup was restored" in source_of(ingest).because


def _restored_after(
    clusters: Clusters, ingest: RunningIngest, server: EmbeddedPostgres, saved: Path, megabytes: int
) -> History:
    """The history of what was recovered from ``saved`` and so much WAL."""
    record = table_id(ingest)
    clusters.put_back(server, saved)
    server.start()
    write_wal(server, megabytes)
    server.stop()
    again = clusters.recovered(server.data)
    ingest.database = clusters.lead_to(again)
    run(again, f"UPDATE t SET a = 'in the time of {megabytes}'")
    write_wal(again, 8)
    if megabytes:
        copied_again(ingest, record)
    else:
        ingest.wait_until(lambda: history_of(ingest).timeline == 2, "it follows")
        ingest.assert_equal()
    found = history_of(ingest)
    again.stop()
    return found


def test_a_crash_that_moves_the_slot_back_is_not_a_restored_backup(
    clusters: Clusters, follow: Follow
) -> None:
    """The confirmed position is written down with checkpoints only."""
    server = clusters.new()
    ingest = follow(clusters.lead_to(server))
    record = table_id(ingest)
    run(server, "UPDATE t SET a = 'b' WHERE id <= 50")
    ingest.catch_up()
    meets_its_marker(ingest)
    ingest.stop()
    server.stop(how=signal.SIGQUIT)
    server.start()
    with server.connect() as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
        ).fetchone()
    marker = ingest.store.marker
    assert row is not None and marker is not None
    assert int(str(row[0])) < marker.position, "this proves nothing"
    run(server, "DELETE FROM t WHERE id = 100")
    ingest.start()
    ingest.assert_equal()
    assert table_id(ingest) == record
    assert source_of(ingest).because == ""


# ---------------------------------------------------------------- lost slots


@pytest.mark.parametrize("version", drawn.first(1, [18, 17, 16, 15, 14]))
def test_an_invalidated_slot_is_made_again(
    clusters: Clusters, follow: Follow, version: int
) -> None:
    server = clusters.new(version, max_slot_wal_keep_size="16MB", max_wal_size="32MB")
    ingest = follow(clusters.lead_to(server))
    record, known = table_id(ingest), history_of(ingest)
    ingest.stop()
    run(server, "UPDATE t SET a = 'b' WHERE id <= 50")
    invalidate(server)
    with server.connect() as connection:
        status = connection.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
    assert status == ("lost",), "this proves nothing"
    ingest.start()
    copied_again(ingest, record)
    source = source_of(ingest)
    assert source.history == known
    assert "its WAL is gone (max_slot_wal_keep_size)" in source.because
    assert ingest.store.position >= source.since > 0


def test_a_slot_that_nobody_used_for_too_long_is_made_again(
    clusters: Clusters, follow: Follow
) -> None:
    server = clusters.new(18, idle_replication_slot_timeout="1s")
    ingest = follow(clusters.lead_to(server))
    record = table_id(ingest)
    ingest.stop()
    with server.connect() as connection:

        def invalidated() -> bool:
            connection.execute("CHECKPOINT")
            row = connection.execute(
                "SELECT invalidation_reason FROM pg_replication_slots"
            ).fetchone()
            return row == ("idle_timeout",)

        wait_until(invalidated, "the slot was idle for a second")
    ingest.start()
    copied_again(ingest, record)
    assert "longer than idle_replication_slot_timeout" in source_of(ingest).because
    slot = ingest.status.slot
    assert slot is not None and slot.idle_timeout_s == 1


def test_a_slot_that_is_invalidated_while_it_is_streamed_from(
    clusters: Clusters, follow: Follow
) -> None:
    server = clusters.new(18, max_slot_wal_keep_size="16MB", max_wal_size="32MB")
    ingest = follow(clusters.lead_to(server))
    record = table_id(ingest)

    def overrun(_: object) -> None:
        """In the ingest's thread: nothing is confirmed while the WAL runs over the limit."""
        ingest.on_commit = None
        run(server, "UPDATE t SET a = 'b' WHERE id <= 50")
        invalidate(server)
        over.set()

    over = threading.Event()
    ingest.on_commit = overrun
    assert over.wait(PATIENCE_S)
    copied_again(ingest, record)
    assert "invalidated" in source_of(ingest).because
    assert ingest.status.reconnects >= 1


def test_a_slot_that_is_dropped_while_it_is_streamed_from(
    clusters: Clusters, follow: Follow
) -> None:
    server = clusters.new()
    ingest = follow(clusters.lead_to(server))
    record = table_id(ingest)
    with server.connect() as connection:

        def dropped() -> bool:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
            )
            try:
                connection.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                )
            except Exception:  # noqa: BLE001  # it was taken again at once
                return False
            return True

        wait_until(dropped, "dropped")
    run(server, "UPDATE t SET a = 'b' WHERE id <= 50")
    copied_again(ingest, record)
    assert "doesn't exist any more" in source_of(ingest).because
