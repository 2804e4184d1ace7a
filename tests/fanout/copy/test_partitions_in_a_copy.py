"""Filled partitions that are attached and detached again between two catalog snapshots, untouched
through the root: neither the stream nor the catalog tells of them, only the chunk that read them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from laredo_fanout.copy import range_reader
from laredo_fanout.source_options import CopyOptions
from tests.support import drawn
from tests.support.ingest import Gate, RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.processes import PATIENCE_S
from tests.support.server.moving_partitions import ROOT, settle, watched

if TYPE_CHECKING:
    from laredo_fanout.pg_catalog.table_definitions import SourceTable


_NEVER = 3600.0
"""Between catalog snapshots that nobody asks for."""
_ATTACH = "ALTER TABLE a ATTACH PARTITION a1 FOR VALUES FROM (100) TO (100000)"
_DETACH = "ALTER TABLE a DETACH PARTITION a1"
_FEW = ("CREATE TABLE a1 (LIKE a INCLUDING ALL)", "INSERT INTO a1 VALUES (150, 'ghost')")
_MANY = (
    "CREATE TABLE a1 (LIKE a INCLUDING ALL)",
    "INSERT INTO a1 SELECT g, repeat('ghost', 200) FROM generate_series(101, 20100) g",
)
_BELOW = (
    "CREATE TABLE a1 (LIKE a INCLUDING ALL) PARTITION BY RANGE (id)",
    "CREATE TABLE a11 PARTITION OF a1 FOR VALUES FROM (100) TO (200)",
    "INSERT INTO a1 VALUES (150, 'ghost')",
)


@contextmanager
def _no_chunk_begins(database: Database, *tables: str) -> Iterator[None]:
    """Copies wait for whoever holds such a lock; the stream shows nothing of it."""
    with database.connect() as connection, connection.transaction():
        for table in tables or ("a",):
            connection.execute(f"LOCK TABLE ONLY {table} IN ROW EXCLUSIVE MODE".encode())
        yield


def _attach_when_it_waits(
    ingest: RunningIngest, table: str = "public.a", attach: str = _ATTACH
) -> None:
    """The catalog snapshot that the copy begins with doesn't show the partition."""

    def waits() -> bool:
        copy = ingest.status.tables[table].copy
        return copy is not None and bool(copy.waiting_for)

    ingest.wait_until(waits, "the copy waits")
    ingest.database.run(attach)


