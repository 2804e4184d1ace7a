"""The slot's end and what it keeps, as /status, /metrics, the log and the terminal show them."""

import time
from pathlib import Path

import psycopg
import pytest

from tests.support import drawn
from tests.support.clusters import Clusters, invalidate
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

TABLES = "{ table = t }"


def made(
    clusters: Clusters, directory: Path, extra: str = "", version: int = 18, **settings: str
) -> Fanout:
    """A server over a cluster whose slot may keep little, not started."""
    postgres = clusters.new(version, **settings)
    database = clusters.lead_to(postgres)
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    return fanout(directory / "server", database.dsn, TABLES, extra)


@pytest.mark.parametrize("version", drawn.first(1, [18, 16]))
def test_a_lost_slot_is_shown_until_somebody_decides(
    clusters: Clusters, tmp_path: Path, version: int
) -> None:
    settings = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB"}
    fail = "sources.pg.on_slot_lost = fail\n"
    server = made(clusters, tmp_path, fail, version, **settings)
    with started(server):
        before = server.status["sources"]["pg"]
    invalidate(clusters.servers[-1])
    with server.program:

        def problems() -> list[str]:
            return [problem for problem in server.problems if "invalidated" in problem]

        (problem,) = wait_until(problems, "it says so")
        assert "its WAL is gone (max_slot_wal_keep_size)" in problem
        assert "Set on_slot_lost = recreate to copy every table again" in problem
        source = server.status["sources"]["pg"]
        assert not [name for name in server.metrics if "copied_again" in name]
        assert source["slot"]["wal_status"] == "lost"
        # Version 16 doesn't tell why.
        assert source["slot"]["invalidated"] == ("wal_removed" if version > 16 else None)
        assert [warning["kind"] for warning in source["warnings"]] == ["lost"]
        assert (source["history"], source["slot_losses"]) == (before["history"], 0)
        assert source["lag_seconds"] > 0
        assert server.table("public.t")["status"] == "live"
        server.program.stop()
    file = server.program.config
    file.write_text(file.read_text().replace(fail, ""))
    started_at = time.time()
    with started(server):
        source = server.status["sources"]["pg"]
        assert "its WAL is gone" in source["because"]
        metrics = server.metrics
        assert metrics['laredo_source_slot_losses_total{source="pg"}'] == 1
        # It is there at the first scrape of a server that finds the loss when it starts.
        again = metrics['laredo_table_copied_again_timestamp_seconds{table="public.t"}']
        assert again > started_at
        assert '"event": "changes lost; every table copied again"' in (server.program.tail(20_000))


def test_check_says_what_may_become_of_the_slot(clusters: Clusters, tmp_path: Path) -> None:
    server = made(clusters, tmp_path, idle_replication_slot_timeout="1h", wal_sender_timeout="0")
    dsn = f"postgresql://postgres@/postgres?host={clusters.address}"
    physical = psycopg.connect(f"{dsn}&replication=true", autocommit=True)
    with psycopg.connect(dsn, autocommit=True) as owner:
        # As an older version of this program would have made it.
        owner.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        row = owner.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        physical.pgconn.exec_(f"START_REPLICATION PHYSICAL {row[0]}".encode())
        shown = server.run("check").stdout
        physical.close()
    assert "a server that is down for 3,600 s loses its slot" in shown
    assert "ALTER SYSTEM SET idle_replication_slot_timeout = '2d'" in shown
    assert "ALTER SYSTEM SET wal_sender_timeout = '60s'" in shown
    assert "s was made without failover: a promoted standby won't have it" in shown
    assert "ALTER_REPLICATION_SLOT s (FAILOVER true)" in shown
    assert "-1: WAL is kept without limit while this server is down" in shown


@pytest.mark.thorough
def test_what_the_slot_keeps_is_shown_while_its_stream_cannot_be_had(
    clusters: Clusters, tmp_path: Path
) -> None:
    server = made(clusters, tmp_path)
    connected, seen = (
        f'laredo_{what}{{source="pg"}}'
        for what in ("source_connected", "slot_seen_timestamp_seconds")
    )
    known_by_asking = [
        f'laredo_{what}{{source="pg"}}'
        for what in ("source_lag_bytes", "slot_unconfirmed_wal_bytes", "slot_retained_wal_bytes")
    ]
    with started(server):
        (former,) = clusters.servers
        former.stop()
        # It takes connections, but none that streams.
        postgres = clusters.running(former.data, max_wal_senders="0")
        database = clusters.lead_to(postgres)
        wait_until(lambda: server.metrics[connected] == 0, "the stream is cut")
        with database.connect() as writer:
            for _ in range(20):
                writer.execute(
                    "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20))"
                )
        wait_until(
            lambda: all(server.metrics.get(each, 0) > 20 << 20 for each in known_by_asking),
            "what piles up is shown",
        )
        assert server.metrics[connected] == 0
        assert server.metrics['laredo_slot_warning{kind="dropped",source="pg"}'] == 0
        postgres.stop()
        wait_until(
            lambda: not any(each in server.metrics for each in known_by_asking),
            "what can't be known is absent",
        )
        assert server.metrics[seen] > 0
        assert server.status["sources"]["pg"]["slot"]["retained_bytes"] is None
        assert server.status["sources"]["pg"]["lag_bytes"] is None
        assert "unknown bytes and " in server.run("status").stdout
