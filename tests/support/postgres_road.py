"""A table of every type from PostgreSQL through server and writer to Spark."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it

from laredo_model import position as positions
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

DIFF_FORMATS = ("jsonl", "protobuf")

FORMATS = (*DIFF_FORMATS, "parquet")

SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc_port}" }}
  diff {{ interval = 200ms }}, seen_interval = 1s
  formats {{ snapshot = [{formats}], diff = [{diff_formats}] }}
  destinations = [ {{ type = local, path = "{directory}" }} ]
  http {{ host = "127.0.0.1", port = {http_port} }}
  tables = [ {tables} ]
  {more}
}}
"""

TYPES = """
    CREATE TYPE mood AS ENUM ('so so', 'fine');
    CREATE TYPE pair AS (a int, b text);
    CREATE DOMAIN price AS numeric(18,4);
    CREATE TABLE kinds (
        id bigint PRIMARY KEY, flag bool, small int2, middle int4, big int8, id_of oid,
        real4 float4, real8 float8, exact numeric(18,4), wide numeric(38), free numeric,
        paid price, cash money, day date, clock time, zoned_clock timetz, bare timestamp,
        zoned timestamptz, span interval, words text, letters varchar(20), fixed char(5),
        bytes bytea, ident uuid, plain json, doc jsonb, host inet, net cidr, bits bit(3), m mood,
        both_ pair, reach int4range, vector tsvector, numbers int4[], texts text[],
        deep int8[], prices numeric(10,2)[], moments timestamptz[], blobs bytea[], docs jsonb[]);
    CREATE TABLE pairs (amount int, place text, at int, PRIMARY KEY (place, at));
    CREATE TABLE special (id int PRIMARY KEY, day date, zoned timestamptz, exact numeric(10,2))
"""

ROW = {
    "flag": "true",
    "small": "-32768",
    "middle": "2147483647",
    "big": "-9223372036854775808",
    "id_of": "4294967295",
    "real4": "1.1",
    "real8": "1e-320",
    "exact": "-12345678901234.5678",
    "wide": "9" * 38,
    "free": "123456789012345678901234567890123456789012345.000",
    "paid": "0.0001",
    "cash": "-1234.50",
    "day": "0001-01-01",
    "clock": "23:59:59.999999",
    "zoned_clock": "01:02:03.5+02",
    "bare": "9999-12-31 23:59:59.999999",
    "zoned": "2024-02-29 10:00:00.1+02",
    "span": "1 year -2 days 03:04:05.6",
    "words": 'quoted "x", a \\, a tab \t, lines \n \r\n \u2028, 😀',
    "letters": "ü",
    "fixed": "ab",
    "bytes": "\\x00ff5c22",
    "ident": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "plain": '{"a": 1,  "a": [[[[[[1.50]]]]]], "s": "\\ud800"}',
    "doc": '{"big": 123456789012345678901234567890.10, "n": null}',
    "host": "10.0.0.1",
    "net": "10.0.0.0/8",
    "bits": "101",
    "m": "so so",
    "both_": '(1,"a b")',
    "reach": "[1,5)",
    "vector": "a fat cat",
    "numbers": "{1,NULL,-3}",
    "texts": '{"a,b","c\\"d",NULL,""}',
    "deep": "{{1,2},{3,9007199254740993}}",
    "prices": "{1.10,NULL}",
    "moments": '{"2024-01-01 00:00:00.5+00"}',
    "blobs": '{"\\\\x00ff",NULL}',
    "docs": '{"{\\"a\\": [1]}",NULL}',
}

# What isn't listed is compared as psycopg and Spark give it.
AS_TEXT = "free cash clock zoned_clock span ident plain doc host net bits m both_ reach vector"

IN_POSTGRES = {
    **{name: f"to_json({name}) #>> '{{}}'" for name in ("host", "net", "cash")},
    **{name: f"{name}::text" for name in AS_TEXT.split() if name not in ("host", "net", "cash")},
    "docs": "docs::text[]",
    "real4": "real4::float8",
    "zoned": "(extract(epoch FROM zoned) * 1000000)::bigint",
    "moments": "ARRAY(SELECT (extract(epoch FROM m) * 1000000)::bigint FROM unnest(moments) m)",
}

SPECIAL = {name: f"{name}::text" for name in ("day", "zoned", "exact")}

IN_SPARK = {"zoned": "unix_micros(zoned)", "moments": "transform(moments, m -> unix_micros(m))"}

EMPTY_ARRAY_FOR_NULL = frozenset({"moments"})