@contextmanager
def _looks(ingest: RunningIngest) -> Iterator[None]:
    """The catalog is looked at as long as the block lasts."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.2):
            ingest.ingest.check_catalog_soon()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def _assert_right(ingest: RunningIngest, *tables: str) -> None:
    with _looks(ingest):
        settle(ingest, *tables)
    ingest.assert_equal(*tables)


_WITHOUT_KEY = ("CREATE TABLE a (id int, v text) PARTITION BY RANGE (id)", *ROOT[1:])


@pytest.mark.parametrize(
    "made",
    [(*ROOT, *_FEW), (*ROOT, *_BELOW), (*_WITHOUT_KEY, *_FEW)],
    ids=["partition", "with partitions itself", "append-only"],
)
@pytest.mark.parametrize("restarted", drawn.first(1, [False, True]))
@on_versions(18, also=(16,))
def test_read_by_the_initial_copy(
    database: Database, ingesting: Start, gate: Gate, made: tuple[str, ...], restarted: bool
) -> None:
    database.run(*made)
    appended = ("public.a",) if made[0] == _WITHOUT_KEY[0] else ()
    with _no_chunk_begins(database):
        ingest = ingesting("public.a", append_only=appended, heartbeat_interval=_NEVER)
        _attach_when_it_waits(ingest)
    with gate.holding(ingest):
        database.run(_DETACH)
    ingest.wait_live()
    assert b"ghost" in b"".join(ingest.state("public.a").values())
    if restarted:
        ingest.restart()
        ingest.wait_live()
    _assert_right(ingest)


@pytest.mark.parametrize("detach", drawn.first(1, [f"{_DETACH} CONCURRENTLY", _DETACH]))
@on_versions(18, also=(16,))
def test_read_by_a_re_copy(database: Database, live: Start, gate: Gate, detach: str) -> None:
    gate.open()
    database.run(*ROOT, *_FEW)
    ingest = live("public.a", heartbeat_interval=_NEVER)
    with _looks(ingest):
        settle(ingest)
    gate.close_again()
    with _no_chunk_begins(database):
        ingest.ingest.recopy("public.a").result(PATIENCE_S)
        _attach_when_it_waits(ingest)
    with gate.holding(ingest):
        database.run(detach)
    ingest.wait_live()
    assert b"ghost" in b"".join(ingest.state("public.a").values())
    _assert_right(ingest)


@on_versions(18, also=(16,))
def test_read_by_a_chunk_that_is_cut_off(database: Database, ingesting: Start, gate: Gate) -> None:
    """Its first rows are in the store; it is read again when the partition is gone."""
    database.run(*ROOT, *_MANY)
    gate.close_after(2000)
    with _no_chunk_begins(database):
        ingest = ingesting("public.a", heartbeat_interval=_NEVER)
        _attach_when_it_waits(ingest)
    with gate.holding(ingest):
        assert 2000 <= gate.rows < 20_000
        database.run(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE application_name LIKE '%% copy' AND datname = current_database()"
        )
        database.run(_DETACH)
    ingest.wait_live()
    _assert_right(ingest)


@pytest.mark.parametrize(
    "go", drawn.first(1, ["DROP TABLE a5", "ALTER TABLE a DETACH PARTITION a5"])
)
@on_versions(18, also=(16,))
def test_a_known_partition_goes_between_the_chunks_of_a_re_copy(
    database: Database, live: Start, gate: Gate, go: str
) -> None:
    """The barrier comes although rows moved; then what the re-copy has of them is put right."""
    gate.open()
    database.run(
        *ROOT,
        "CREATE TABLE a5 PARTITION OF a FOR VALUES FROM (100) TO (100000)",
        "INSERT INTO a SELECT g, repeat('known', 20) FROM generate_series(101, 5100) g",
        "ANALYZE a",
    )
    options = CopyOptions(workers=1, range_bytes=64 << 10)
    ingest = live("public.a", heartbeat_interval=0.2, copy=options)
    settle(ingest)
    before = ingest.record("public.a")
    gate.close_again(after=1500)
    with watched(ingest) as history:
        ingest.ingest.recopy("public.a").result(PATIENCE_S)
        with gate.holding(ingest):
            progress = ingest.status.tables["public.a"].copy
            assert progress is not None
            assert 0 < progress.ranges_done < progress.ranges - 1
            history.run(database, [go])
            ingest.wait_until(
                lambda: any(each.suspect_range for each in ingest.store.tables.values()),
                "it is noticed",
            )
        settle(ingest)
        ingest.assert_equal()
        assert history.assert_right_where_verified()
    now = ingest.record("public.a")
    assert now.id == before.id


@on_versions(18, also=(16,))
def test_leaf_is_named_although_it_came_after_the_snapshot(database: Database) -> None:
    """A SELECT is planned with what is attached then, whatever its transaction's snapshot shows."""
    database.run(*ROOT, *_FEW)
    with database.connect() as reading, reading.transaction():
        reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        (root, partition), *_ = reading.execute(
            "SELECT 'a'::regclass::oid::int8, 'a1'::regclass::oid::int8"
        ).fetchall()
        database.run(_ATTACH)
        table = cast("SourceTable", SimpleNamespace(oid=root))
        select = range_reader.with_leaves(table, "SELECT v AS key, to_json(id) AS line FROM a")
        with reading.cursor().copy(f"COPY ({select}) TO STDOUT (FORMAT binary)".encode()) as copy:
            rows = [bytes(row) for row in copy]
        assert any(b"ghost" in row for row in rows)
        found = range_reader.parse(rows[0][19:])
        assert found is not None and partition in found.leaves
