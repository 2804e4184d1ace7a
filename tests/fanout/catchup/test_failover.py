"""A standby is promoted while a backlog is split: what was decoded of the former primary's own
WAL is of no history any more."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.catchup.plan import CatchupMode, CatchupOptions, from_bytes
from tests.fanout.catchup.holding import Held
from tests.support.clusters import Clusters, position_of, promote, wait_replayed, wait_synced
from tests.support.ingest import RunningIngest
from tests.support.processes import wait_until
from tests.support.server.behind import start_behind, status_of

_TABLE = "public.t"


@contextmanager
def _following(clusters: Clusters, path: Path, version: int) -> Iterator[RunningIngest]:
    database = clusters.lead_to(clusters.new(version))
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    ingest = RunningIngest(
        database,
        path / "store",
        (_TABLE,),
        catchup=CatchupOptions(
            path / "spools",
            mode=CatchupMode.MANUAL,
            threshold_bytes=100_000,
            min_segment_bytes=50_000,
            piece_bytes=100_000,
            keep_interval=0.1,
        ),
        heartbeat_interval=2.0,
    )
    ingest.start()
    try:
        ingest.wait_live()
        yield ingest
    finally:
        ingest.stop()


def _write(server: EmbeddedPostgres, first: int, what: str) -> None:
    """Forty transactions of fifty rows."""
    with server.connect() as connection:
        for number in range(first, first + 2000, 50):
            connection.execute(
                "INSERT INTO t SELECT g, repeat(%s, 40) FROM generate_series(%s::int, %s::int) g",
                (what, number, number + 49),
            )


@pytest.mark.thorough
@pytest.mark.parametrize("version", [18, 16])
def test_what_the_new_primary_never_had_is_dropped(
    clusters: Clusters, tmp_path: Path, version: int
) -> None:
    synced = version >= 17
    with _following(clusters, tmp_path, version) as ingest:
        primary = clusters.servers[0]
        standby = clusters.standby(primary, version)
        ingest.catch_up()
        if synced:
            wait_synced(primary, standby)
        ingest.stop()
        _write(primary, 0, "a")
        wait_replayed(standby, position_of(primary))
        standby.stop()
        _write(primary, 2000, "never on the standby")

        def tail_is_kept() -> bool:
            plan = ingest.store.catchup_plan
            return plan is not None and bool(from_bytes(plan).segments[-1].pieces)

        held = Held(ingest, when=tail_is_kept)
        start_behind(ingest)
        # Nothing is released before the last segment has spooled what the standby lacks.
        head = wait_until(lambda: status_of(ingest).segments[0].pid, "the head is begun")
        psutil.Process(head).suspend()
        held.stop()
        before = ingest.record(_TABLE)
        primary.stop()
        standby.start()
        promote(standby)
        ingest.database = clusters.lead_to(standby)
        _write(standby, 2000, "b")
        assert ingest.catchup is not None
        spools = list(ingest.catchup.spool_directory.iterdir())
        assert spools
        ingest.start()
        # Only where the standby has the slot it goes on; else all is copied anew.
        if not synced:
            ingest.wait_until(lambda: ingest.record(_TABLE).id != before.id, "a new copy")
        ingest.wait_live()
        ingest.assert_equal()
        after = ingest.record(_TABLE)
        assert after.rows == 4000
        assert (after.id == before.id) == synced
        assert not any(spool.exists() for spool in spools)
