"""Tables of every kind of key, through server, client and writer: the archive and a client equal
PostgreSQL, after rows changed their keys too."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from laredo_archive.reader import Archive
from laredo_fanout.client import FanoutClient
from laredo_model import value_sql
from tests.support.archive import command_line
from tests.support.postgres import Database, on_versions
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until


class Kind(NamedTuple):
    """Every table has an int column ``n`` and a text column ``big``, which is TOASTed."""

    ddl: str
    """Its columns and constraints; {t} is its name."""
    values: str
    """Those columns' values, made of g."""
    move: str = ""
    """Statement that changes the key of a row."""
    after: tuple[str, ...] = ()
    append_only: bool = False


KINDS = {
    "int8_key": Kind("id int8 PRIMARY KEY", "g * 1000000007::int8", "id = -id"),
    "text_key": Kind("id text PRIMARY KEY", "E'k\\\\n\"é' || g", "id = id || 'x'"),
    "uuid_key": Kind("id uuid PRIMARY KEY", "md5(g::text)::uuid", "id = md5(id::text)::uuid"),
    "numeric_key": Kind("id numeric PRIMARY KEY", "g / 7.00", "id = -id"),
    "time_key": Kind(
        "id timestamptz PRIMARY KEY",
        "'2024-01-01Z'::timestamptz + g * interval '1 s'",
        "id = id + interval '1 year'",
    ),
    "bytea_key": Kind("id bytea PRIMARY KEY", "decode(md5(g::text), 'hex')", "id = id || 'x'"),
    "array_key": Kind("id int[] PRIMARY KEY", "ARRAY[g, NULL]", "id = id || 7"),
    "four_columns": Kind(
        "a text, b int, c bool, d date, PRIMARY KEY (d, b, a, c)",
        "'a' || g, g, g % 2 = 0, '2024-01-01'::date + g",
        "c = NOT c, a = a || '\"'",
    ),
    "index_key": Kind(
        "id int PRIMARY KEY, code text NOT NULL UNIQUE",
        "g, 'code' || g",
        "code = code || 'x'",
        ("ALTER TABLE index_key REPLICA IDENTITY USING INDEX index_key_code_key",),
    ),
    "full_with_key": Kind(
        "id int PRIMARY KEY, f float8",
        "g, g / 3.0",
        "id = -id",
        ("ALTER TABLE full_with_key REPLICA IDENTITY FULL",),
    ),
    "full_with_index": Kind(
        "id int NOT NULL UNIQUE",
        "g",
        "id = -id",
        ("ALTER TABLE full_with_index REPLICA IDENTITY FULL",),
    ),
    "partitioned": Kind(
        "id int, PRIMARY KEY (n, id)",
        "g",
        "id = -id, n = (n + 5) % 20",
    ),
    "keyless": Kind("what text", "'w' || g % 3", append_only=True),
}

