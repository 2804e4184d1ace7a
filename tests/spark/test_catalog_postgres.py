"""Several tables with foreign keys from PostgreSQL to Spark: at every common position they hold.

Random transactions over the tables, whose intervals are unequal; diffs are merged beside the
writing, and the writer is killed meanwhile. Whatever the catalog and the manifests say at some
moment is chosen by; what is read there is compared with what PostgreSQL held, and every reference
leads somewhere.
"""

import json
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from laredo_archive.manifest import catalog, parser, timeline
from laredo_archive.manifest.timeline import CommonBoundary
from laredo_model import position as positions
from laredo_spark import read_catalog, read_tables
from tests.support import drawn
from tests.support.oracle import Oracle, assert_same, boundaries
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until
from tests.support.server.fanout_program import fanout, started

ENOUGH = drawn.examples(32)
"""Positions in common; one every 0.65 s while the writer runs, and none while it is down."""
INTERVALS = {
    "countries": "100ms",
    "customers": "150ms",
    "orders": "400ms",
    "items": "650ms",
    "visits": "300ms",
}
"""``countries`` never changes; ``visits`` has no key."""
TABLES = """
    CREATE TABLE countries (code text PRIMARY KEY);
    CREATE TABLE customers (id int PRIMARY KEY, name text, country text NOT NULL
        REFERENCES countries);
    CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL
        REFERENCES customers ON DELETE CASCADE);
    CREATE TABLE items (order_id int REFERENCES orders ON DELETE CASCADE, line int, what text,
        PRIMARY KEY (order_id, line));
    CREATE TABLE visits (country text NOT NULL REFERENCES countries);
    INSERT INTO countries VALUES ('de'), ('mx'), ('us')
"""
REFERENCES = (
    ("customers", "country", "countries", "code"),
    ("orders", "customer", "customers", "id"),
    ("items", "order_id", "orders", "id"),
    ("visits", "country", "countries", "code"),
)
SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc_port}" }}
  seen_interval = 400ms, retention {{ keep_epochs = 1000 }}
  snapshot {{ min_interval = 1s, max_interval = 5s }}
  compaction {{ levels = [1s, 3s] }}
  destinations = [ {{ type = local, path = "{directory}" }} ]
  http {{ host = "127.0.0.1", port = {http_port} }}
  tables = [ {tables} ]
}}
"""

Rows = list[dict[str, Any]]


@dataclass
class Shop:
    """Random transactions, each over several of the tables."""

    connection: psycopg.Connection[Any]
    oracle: Oracle
    random: random.Random
    customers: list[int] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    last: int = 0

    def transaction(self) -> None:
        with self.connection.transaction():
            for _ in range(self.random.randint(1, 4)):
                self._step()
            for table in INTERVALS:
                self.oracle.note(self.connection, table)

    def _step(self) -> None:
        chance = self.random.random()
        if not self.customers or chance < 0.2:
            self._do("INSERT INTO customers VALUES (%s, 'new', %s)", self._next(), "us")
            self.customers.append(self.last)
        elif chance < 0.6:
            customer = self.random.choice(self.customers)
            self._do("INSERT INTO orders VALUES (%s, %s)", self._next(), customer)
            self.orders.append(self.last)
            for line in range(self.random.randint(0, 3)):
                self._do("INSERT INTO items VALUES (%s, %s, 'thing')", self.last, line)
        elif chance < 0.7:
            customer = self.random.choice(self.customers)
            country = self.random.choice(["de", "mx"])
            self._do("UPDATE customers SET country = %s WHERE id = %s", country, customer)
        elif chance < 0.85 and self.orders:
            order = self.orders.pop(self.random.randrange(len(self.orders)))
            self._do("DELETE FROM orders WHERE id = %s", order)
        elif chance < 0.95:
            customer = self.customers.pop(self.random.randrange(len(self.customers)))
            left = self.connection.execute(
                "DELETE FROM orders WHERE customer = %s RETURNING id", (customer,)
            )
            gone = {order for (order,) in left.fetchall()}
            self.orders = [order for order in self.orders if order not in gone]
            self._do("DELETE FROM customers WHERE id = %s", customer)
        elif chance < 0.96:
            self._do(f"TRUNCATE {self.random.choice(['items', 'visits'])}")
        for _ in range(self.random.randint(0, 2)):
            self._do("INSERT INTO visits VALUES (%s)", self.random.choice(["de", "us"]))

    def _next(self) -> int:
        self.last += 1
        return self.last

    def _do(self, statement: str, *values: object) -> None:
        self.connection.execute(statement.encode(), values)


@contextmanager
def running(directory: Path, database: Database) -> Iterator[Program]:
    """The server, and the writer's program."""
    blocks = [
        f"{{ table = {name}, append_only = {str(name == 'visits').lower()},"
        " targets = [ { heartbeat_interval = 200ms } ] }"
        for name in INTERVALS
    ]
    server = fanout(directory / "fanout", database.dsn, ", ".join(blocks), slot=database.name)
    http_port, config = free_port(), directory / "snapshotter.conf"
    tables = [
        f"{{ source {{ table = {name} }}, diff.interval = {interval} }}"
        for name, interval in INTERVALS.items()
    ]
    config.write_text(
        SNAPSHOTTER.format(
            grpc_port=server.grpc_port,
            directory=directory / "archive",
            http_port=http_port,
            tables=", ".join(tables),
        )
    )
    writer = Program("laredo-snapshotter", config, http_port, log=directory / "snapshotter.log")
    with started(server), writer:
        writer.wait_ready()
        yield writer


