"""Each danger of the slot, brought about in a real PostgreSQL: as /status, /metrics, the log and
the terminal show it, what cures it, and that it passes."""

import re
import time
from pathlib import Path

import psycopg
import pytest

from tests.support import drawn
from tests.support.clusters import Clusters, invalidate
from tests.support.processes import wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

_KEEP = "ALTER SYSTEM SET max_slot_wal_keep_size = '{}'"
_FREEZE_AGE = 100_000
_TRANSACTIONS = f"""
DO $$ BEGIN FOR i IN 1..{_FREEZE_AGE // 2 + 100} LOOP
    PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
"""

Connection = psycopg.Connection[tuple[object, ...]]


def _server(
    clusters: Clusters, directory: Path, version: int = 18, extra: str = "", **settings: str
) -> Fanout:
    database = clusters.lead_to(clusters.new(version, **settings))
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    return fanout(directory / "server", database.dsn, "{ table = t }", extra)


def _warned(server: Fanout) -> dict[str, str]:
    """The cures, by kind."""
    said = server.status["sources"]["pg"]["warnings"]
    return {warning["kind"]: warning["cure"] for warning in said}


def _assert_shown(server: Fanout, cures: dict[str, str]) -> None:
    """The terminal, the metrics and the log say the same."""
    checked, shown = server.run("check").stdout, server.run("status").stdout
    metrics, log = server.metrics, server.program.tail(40_000)
    for kind, cure in cures.items():
        assert cure in checked
        assert cure in shown
        assert f'"kind": "{kind}"' in log
    gauges = {
        match[1]: value
        for name, value in metrics.items()
        if (match := re.match(r'laredo_slot_warning\{kind="(\w+)"', name))
    }
    assert {kind for kind, value in gauges.items() if value} == set(cures)


def _said_to_be_over(server: Fanout) -> set[str]:
    lines = server.program.tail(40_000).splitlines()
    over = [line for line in lines if '"slot recovered"' in line]
    return {match[1] for line in over if (match := re.search(r'"kind": "(\w+)"', line))}


def _set(admin: Connection, statement: str) -> None:
    admin.execute(statement.encode())
    admin.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("version", drawn.first(1, [18, 16]))
def test_extended_unreserved_and_xmin(clusters: Clusters, tmp_path: Path, version: int) -> None:
    """By a transaction that is left open while others go on: the slot keeps all since its start."""
    server = _server(
        clusters, tmp_path, version, max_wal_size="32MB", autovacuum_freeze_max_age=str(_FREEZE_AGE)
    )
    dsn = f"postgresql://postgres@/postgres?host={clusters.address}"
    with server.program, psycopg.connect(dsn) as left, psycopg.connect(dsn) as admin:
        server.program.wait_ready(120)
        admin.autocommit = True
        left.execute("INSERT INTO t VALUES (1)")
        admin.execute(_TRANSACTIONS)
        for _ in range(4):
            admin.execute("SELECT pg_logical_emit_message(true, 'filler', 'x')")
            admin.execute("SELECT pg_switch_wal()")
        # The next one, which invalidates slots, is far away then.
        admin.execute("CHECKPOINT")
        wait_until(lambda: set(_warned(server)) == {"extended", "xmin"}, "both are said")
        wait_until(
            lambda: server.status["sources"]["pg"]["slot"]["unconfirmed_bytes"] < 32 << 20,
            "what the fillers wrote is confirmed",
        )
        source = server.status["sources"]["pg"]
        assert source["slot"]["wal_status"] == "extended"
        assert source["slot"]["retained_bytes"] > 32 << 20
        assert source["slot"]["oldest_transaction"]["pid"] == left.info.backend_pid
        assert source["slot"]["failover"] is (True if version > 16 else None)
        assert server.metrics['laredo_slot_retained_wal_bytes{source="pg"}'] > 32 << 20
        assert server.metrics['laredo_slot_oldest_transaction_seconds{source="pg"}'] > 0
        assert server.metrics['laredo_slot_warning{kind="lost",source="pg"}'] == 0
        assert server.metrics['laredo_slot_wal_status{source="pg",status="extended"}'] == 1
        assert server.metrics['laredo_slot_xmin_age{source="pg"}'] > _FREEZE_AGE / 2
        _assert_shown(server, _warned(server))

        _set(admin, _KEEP.format("16MB"))
        wait_until(lambda: set(_warned(server)) == {"unreserved", "xmin"}, "it is worse")
        slot = server.status["sources"]["pg"]["slot"]
        assert (slot["wal_status"], slot["max_wal_bytes"]) == ("unreserved", 16 << 20)
        assert server.metrics['laredo_slot_safe_wal_bytes{source="pg"}'] < 16 << 20
        assert server.status["ready"], "a warning is no reason not to serve"
        assert "of at most 16.8 MB of WAL kept" in server.run("status").stdout
        row = admin.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
        assert row is not None
        checked = server.run("check").stdout
        assert f"in use by pid {row[0]} (laredo-fanout s" in checked
        assert "max_slot_wal_keep_size" in checked
        _assert_shown(server, _warned(server))
        assert "raise max_slot_wal_keep_size now" in _warned(server)["unreserved"]
        _set(admin, _KEEP.format("1GB"))
        wait_until(lambda: "unreserved" not in _warned(server), "what it said cured it")
        assert server.status["ready"]

        left.commit()
        wait_until(lambda: admin.execute("CHECKPOINT") and not _warned(server), "all is well")
        wait_until(
            lambda: _said_to_be_over(server) == {"extended", "unreserved", "xmin"},
            "the log says so",
        )