FANOUT = """
state {{ path = "{directory}/state", max_size = 4 GB }}
sources {{ pg {{ connection = "{dsn}", slot_name = {slot}, publication {{ name = {slot} }}
    heartbeat_interval = 500ms }} }}
fanout {{ grpc {{ host = "127.0.0.1", port = {grpc} }}, drain_grace = 1s }}
http {{ host = "127.0.0.1", port = {http} }}
tables = [ {tables} ]
"""
SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc}" }}
  diff {{ interval = 300ms }}, seen_interval = 300ms
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  formats {{ snapshot = [jsonl, protobuf], diff = [jsonl] }}
  http {{ host = "127.0.0.1", port = {http} }}
  tables = [ {tables} ]
}}
"""


class Pipeline(NamedTuple):
    directory: Path
    grpc: int
    server: Program
    writer: Program


@pytest.fixture
def pipeline(tmp_path: Path, database: Database) -> Iterator[Pipeline]:
    grpc, first, second = free_port(), free_port(), free_port()
    fanout, snapshotter = tmp_path / "fanout.conf", tmp_path / "snapshotter.conf"
    tables = (
        f"{{ table = {name}, append_only = {str(kind.append_only).lower()} }}"
        for name, kind in KINDS.items()
    )
    common = {"directory": tmp_path, "grpc": grpc}
    slot = f"laredo_{database.name}"
    fanout.write_text(
        FANOUT.format(**common, dsn=database.dsn, slot=slot, http=first, tables=", ".join(tables))
    )
    snapshotter.write_text(
        SNAPSHOTTER.format(
            **common,
            http=second,
            tables=", ".join(f"{{ source {{ table = {name} }} }}" for name in KINDS),
        )
    )
    _create(database)
    _insert(database, 1, 60)
    with (
        Program("laredo-fanout", fanout, first, log=tmp_path / "fanout.log") as server,
        Program("laredo-snapshotter", snapshotter, second, log=tmp_path / "writer.log") as writer,
    ):
        yield Pipeline(tmp_path, grpc, server, writer)


def _create(database: Database) -> None:
    with database.connect() as connection:
        for name, kind in KINDS.items():
            by = " PARTITION BY RANGE (n)" if name == "partitioned" else ""
            ddl = f"CREATE TABLE {name} (n int, big text, {kind.ddl}){by}"
            connection.execute(ddl.encode())
            connection.execute(f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL".encode())
            for statement in kind.after:
                connection.execute(statement.encode())
        connection.execute("CREATE TABLE p1 PARTITION OF partitioned FOR VALUES FROM (0) TO (10)")
        connection.execute("CREATE TABLE p2 PARTITION OF partitioned FOR VALUES FROM (10) TO (99)")


def _insert(database: Database, first: int, last: int) -> None:
    with database.connect() as connection:
        for name, kind in KINDS.items():
            statement = (
                f"INSERT INTO {name} SELECT g % 20, repeat(md5(g::text), 90), {kind.values}"
                f" FROM generate_series({first}, {last}) g"
            )
            connection.execute(statement.encode())


def _change(database: Database) -> None:
    """Keys move, with the unchanged big value and without; rows go and come back."""
    with database.connect() as connection:
        for name, kind in KINDS.items():
            if kind.append_only:
                connection.execute(f"INSERT INTO {name} SELECT * FROM {name}".encode())
                continue
            for statement in (
                f"UPDATE {name} SET {kind.move} WHERE n % 4 = 1",
                f"UPDATE {name} SET big = left(big, 3000), {kind.move} WHERE n % 4 = 2",
                f"DELETE FROM {name} WHERE n % 5 = 0",
                f"BEGIN; UPDATE {name} SET {kind.move} WHERE n = 7;"
                f" UPDATE {name} SET big = NULL WHERE n = 7; COMMIT",
            ):
                connection.execute(statement.encode())


def _lines(database: Database, name: str) -> Counter[str]:
    with database.connect() as connection:
        for setting, value in value_sql.SESSION.items():
            if setting != "search_path":
                connection.execute(f"SET {setting} = '{value}'".encode())
        numeric = "id::text AS id" if name == "numeric_key" else "id"
        found = connection.execute(
            f"SELECT row_to_json(t)::text FROM (SELECT n, big, {numeric} FROM {name}) t".encode()
            if name == "numeric_key"
            else f"SELECT row_to_json(t)::text FROM {name} t".encode()
        ).fetchall()
    return Counter(str(line) for (line,) in found)


def _archived(pipeline: Pipeline, name: str) -> Counter[str]:
    archive = Archive.at(str(pipeline.directory / "archive" / name))
    lines: Counter[str] = Counter()
    for _, some in archive.rows(archive.boundary()):
        lines.update(line.decode() for line in some)
    return lines


@on_versions(15, 18)
def test_archive_and_client_equal_postgresql(pipeline: Pipeline, database: Database) -> None:
    pipeline.server.wait_ready()
    pipeline.writer.wait_ready()
    _insert(database, 61, 90)
    _change(database)
    for name in KINDS:
        truth = _lines(database, name)
        wait_until(
            lambda name=name, truth=truth: _archived(pipeline, name) == truth,
            f"the archive of {name} equals PostgreSQL\n{pipeline.server.tail()}",
        )
        _assert_client_equals(pipeline, name, truth)
    for name in ("keyless", "partitioned", "four_columns"):
        verified = command_line.run(
            "verify", str(pipeline.directory / "archive" / name), "--against", database.dsn
        )
        assert verified.returncode == 0, f"{name}: {verified.stdout}{verified.stderr}"


def _assert_client_equals(pipeline: Pipeline, name: str, truth: Counter[str]) -> None:
    address = f"127.0.0.1:{pipeline.grpc}"
    with FanoutClient(
        address, f"public.{name}", client_id=f"test-{name}", indexes={"by_n": ("n",)}
    ) as client:
        client.await_ready(PATIENCE_S)
        assert len(client) == truth.total()
        rows = [row for n in range(99) for row in client.lookup_index("by_n", n)]
    wanted = [json.loads(line) for line in truth.elements()]
    assert sorted(map(_text, rows)) == sorted(map(_text, wanted))


def _text(row: object) -> str:
    return json.dumps(row, sort_keys=True, default=str)
