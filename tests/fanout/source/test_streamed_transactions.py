"""Transactions that PostgreSQL sends before their commit (protocol version 2), in parts."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from laredo_fanout.source import streamed
from tests.fanout.source.interleaving import TABLES, Interleaving
from tests.fanout.source.journal_oracle import Replay
from tests.fix_ingest import RunningIngest
from tests.fix_postgres import Database

Start = Callable[..., RunningIngest]

_SMALL_MEMORY = "logical_decoding_work_mem = '64kB'"
_AT_ONCE = "debug_logical_replication_streaming = 'immediate'"


def _run(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _stream(database: Database, setting: str = _SMALL_MEMORY) -> None:
    _run(database, f"ALTER DATABASE {database.name} SET {setting}")


def _streamed(database: Database) -> int:
    """How many transactions were sent in parts, as far as PostgreSQL has said."""
    with database.connect() as connection:
        found = connection.execute(
            "SELECT coalesce(sum(stream_txns), 0) FROM pg_stat_replication_slots"
            " WHERE slot_name = %s",
            (f"slot_{database.name}",),
        ).fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_PIECE_BYTES", 20_000)
    monkeypatch.setattr(streamed, "_WRITE_FROM_BYTES", 5_000)


@pytest.mark.parametrize(
    ("database", "setting", "seed"),
    [
        pytest.param(18, _SMALL_MEMORY, 11, id="18-small"),
        pytest.param(18, _AT_ONCE, 12, id="18-immediate"),
        pytest.param(16, _SMALL_MEMORY, 13, id="16-small"),
        pytest.param(16, _AT_ONCE, 14, id="16-immediate"),
    ],
    indirect=["database"],
)
def test_interleaved_transactions_are_in_the_journal_as_they_were(
    database: Database, ingesting: Start, setting: str, seed: int
) -> None:
    _stream(database, setting)
    with Interleaving(database, seed) as writing:
        ingest = ingesting(*TABLES, heartbeat_interval=0.2)
        ingest.wait_live()
        writing.begin(ingest)
        starts = [Replay(ingest, name) for name in TABLES]
        with _killing_streams(database, seed):
            for _ in range(900):
                writing.step()
        writing.finish()
        ingest.assert_equal()
        for start in starts:
            assert start.compare(writing.commits) > 30
    ingest.wait_until(lambda: _streamed(database) > 20, "transactions were streamed")
    assert not list((ingest.path / "streamed").glob("*")), "what was put aside is gone"


@contextmanager
def _killing_streams(database: Database, seed: int) -> Iterator[None]:
    stop = threading.Event()

    def kill() -> None:
        chance = random.Random(seed)
        with database.connect() as connection:
            while not stop.wait(chance.uniform(0.2, 0.6)):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name LIKE '% stream'"
                )

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        stop.set()
        killer.join()