def chosen_now(archive: Path) -> list[CommonBoundary]:
    """Every boundary that a reader could choose at this moment: the catalog first, as one reads."""
    described = archive / "catalog.json"
    found = catalog.parse(described.read_bytes(), "there") if described.exists() else None
    spans = []
    for table in INTERVALS:
        file = archive / table / "manifest.json"
        if not file.exists():
            return []
        manifest = parser.parse(file.read_bytes(), table)
        prefix = f"{table}/"
        known = found.boundaries(prefix) if found is not None and prefix in found.archives else ()
        spans.append(
            timeline.known_too(
                timeline.spans_of(manifest, table),
                [(each.history, each.position) for each in known],
            )
        )
    return [each for of_history in timeline.common(spans).values() for each in of_history]


def assert_references(rows: Mapping[str, Rows], position: int) -> None:
    for table, column, other, key in REFERENCES:
        there = {row[key] for row in rows[other]}
        lost = [row for row in rows[table] if row[column] not in there]
        assert not lost, f"{table} at {position:#x}: {lost[:3]} lead nowhere"


@drawn.seeds(0, 2)
def test_foreign_keys_hold_at_every_common_position(
    seed: int, spark: SparkSession, tmp_path: Path, database: Database
) -> None:
    chance, archive = random.Random(seed), tmp_path / "archive"
    chosen: set[tuple[int, tuple[int, ...]]] = set()
    with database.connect() as connection:
        connection.autocommit = True
        connection.execute(TABLES)
        oracle = Oracle(database.dsn, f"oracle_{database.name}")
        for table in INTERVALS:
            oracle.start(table)
        shop = Shop(connection, oracle, chance)
        with running(tmp_path, database) as writer:
            until, kill_at = time.monotonic() + PATIENCE_S, 2
            while len(chosen) < ENOUGH:
                assert time.monotonic() < until, f"only {len(chosen)} in common"
                shop.transaction()
                time.sleep(chance.random() * 0.06)
                if len(chosen) >= kill_at:
                    writer.kill()
                    writer.start()
                    until, kill_at = (
                        time.monotonic() + PATIENCE_S,
                        len(chosen) + chance.randint(2, 6),
                    )
                if chance.random() < 0.3:
                    chosen |= {_as_read(each) for each in chosen_now(archive)}
            last = oracle.last_commit()
            wait_until(
                lambda: max((each.position for each in chosen_now(archive)), default=0) >= last,
                f"common from {last:#x} on\n{writer.tail()}",
            )
            chosen |= {_as_read(each) for each in chosen_now(archive)}
            in_spark = read_catalog(spark, str(archive))
            assert positions.parse(in_spark.position) >= last
        lines = {table: dict(boundaries(archive / table)) for table in INTERVALS}
        for position, starts in sorted(chosen):
            rows: dict[str, Rows] = {}
            for table, start in zip(INTERVALS, starts, strict=True):
                assert_same(oracle, table, position, lines[table][start])
                rows[table] = [json.loads(line) for line in lines[table][start]]
            assert_references(rows, position)
        _compare_in_spark(spark, archive, oracle, sorted(chosen), chance)
        oracle.close()


def _as_read(each: CommonBoundary) -> tuple[int, tuple[int, ...]]:
    return each.position, tuple(span.start for span in each.spans)


def _compare_in_spark(
    spark: SparkSession,
    archive: Path,
    oracle: Oracle,
    chosen: list[tuple[int, tuple[int, ...]]],
    chance: random.Random,
) -> None:
    """At some of the positions, by the manifests alone and with the catalog.

    The manifests may not have seen yet what the catalog knew.
    """
    uris = {f"public.{table}": f"{archive}/{table}/" for table in INTERVALS}
    seen = positions.parse(read_tables(spark, uris).position)
    for position, _ in chance.sample([each for each in chosen if each[0] <= seen], 3):
        as_of = positions.text(position)
        for frames in (read_tables(spark, uris, as_of), read_catalog(spark, str(archive), as_of)):
            at = positions.parse(frames.position)
            assert at <= position
            rows: dict[str, Rows] = {}
            for name, frame in frames.items():
                table = name.removeprefix("public.")
                rows[table] = [row.asDict() for row in frame.collect()]
                found = [json.dumps(row).encode() for row in rows[table]]
                assert_same(oracle, table, at, found)
            assert_references(rows, at)
