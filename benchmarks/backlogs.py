"""Backlogs to fall behind by: of how much WAL, what share of it is published, how it is cut."""

from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg

from benchmarks import bench_table

Database = psycopg.Connection[Any]

_UNPUBLISHED = """
CREATE TABLE IF NOT EXISTS unpublished (id bigint, body text);
TRUNCATE unpublished
"""
_SNAPSHOT_BYTES = 128 << 20
_SIZE = 1000


class Shape(NamedTuple):
    """What a transaction has, and how many there are."""

    name: str
    transactions: int
    published: int
    """Updates of the published table in each, keys at random."""
    unpublished: int
    """Rows inserted into a table that isn't published, 140 bytes each."""


class Made(NamedTuple):
    """A backlog: its published changes, and what share of its WAL these are."""

    changes: int
    wal_bytes: int
    published_share: float


def sparse(wal_bytes: int) -> Shape:
    """Small transactions that concern the published table and another one, 5 % of the WAL."""
    return Shape("small transactions", wal_bytes // 210_000, 10, 1000)


def spilled(wal_bytes: int) -> Shape:
    """Transactions that outgrow ``logical_decoding_work_mem`` (64 MB) by far."""
    return Shape("transactions of 200 MB", wal_bytes // 200_000_000, 10_000, 1_000_000)


def make(database: "Database", shape: Shape, rows: int, say: Callable[[str], None]) -> Made:
    """Commit them, with a snapshot of what runs each 128 MB.

    PostgreSQL logs one every 15 s, where decoding can begin; a backlog that grew in hours has
    one for every few megabytes, and one that is made in a minute nearly none.
    """
    database.execute(_UNPUBLISHED)
    begun = _inserted(database)
    noted, published = begun, 0
    for number in range(shape.transactions):
        with database.transaction():
            before = _inserted(database)
            database.execute(
                f"UPDATE {bench_table.NAME} SET n = n + 1, updated = now() WHERE id = ANY ("
                "SELECT 1 + (7919 * (%s::bigint + g)) %% %s FROM generate_series(1, %s) g)",
                (number * shape.published, rows, shape.published),
            )
            after = _inserted(database)
            published += after - before
            database.execute(
                "INSERT INTO unpublished SELECT g, repeat(md5(g::text), 4)"
                " FROM generate_series(1, %s) g",
                (shape.unpublished,),
            )
        if after - noted > _SNAPSHOT_BYTES:
            database.execute("SELECT pg_log_standby_snapshot()")
            noted = after
    database.execute("CHECKPOINT")
    wal_bytes = _inserted(database) - begun
    say(f"{wal_bytes / 1e9:.1f} GB of WAL, {100 * published / wal_bytes:.1f} % of it published")
    return Made(shape.transactions * shape.published, wal_bytes, published / wal_bytes)


def make_dense(database: "Database", updates: int, rows: int) -> Made:
    """Updates of the published table alone, keys at random."""
    begun = _inserted(database)
    bench_table.update_at_random(database, updates, rows, _SIZE)
    database.execute("CHECKPOINT")
    return Made(updates, _inserted(database) - begun, 1.0)


def _inserted(database: "Database") -> int:
    row = database.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(str(row[0]))
