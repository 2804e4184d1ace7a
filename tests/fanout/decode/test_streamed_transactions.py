"""Transactions that PostgreSQL sends before their commit (protocol version 2), in parts."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.decode import transaction_spool
from laredo_fanout.decode.stream_decoder import RoutedChanges
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.processes import PATIENCE_S
from tests.support.server.interleaving import TABLES, Interleaving, killing
from tests.support.server.journal_oracle import Replay

_SMALL_MEMORY = "logical_decoding_work_mem = '64kB'"
_AT_ONCE = "debug_logical_replication_streaming = 'immediate'"


def _stream(database: Database, setting: str = _SMALL_MEMORY) -> None:
    database.run(f"ALTER DATABASE {database.name} SET {setting}")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_spool, "_PIECE_BYTES", 20_000)
    monkeypatch.setattr(transaction_spool, "_WRITE_FROM_BYTES", 5_000)


@pytest.mark.parametrize(
    ("database", "setting", "seed"),
    [
        pytest.param(18, _SMALL_MEMORY, 11, id="18-small"),
        pytest.param(18, _AT_ONCE, 12, id="18-immediate", marks=pytest.mark.thorough),
        pytest.param(16, _SMALL_MEMORY, 13, id="16-small", marks=pytest.mark.thorough),
        pytest.param(16, _AT_ONCE, 14, id="16-immediate", marks=pytest.mark.thorough),
    ],
    indirect=["database"],
)
def test_interleaved_transactions_are_in_the_journal_as_they_were(
    database: Database, live: Start, setting: str, seed: int
) -> None:
    _stream(database, setting)
    with Interleaving(database, seed) as writing:
        ingest = live(*TABLES, heartbeat_interval=0.2)
        writing.begin(ingest)
        starts = [Replay(ingest, name) for name in TABLES]
        with killing(database, seed, "stream"):
            for _ in range(750):
                writing.step()
        writing.finish()
        ingest.assert_equal()
        for start in starts:
            assert start.compare(writing.commits) > 30
    ingest.wait_until(lambda: database.streamed() > 20, "transactions were streamed")
    assert not list((ingest.path / "streamed").glob("*")), "what was spooled is gone"


def _two_tables(database: Database, ingesting: Start, **options: Any) -> RunningIngest:
    """Tables t and u, live; every transaction over 64 kB is streamed."""
    _stream(database)
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE u (id int PRIMARY KEY, a text)",
        "INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) g",
    )
    ingest = ingesting("public.t", "public.u", **options)
    ingest.wait_live()
    return ingest


def _spooled(ingest: RunningIngest) -> list[Path]:
    return list((ingest.path / "streamed").glob("*"))


_MANY = "INSERT INTO u SELECT g, repeat('x', 50) FROM generate_series({}, {}) g"


def _while_streamed(database: Database, ingest: RunningIngest, statements: str, then: str) -> None:
    """One transaction; a part of it has come before ``then``."""
    with database.connect() as writing:
        writing.execute(f"BEGIN; {statements}".encode())
        ingest.wait_until(lambda: _spooled(ingest), "a part was spooled")
        writing.execute(then.encode())


@on_versions(14, 16, 17, 18)
def test_a_table_announced_within_a_streamed_transaction(
    database: Database, ingesting: Start
) -> None:
    ingest = _two_tables(database, ingesting)
    record = ingest.record("public.u")
    _while_streamed(database, ingest, _MANY.format(1, 3000), "ROLLBACK")
    database.run("INSERT INTO u VALUES (-1)")
    ingest.assert_equal()
    ingest.restart()
    ingest.wait_live()
    _while_streamed(database, ingest, _MANY.format(1, 3000), "COMMIT")
    # The announcement isn't repeated after the commit.
    database.run("INSERT INTO u VALUES (-2)")
    ingest.assert_equal()
    after = ingest.record("public.u")
    assert after.id == record.id


@on_versions(14, 16, 17, 18)
def test_schema_changes_within_streamed_transactions(database: Database, ingesting: Start) -> None:
    ingest = _two_tables(database, ingesting, heartbeat_interval=0.2)
    record = ingest.record("public.u")
    altered = "ALTER TABLE u ADD b int; UPDATE u SET b = id"
    database.run(_MANY.format(1, 3000))
    _while_streamed(database, ingest, f"{altered}; {_MANY.format(3001, 6000)}", "ROLLBACK")
    _while_streamed(
        database,
        ingest,
        f"SAVEPOINT s; {altered}; {_MANY.format(3001, 6000)}",
        f"ROLLBACK TO s; {_MANY.format(6001, 9000)}; COMMIT",
    )
    database.run("INSERT INTO u VALUES (-1)")
    ingest.assert_equal()
    same = ingest.record("public.u")
    assert same.id == record.id, "what was rolled back changed nothing"
    _while_streamed(database, ingest, f"{_MANY.format(9001, 12000)}; {altered}", "COMMIT")
    ingest.wait_copied_again(record)
    ingest.assert_equal()


def test_a_streamed_transaction_begins_anew_with_the_stream(
    database: Database, ingesting: Start
) -> None:
    ingest = _two_tables(database, ingesting)
    with database.connect() as writing:
        writing.execute(b"BEGIN")
        writing.execute(_MANY.format(1, 5000).encode())
        ingest.wait_until(lambda: _spooled(ingest), "a part was spooled")
        before = ingest.store.position
        ingest.stop()
        assert database.confirmed() <= max(before, ingest.store.position)
        (ingest.path / "streamed").mkdir(exist_ok=True)
        left = ingest.path / "streamed" / "12345"
        left.write_bytes(b"of an earlier life")
        ingest.start()
        ingest.wait_until(lambda: ingest.status.connected, "it streams again")
        assert not left.exists()
        writing.execute(_MANY.format(5001, 9000).encode())
        writing.execute(b"COMMIT")
    ingest.assert_equal()
    assert not _spooled(ingest)


def test_stopped_while_a_giant_transaction_is_applied(
    database: Database, ingesting: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = _two_tables(database, ingesting)
    within, go_on = threading.Event(), threading.Event()
    apply = WriteBatch.apply
    before: list[int] = []

    def held(to: WriteBatch, pending: list[RoutedChanges], to_come: int) -> Iterator[None]:
        yield from apply(to, pending, to_come)
        if any(each.changes.open for each in pending):
            # A catalog snapshot's message may have passed since the test began.
            before.append(ingest.store.position)
            within.set()
            assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(WriteBatch, "apply", held)
    database.run("BEGIN; " + _MANY.format(1, 20000) + "; COMMIT")
    assert within.wait(PATIENCE_S), "pieces are applied"
    ingest.ingest.stop()
    go_on.set()
    ingest.stop()
    monkeypatch.undo()
    assert ingest.error is None
    ingest.start()
    assert ingest.store.position == before[0], "nothing of it was kept"
    ingest.assert_equal()
