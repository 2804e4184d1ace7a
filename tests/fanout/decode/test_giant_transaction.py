"""A transaction too big for memory is spooled and applied at its commit, whole."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.decode import stream_decoder, transaction_spool
from laredo_fanout.decode.stream_decoder import RoutedChanges
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, data_directory, new_database
from tests.support.processes import free_port


@pytest.fixture
def small_spool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_decoder, "_SPOOL_FROM_BYTES", 100_000)
    monkeypatch.setattr(transaction_spool, "_PIECE_BYTES", 50_000)


@pytest.mark.usefixtures("small_spool")
def test_giant_transactions_arrive_whole(database: Database, live: Start) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE u (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 5000) g",
    )
    ingest = live("public.t", "public.u")
    record = ingest.record("public.t")
    seen: list[int] = []
    ingest.on_commit = lambda commit: seen.append(ingest.store.tables[record.id].rows)
    database.run(
        "INSERT INTO t VALUES (-1, 'before')",
        "BEGIN; UPDATE t SET a = a || '!'; INSERT INTO u SELECT id, a FROM t;"
        " DELETE FROM t WHERE id > 100; UPDATE u SET id = id + 100000;"
        " INSERT INTO t SELECT g, 'new' FROM generate_series(10001, 20000) g; COMMIT",
        "INSERT INTO t VALUES (-2, 'after')",
        "BEGIN; INSERT INTO t SELECT g, 'x' FROM generate_series(30000, 40000) g; ROLLBACK",
        "BEGIN; INSERT INTO u SELECT g, 'x' FROM generate_series(30000, 40000) g; TRUNCATE u;"
        " UPDATE t SET a = 'c' WHERE id = 1; COMMIT",
    )
    ingest.assert_equal()
    assert set(seen) <= {5000, 5001, 10101, 10102}, "only whole transactions are ever committed"
    positions: list[int] = []
    for entry in ingest.store.reader().journal(record.id, record.sequence, 1 << 30):
        batch = entry.decode()
        assert len(batch.counts) == len(batch.positions)
        positions += batch.positions
    assert positions == sorted(positions)
    assert len(set(positions)) == 4


@pytest.mark.usefixtures("small_spool")
def test_a_step_longer_than_the_receive_timeout_keeps_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout = 2.0
    apply = WriteBatch.apply

    def slow(to: WriteBatch, pending: list[RoutedChanges], to_come: int) -> Iterator[None]:
        if any(each.changes.open for each in pending):
            time.sleep(timeout / 8)
        yield from apply(to, pending, to_come)

    port = free_port()
    with (
        data_directory() as data,
        EmbeddedPostgres(data, tcp_port=port) as postgres,
        new_database(postgres) as database,
    ):
        database.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
        through = f"127.0.0.1&port={port}"
        ingest = RunningIngest(
            database, tmp_path, ("public.t",), receive_timeout=timeout, through=through
        ).start()
        try:
            ingest.wait_live()
            monkeypatch.setattr(WriteBatch, "apply", slow)
            walsender = database.number("SELECT active_pid FROM pg_replication_slots")
            database.run(
                "INSERT INTO t SELECT g, 'x' FROM generate_series(1, 60000) g",
                "INSERT INTO t SELECT g, string_agg(md5((g * 64 + n)::text), '')"
                " FROM generate_series(100001, 102000) g, generate_series(1, 500) n GROUP BY g",
            )
            ingest.assert_equal()
            assert database.number("SELECT active_pid FROM pg_replication_slots") == walsender
        finally:
            ingest.stop()
