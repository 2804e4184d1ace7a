"""A fast shutdown of PostgreSQL whose last WAL brought no transaction of the tables."""

import subprocess
from pathlib import Path

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support.clusters import Clusters
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database

TABLE = "public.t"
GIANT = "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1000, 2000) g"
LAST = (
    ("SELECT pg_log_standby_snapshot()",),
    ("INSERT INTO unrelated VALUES (1)",),
    ("SELECT pg_logical_emit_message(false, 'other', 'of no transaction')",),
    # Streamed before its commit, which comes when the server has been restarted.
    (f"BEGIN; {GIANT}; PREPARE TRANSACTION 'giant'", "SELECT pg_log_standby_snapshot()"),
)
"""Statements that bring no transaction of the table."""


def test_the_end_of_wal_is_confirmed_where_nothing_is_missing(
    clusters: Clusters, tmp_path: Path
) -> None:
    server = clusters.new(wal_sender_timeout="60s", logical_decoding_work_mem="64kB")
    database = Database(server, "postgres")
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE unrelated (id int)",
        "INSERT INTO t SELECT g, 'a' FROM generate_series(1, 100) g",
    )
    ingest = RunningIngest(database, tmp_path / "store", (TABLE,), heartbeat_interval=60).start()
    try:
        ingest.wait_live()
        copied = ingest.record(TABLE).id
        for number, statements in enumerate(LAST):
            ingest.assert_equal()
            ingest.wait_until(lambda: _is_confirmed(ingest), "all of it is confirmed")
            stored = ingest.store.position
            database.run(*statements)
            written = database.position()
            server.stop()
            assert _state(server) == "shut down", f"it waited for us after {statements}"
            assert stored < written <= ingest.store.position
            server.start()
            database.run(f"UPDATE t SET a = '{number}' WHERE id % 4 = {number}")
        database.run("COMMIT PREPARED 'giant'")
        ingest.assert_equal()
        assert database.streamed(), "the giant transaction was streamed in parts"
        assert ingest.record(TABLE).id == copied
        assert (ingest.status.recopies, ingest.status.slot_losses) == (0, 0)
    finally:
        ingest.stop()


def _is_confirmed(ingest: RunningIngest) -> bool:
    return ingest.database.confirmed() == ingest.store.position


def _state(server: EmbeddedPostgres) -> str:
    """State of the stopped server's cluster: "shut down" unless it had to be killed."""
    program = [str(server.bin / "pg_controldata"), "-D", str(server.data)]
    told = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    return told.partition("Database cluster state:")[2].partition("\n")[0].strip()