Rows = list[tuple[Any, ...]]


@dataclass
class State:
    """Columns and rows of a table after a position."""

    after: int
    columns: list[str]
    rows: Rows


@dataclass
class Road:
    """From PostgreSQL to the archive, one transaction at a time."""

    connection: "psycopg.Connection[Any]"
    directory: Path
    snapshotter: Program
    server: Fanout
    states: dict[str, list[State]] = field(default_factory=dict)

    def place(self, table: str) -> Path:
        return self.directory / table

    def head(self, table: str) -> int:
        file = self.place(table) / "manifest.json"
        found = json.loads(file.read_bytes())["head_position"] if file.exists() else None
        return int(positions.parse(found)) if found else -1

    def do(self, table: str, *statements: str, parameters: Mapping[str, str] | None = None) -> None:
        """One transaction that changes this table, and what it holds then."""
        before = self._now()
        with self.connection.transaction():
            for statement in statements:
                self.connection.execute(statement.encode(), parameters)
        wait_until(lambda: self.head(table) > before, f"{table} beyond {before:x}")
        self.note(table, before)

    def note(self, table: str, after: int) -> None:
        found = self.connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
            " ORDER BY ordinal_position",
            (table,),
        )
        columns = [name for (name,) in found.fetchall()]
        chosen = IN_POSTGRES if table == "kinds" else SPECIAL if table == "special" else {}
        selected = ", ".join(chosen.get(column, f'"{column}"') for column in columns)
        rows = self.connection.execute(f"SELECT {selected} FROM {table}".encode()).fetchall()
        self.states.setdefault(table, []).append(State(after, columns, rows))

    def re_base(self, table: str) -> None:
        answer = httpx.post(
            f"{self.snapshotter.http}/snapshot?wait=true&table=public.{table}", timeout=PATIENCE_S
        )
        assert answer.status_code == 200, answer.text

    def at(self, table: str, position: int) -> State:
        return [state for state in self.states[table] if state.after < position][-1]

    def _now(self) -> int:
        found = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert found is not None
        return int(positions.parse(found[0]))


@contextmanager
def road(directory: Path, database: Database, more: str = "") -> Iterator[Road]:
    """Everything running, the tables archived as they are at first: empty.

    ``more``: of the snapshotter's configuration.
    """
    tables = ("kinds", "pairs", "special")
    blocks = [
        f"{{ table = {name}, targets = [ {{ heartbeat_interval = 200ms }} ] }}" for name in tables
    ]
    server = fanout(directory / "fanout", database.dsn, ", ".join(blocks), slot=database.name)
    http_port = free_port()
    config = directory / "snapshotter.conf"
    config.write_text(
        SNAPSHOTTER.format(
            grpc_port=server.grpc_port,
            formats=", ".join(FORMATS),
            diff_formats=", ".join(DIFF_FORMATS),
            directory=directory / "archive",
            http_port=http_port,
            tables=", ".join(f"{{ source {{ table = {name} }} }}" for name in tables),
            more=more,
        )
    )
    snapshotter = Program(
        "laredo-snapshotter", config, http_port, log=directory / "snapshotter.log"
    )
    with database.connect() as connection:
        connection.autocommit = True
        connection.execute("SET timezone = 'UTC'; SET extra_float_digits = 3")
        connection.execute(TYPES)
        with started(server), snapshotter:
            snapshotter.wait_ready()
            made = Road(connection, directory / "archive", snapshotter, server)
            for table in tables:
                made.note(table, -1)
            yield made


def insert(number: int) -> str:
    values = ", ".join(f"%({name})s" for name in ROW)
    return f"INSERT INTO kinds (id, {', '.join(ROW)}) VALUES ({number}, {values})"


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=repr)


def collected(frame: DataFrame) -> Rows:
    chosen = [F.expr(IN_SPARK.get(name, name)).alias(name) for name in frame.columns]
    return [tuple(map(_plain, row)) for row in frame.select(*chosen).collect()]


def _plain(value: object) -> object:
    """bytes for the bytearrays that Spark gives."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return bytes(value) if isinstance(value, bytearray) else value


def expected(state: State) -> Rows:
    def plain(name: str, value: Any, row: tuple[Any, ...]) -> Any:
        if name in EMPTY_ARRAY_FOR_NULL and row[state.columns.index("numbers")] is None:
            return None
        return value

    return [
        tuple(plain(name, value, row) for name, value in zip(state.columns, row, strict=True))
        for row in state.rows
    ]


DEEP = {"array_dimensions": "deep=2"}