@pytest.mark.thorough
def test_idle_and_then_invalidated(clusters: Clusters, tmp_path: Path) -> None:
    """PostgreSQL 18: nobody streams for longer than idle_replication_slot_timeout."""
    fail = "sources.pg.on_slot_lost = fail\n"
    server = _server(clusters, tmp_path, 18, fail, idle_replication_slot_timeout="2s")
    with clusters.servers[-1].connect() as admin:

        def is_idle() -> bool:
            row = admin.execute(
                "SELECT inactive_since < now() - interval '1.5 s' FROM pg_replication_slots"
            ).fetchone()
            return row == (True,)

        with started(server):
            pass
        # No checkpoint comes, which alone would invalidate it.
        wait_until(is_idle, "nobody streams")
        warned = server.run("check").stdout
        assert "slot s hasn't been streamed from" in warned
        assert "raise idle_replication_slot_timeout" in warned
        with started(server):
            wait_until(lambda: "idle" in _said_to_be_over(server), "it is said, and over")
            assert _warned(server) == {}

        def invalidated() -> bool:
            admin.execute("CHECKPOINT")
            row = admin.execute("SELECT wal_status FROM pg_replication_slots").fetchone()
            return row == ("lost",)

        wait_until(invalidated, "it is invalidated")
        assert "s was invalidated: idle_timeout" in server.run("check").stdout
        with server.program:
            (problem,) = wait_until(
                lambda: [each for each in server.problems if "invalidated" in each], "it says so"
            )
            assert "longer than idle_replication_slot_timeout" in problem
            slot = server.status["sources"]["pg"]["slot"]
            assert (slot["wal_status"], slot["invalidated"]) == ("lost", "idle_timeout")
            assert set(_warned(server)) == {"lost"}
            assert server.metrics['laredo_slot_warning{kind="lost",source="pg"}'] == 1


@pytest.mark.parametrize("version", drawn.first(1, [18, 16]))
def test_a_lost_slot_is_shown_until_somebody_decides(
    clusters: Clusters, tmp_path: Path, version: int
) -> None:
    settings = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB"}
    fail = "sources.pg.on_slot_lost = fail\n"
    server = _server(clusters, tmp_path, version, fail, **settings)
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
    server = _server(clusters, tmp_path, idle_replication_slot_timeout="1h", wal_sender_timeout="0")
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
    assert "s was created without failover: a promoted standby won't have it" in shown
    assert "ALTER_REPLICATION_SLOT s (FAILOVER true)" in shown
    assert "-1: WAL is kept without limit while this server is down" in shown


@pytest.mark.thorough
def test_what_the_slot_keeps_is_shown_while_its_stream_cannot_be_had(
    clusters: Clusters, tmp_path: Path
) -> None:
    server = _server(clusters, tmp_path)
    connected = 'laredo_source_connected{source="pg"}'
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
