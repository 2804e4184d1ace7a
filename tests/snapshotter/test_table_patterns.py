"""Patterns in the writer's configuration follow the tables that its server serves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.client import Endpoint
from laredo_service.settings import SettingsError
from laredo_service.table_pattern import TableName, TablePattern
from laredo_snapshotter import config
from laredo_snapshotter.app.reload import ServedPatterns
from laredo_snapshotter.config import ServedPattern
from tests.support import processes
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, until, wait_until
from tests.support.server.fanout_program import Fanout, fanout
from tests.support.server.serving_world import running
from tests.support.writer.archiving_programs import SNAPSHOTTER, Named, Programs


def make(database: Database, *tables: str) -> None:
    with database.connect() as owner:
        for table in tables:
            owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)".encode())
            some = "SELECT i, 'v' FROM generate_series(1, 300) i"
            owner.execute(f"INSERT INTO {table} {some}".encode())


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """It serves every table of the database."""
    make(database, "orders_a", "orders_b", "orders_tmp", "customers")
    everything = '{ schema = "*", table = "*" }'
    slot = f"s_{database.name}"
    return fanout(tmp_path / "server", database.dsn, everything, slot=slot)


ASKING_OFTEN = """
import sys
from functools import partial
from laredo_snapshotter.app import service
from laredo_snapshotter.cli import main

