"""A transaction too big for memory is spooled and applied at its commit, whole."""

import pytest

from laredo_fanout.decode import stream_decoder, transaction_spool
from tests.support.ingest import Start
from tests.support.postgres import Database


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
