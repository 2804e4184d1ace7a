"""The slot's dangers and its end, as /status, /metrics, the log and the terminal show them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.clusters import Clusters, invalidate
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout

TABLES = "{ table = t }"


@contextmanager
def started(server: Fanout) -> Iterator[None]:
    with server.program:
        server.program.wait_ready(120)
        yield


def made(
    clusters: Clusters, directory: Path, extra: str = "", version: int = 18, **settings: str
) -> Fanout:
    """A server over a cluster whose slot may keep little, not started."""
    postgres = clusters.new(version, **settings)
    database = clusters.lead_to(postgres)
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return fanout(directory / "server", database.dsn, TABLES, extra)


def test_danger_is_shown_everywhere_and_passes(clusters: Clusters, tmp_path: Path) -> None:
    server = made(clusters, tmp_path, max_slot_wal_keep_size="64MB", max_wal_size="1GB")
    dsn = f"postgresql://postgres@/postgres?host={clusters.address}"
    with started(server), psycopg.connect(dsn) as left, psycopg.connect(dsn) as other:
        other.autocommit = True
        left.execute("INSERT INTO t VALUES (1)")
        pid = left.info.backend_pid
        for _ in range(4):
            other.execute("SELECT pg_logical_emit_message(true, 'filler', 'x')")
            other.execute("SELECT pg_switch_wal()")

        def warned() -> bool:
            kinds = {warning["kind"] for warning in server.status["sources"]["pg"]["warnings"]}
            return bool(kinds & {"safe_wal_size", "unreserved"})

        wait_until(warned, "it is warned of")
        source, metrics = server.status["sources"]["pg"], server.metrics
        (warning,) = source["warnings"]
        kind = warning["kind"]
        assert warning["cure"].startswith("raise max_slot_wal_keep_size")
        assert source["slot"]["oldest_transaction"]["pid"] == pid
        assert source["slot"]["retained_bytes"] > 40 << 20 > source["slot"]["unconfirmed_bytes"]
        assert source["slot"]["max_wal_bytes"] == 64 << 20
        assert source["slot"]["failover"] is True
        assert metrics[f'laredo_slot_warning{{kind="{kind}",source="pg"}}'] == 1
        assert metrics['laredo_slot_warning{kind="lost",source="pg"}'] == 0
        assert metrics['laredo_slot_retained_wal_bytes{source="pg"}'] > 40 << 20
        assert metrics['laredo_slot_safe_wal_bytes{source="pg"}'] < 16 << 20
        assert metrics['laredo_slot_oldest_transaction_seconds{source="pg"}'] > 0
        assert server.status["ready"], "a warning is no reason not to serve"
        shown = server.run("status")
        assert warning["cure"] in shown.stdout
        assert "of 67,108,864 kept" in shown.stdout
        checked = server.run("check")
        assert warning["cure"] in checked.stdout and "max_slot_wal_keep_size" in checked.stdout
        assert f"in use by pid {_holder(other)} (laredo-fanout s" in checked.stdout
        wait_until(lambda: '"event": "slot in danger"' in server.program.tail(10**6), "logged")
        left.commit()
        wait_until(lambda: other.execute("CHECKPOINT") and not warned(), "the danger is over")
        wait_until(lambda: '"event": "slot recovered"' in server.program.tail(10**6), "so too")


def _holder(connection: "psycopg.Connection[tuple[object, ...]]") -> object:
    row = connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("version", [16, 18])
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
    with started(server):
        source = server.status["sources"]["pg"]
        assert "its WAL is gone" in source["because"]
        assert server.metrics['laredo_source_slot_losses_total{source="pg"}'] == 1
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
        assert "not known / " in server.run("status").stdout


def test_the_store_and_its_disk(clusters: Clusters, tmp_path: Path) -> None:
    server = made(clusters, tmp_path, "state.max_size = 1GiB")
    with started(server):
        metrics = server.metrics
        former, allocated, most, free = (
            metrics[f"laredo_store_{what}"]
            for what in ("bytes", "allocated_bytes", "max_bytes", "disk_free_bytes")
        )
        on_disk = 512 * (server.directory / "state" / "data.mdb").stat().st_blocks
        assert 0 < server.status["store"]["bytes"] <= former == allocated == on_disk
        assert allocated <= most == 1 << 30
        disk = psutil.disk_usage(str(server.directory))
        assert free == pytest.approx(disk.free, abs=1 << 30)
        assert metrics['laredo_position_bytes{source="pg"}'] > 0
