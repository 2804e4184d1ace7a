"""The server's faults: each is made, its alert fires, the runbook's cure is done, it is over."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.rehearsals.prometheus import Prometheus, watching
from tests.support.clusters import Clusters
from tests.support.postgres import Database
from tests.support.processes import eventually, wait_until
from tests.support.server.fanout_program import Fanout, fanout

pytestmark = pytest.mark.thorough


@contextmanager
def rehearsed(
    directory: Path, database: Database, *statements: str, extra: str = ""
) -> Iterator[tuple[Fanout, Prometheus]]:
    """A server of a new table ``t`` that is well, and Prometheus; nothing fires."""
    database.run("CREATE TABLE t (id int PRIMARY KEY)", *statements)
    server = fanout(directory / "server", database, "{ table = t }", extra)
    with server.program:
        server.program.wait_ready()
        with watching(directory / "prometheus", laredo_fanout=server.program.http) as prometheus:
            prometheus.is_quiet()
            yield server, prometheus


def test_the_server_is_killed(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database) as (server, prometheus):
        server.program.kill()
        assert "doesn't answer" in prometheus.fires("LaredoServerDown")
        server.program.start()
        prometheus.is_over("LaredoServerDown")
        server.program.wait_ready()


def test_postgresql_is_down(tmp_path: Path, clusters: Clusters) -> None:
    postgres = clusters.new()
    database = clusters.lead_to(postgres)
    with rehearsed(tmp_path, database) as (server, prometheus):
        postgres.stop()
        prometheus.fires("LaredoSourceDisconnected")
        assert server.problems
        postgres.start()
        prometheus.is_over("LaredoSourceDisconnected")


def test_the_slot_is_dropped_by_hand(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database, "INSERT INTO t VALUES (1)") as (server, prometheus):
        _drop(database)
        assert "was lost" in prometheus.fires("LaredoSlotLost")
        server.program.wait_ready()
        because = server.status["sources"]["pg"]["because"]
        assert f"slot s_{database.name} doesn't exist any more" in because
        eventually(lambda: server.table("public.t")["rows"], 1)


def test_the_slot_is_dropped_and_the_server_is_to_wait(tmp_path: Path, database: Database) -> None:
    waits = "sources.pg.on_slot_lost = fail"
    with rehearsed(tmp_path, database, extra=waits) as (server, prometheus):
        _drop(database)
        prometheus.fires("LaredoSlotLost")
        server.program.stop()
        config = server.program.config
        config.write_text(
            config.read_text().replace("on_slot_lost = fail", "on_slot_lost = recreate")
        )
        server.program.start()
        server.program.wait_ready()
        # The loss itself fires for a quarter of an hour: every table was copied again.
        dropped = 'laredo_slot_warning{kind="dropped"} == 1'
        wait_until(lambda: not prometheus.ask("query", query=dropped)["result"], "it is over")


def test_a_transaction_cannot_be_decoded(tmp_path: Path, database: Database) -> None:
    made = "CREATE PUBLICATION filtered FOR TABLE t WHERE (100 / id > 0)"
    named = "sources.pg.publication { name = filtered, create = false }"
    with rehearsed(tmp_path, database, made, extra=named) as (server, prometheus):
        database.run("INSERT INTO t VALUES (1), (0)")
        assert "decoding" in prometheus.fires("LaredoStreamFault")
        wait_until(
            lambda: any("neither in parts nor whole" in each for each in server.problems),
            "both ways were tried",
        )
        database.run("DELETE FROM t WHERE id = 0")
        _drop(database)
        prometheus.is_over("LaredoStreamFault")
        server.program.wait_ready()
        wait_until(lambda: server.table("public.t")["rows"] == 1, "the row is served")


def test_a_table_without_a_key(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database) as (server, prometheus):
        database.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
        assert "public.t" in prometheus.fires("LaredoTableNotLive")
        assert "no usable replica identity" in server.problems[0]
        database.run("ALTER TABLE t ADD PRIMARY KEY (id)")
        prometheus.is_over("LaredoTableNotLive")


def test_a_transaction_was_forgotten(tmp_path: Path, clusters: Clusters) -> None:
    postgres = clusters.new(max_slot_wal_keep_size="64MB", max_wal_size="1GB")
    database = clusters.lead_to(postgres)
    with (
        rehearsed(tmp_path, database) as (server, prometheus),
        database.connect() as forgotten,
        database.connect() as other,
    ):
        forgotten.execute("BEGIN")
        forgotten.execute("INSERT INTO t VALUES (1)")
        for _ in range(4):
            other.execute("SELECT pg_logical_emit_message(true, 'filler', 'x')")
            other.execute("SELECT pg_switch_wal()")
        assert "in danger" in prometheus.fires("LaredoSlotInDanger")
        pid = server.status["sources"]["pg"]["slot"]["oldest_transaction"]["pid"]
        other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        forgotten.close()
        # PostgreSQL lets WAL go at a checkpoint, and waits for minutes by itself.
        wait_until(
            lambda: other.execute("CHECKPOINT") and "LaredoSlotInDanger" not in prometheus.firing(),
            "the danger is over",
        )


async def test_no_place_for_another_client(tmp_path: Path, database: Database) -> None:
    few = "fanout.grpc.max_clients = 1"
    with rehearsed(tmp_path, database, extra=few) as (server, prometheus):
        async with server.follower("public.t"):
            fires = await asyncio.to_thread(prometheus.fires, "LaredoClientsFull")
            assert "has 1 clients" in fires
        prometheus.is_over("LaredoClientsFull")


def test_a_serving_process_hangs(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database) as (server, prometheus):
        (pid, *_) = server.status["fanout"]["pids"]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: any("has been silent for" in each for each in server.problems), "seen")
        assert "a serving process" in prometheus.fires("LaredoProcessHangs")
        wait_until(lambda: pid not in server.status["fanout"]["pids"], "another one")
        server.program.wait_ready()
        assert server.status["processes"]["hangs"]["serving"] == 1


def test_the_publication_is_dropped(tmp_path: Path, database: Database) -> None:
    with rehearsed(tmp_path, database, "INSERT INTO t VALUES (1)") as (server, prometheus):
        database.run("DROP PUBLICATION laredo", "INSERT INTO t VALUES (2)")
        assert "public.t is copied again" in prometheus.fires("LaredoTableCopiedAgain")
        server.program.wait_ready()
        eventually(lambda: server.table("public.t")["rows"], 2)


def _drop(database: Database) -> None:
    """As an engineer does who takes the slot for one that isn't needed."""
    slot = f"s_{database.name}"
    with database.connect() as owner:
        owner.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active",
            (slot,),
        )
        while True:
            try:
                owner.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            except psycopg.errors.ObjectInUse:
                owner.rollback()
            else:
                return