service.ServedPatterns = partial(service.ServedPatterns, interval=0.2)
sys.argv = sys.argv[1:]
main()
"""
"""The writer, that asks its server for tables every 0.2 s instead of every 5 s."""


@pytest.fixture
def programs(tmp_path: Path, server: Fanout, database: Database) -> Iterator[Programs]:
    """The writer writes one table by name, and orders_* but for one. Only the server runs."""
    http = free_port()
    file = tmp_path / "snapshotter.conf"
    tables = (
        "{ source.table = customers },"
        ' { source { table = "orders_*", exclude = [orders_tmp] }, diff.interval = 200ms }'
    )
    file.write_text(
        SNAPSHOTTER.format(
            grpc=server.grpc_port, directory=tmp_path, http=http, bases="jsonl", tables=tables
        )
    )
    writer = Program("laredo-snapshotter", file, http, log=tmp_path / "writer.log")
    writer.wrapper = (sys.executable, "-c", ASKING_OFTEN)
    with server.program:
        wait_until(lambda: _is_live(server, "public.orders_b"), "all are served")
        server.program.wait_ready()
        yield Programs(server.program, writer, tmp_path, database.dsn)


def _is_live(server: Fanout, table: str) -> bool:
    answer = server.program.get("/status")
    return answer is not None and answer.json()["tables"].get(table, {}).get("status") == "live"


def tables(programs: Programs) -> set[str]:
    answer = programs.writer.get("/status")
    return set() if answer is None else set(answer.json()["tables"])


def waits(programs: Programs) -> str:
    """Reason why the pattern's tables aren't known."""
    answer = programs.writer.get("/health/ready")
    missing: dict[str, str] = {} if answer is None else answer.json()["not_ready"]
    return missing.get("snapshotter.tables[1] (public.orders_*)", "")


def connected(server: Fanout) -> dict[str, Any]:
    return {each["table"]: each["connected_at"] for each in server.status["clients"]}


def test_tables_are_written_once_they_are_served_and_until_they_are_not(
    programs: Programs, server: Fanout, database: Database
) -> None:
    listed = {"public.customers", "public.orders_a", "public.orders_b"}
    checked = processes.run("laredo-snapshotter", "--config", programs.writer.config, "check")
    assert "ok: snapshotter.tables[1]: public.orders_*: matches 2 tables" in checked.stdout
    assert "public.orders_b: ok" in checked.stdout
    server.program.stop()
    with programs.writer:
        wait_until(lambda: tables(programs) == {"public.customers"}, "what is known by name")
        wait_until(
            lambda: "UNAVAILABLE" in waits(programs) or "onnect" in waits(programs), "it says why"
        )
        server.program.start()
        wait_until(lambda: tables(programs) == listed, "those that fit come with the server")
        programs.writer.wait_ready()
        assert not waits(programs)
        before = connected(server)
        make(database, "orders_c")
        wait_until(lambda: "public.orders_c" in tables(programs), "the new one too")
        programs.writer.wait_ready()
        database.run("UPDATE orders_a SET v = 'w'; UPDATE orders_c SET v = 'x'")
        for name in ("customers", "orders_a", "orders_b", "orders_c"):
            programs.equal(Named("public", name, None))
        database.run("DROP TABLE orders_b")
        now = {"public.customers", "public.orders_a", "public.orders_c"}
        wait_until(lambda: tables(programs) == now, "what isn't served any more isn't written")
        assert programs.archive(Named("public", "orders_b", None)).manifest.artifacts
        after = connected(server)
        assert after["public.customers"] == before["public.customers"]
        assert after["public.orders_a"] == before["public.orders_a"]
        programs.writer.wait_ready()


async def test_a_server_that_does_not_answer_keeps_its_tables(tmp_path: Path) -> None:
    found: list[config.Found] = []

    async def follow(now: config.Found) -> None:
        found.append(dict(now))

    async with running(tmp_path / "store", names=["public.orders_a", "public.other"]) as world:
        orders = TablePattern("public", "orders_*")
        pattern = ServedPattern(Endpoint(f"127.0.0.1:{world.port}"), orders)
        followed = ServedPatterns({pattern: "tables[0]"}, follow, interval=0.01)
        assert list(followed.waiting) == ["tables[0] (public.orders_*)"]
        asking = asyncio.create_task(followed.run())
        await until(lambda: found)
        assert followed.waiting == {}
    rounds = followed.rounds
    await until(lambda: followed.rounds > rounds + 3)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert found == [{pattern: {TableName("public", "orders_a")}}]
    assert followed.waiting == {}


def block(tmp_path: Path, tables: str) -> config.SnapshotterBlock:
    file = tmp_path / "s.conf"
    file.write_text(
        'snapshotter { destinations = [ { type = local, path = "/x" } ], source.server = "a:1"'
        f"\ntables = [ {tables} ] }}"
    )
    return config.load(file)


def test_each_table_has_a_location_of_its_own(tmp_path: Path) -> None:
    everything = block(
        tmp_path,
        "{ source.table = a, diff.interval = 9s },"
        ' { source { schema = "t*", table = "*", max_tables = 3 } }',
    )
    (pattern,) = config.patterns(everything)
    names = [TableName(schema, table) for schema in ("t1", "t2") for table in "ab"]
    found = config.matching_tables(everything, {pattern: [*names, TableName("u", "a")]}, names[3:])
    assert [(table.name, table.key_prefix) for table in found] == [
        ("public.a", "a/"),
        ("t1.a", "t1.a/"),
        ("t1.b", "t1.b/"),
        ("t2.b", "t2.b/"),
    ]
    assert [table.diff.interval for table in found] == [9, 60, 60, 60]
    # Its server hasn't answered: what is written stays.
    kept = config.matching_tables(everything, {}, names[:1])
    assert [table.name for table in kept] == ["public.a", "t1.a"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            "{ source { table = a, max_tables = 3 } }",
            "tables[0].source.max_tables: is for a pattern",
        ),
        ('{ source.table = "*", key_prefix = x }', "tables[0].key_prefix: each table of a pattern"),
        ('{ source { table = "*", client_id = x } }', "tables[0].source.client_id: each table"),
        ('{ source { table = "*", server = "" } }', "tables[0].source.server"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, tables: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        block(tmp_path, tables)
    assert said in str(refused.value)
    assert f"{tmp_path / 's.conf'}:2: snapshotter.tables[0]" in str(refused.value)
