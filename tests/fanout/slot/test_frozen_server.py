"""A server that is stopped by SIGSTOP holds PostgreSQL's checkpointer for a limited time."""

import os
import signal
from pathlib import Path

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support.postgres import data_directory
from tests.support.processes import PATIENCE_S, free_port, wait_until
from tests.support.server.fanout_program import fanout

_ROWS = "INSERT INTO t SELECT g, repeat(md5(g::text), 300) FROM generate_series(1, 3000) g"
"""More than sockets buffer: the walsender waits for its reader."""


@pytest.mark.thorough
def test_a_checkpoint_passes_though_the_reader_of_an_invalid_slot_is_frozen(tmp_path: Path) -> None:
    settings = {"max_slot_wal_keep_size": "96MB", "max_wal_size": "64MB", "wal_sender_timeout": "0"}
    port = free_port()
    with (
        data_directory() as directory,
        EmbeddedPostgres(directory / "data", settings=settings, tcp_port=port) as postgres,
        postgres.connect() as connection,
    ):
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.execute("ALTER TABLE t ALTER a SET STORAGE EXTERNAL")
        dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        waits = "sources.pg { receive_timeout = 5s, on_slot_lost = fail }"
        server = fanout(tmp_path / "server", dsn, "{ table = t }", waits)
        with server.program:
            server.program.wait_ready()
            os.kill(server.program.pid, signal.SIGSTOP)
            try:
                connection.execute(_ROWS)
                for _ in range(12):
                    connection.execute("SELECT pg_logical_emit_message(true, 'filler', 'x')")
                    connection.execute("SELECT pg_switch_wal()")
                # It ends the walsender, and waits for its end.
                connection.execute(f"SET statement_timeout = '{PATIENCE_S}s'".encode())
                connection.execute("CHECKPOINT")
                row = connection.execute("SELECT active, wal_status FROM pg_replication_slots")
                assert row.fetchone() == (False, "lost")
            finally:
                os.kill(server.program.pid, signal.SIGCONT)
            wait_until(
                lambda: any("its WAL is gone" in each for each in server.problems), "it says so"
            )
