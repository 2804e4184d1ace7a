"""Patterns in the configuration follow the database's tables, whatever becomes of PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from laredo_fanout.app.options import archive_options, source_tables
from laredo_fanout.app.reload import expand
from laredo_fanout.client import StreamError
from laredo_fanout.config import Config, load
from laredo_service.settings import SettingsError
from laredo_service.table_pattern import TableName
from tests.fanout.app.reload.reloading import is_live, reload, rewrite, rows, written
from tests.support.postgres import Database
from tests.support.processes import until, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

CONNECTION = 'pg.connection = "host=x"'
RELAY = 'up { type = fanout, server = "a:1" }'


def tables(server: Fanout) -> set[str]:
    return set(server.status["tables"])


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Fanout:
    """It follows orders_*, but for two."""
    database.make("orders_a", "orders_b", "orders_tmp_1", "orders_old", "customers", rows=600)
    pattern = '{ table = "orders_*", exclude = ["orders_tmp_*", "public.orders_old"] }'
    return fanout(tmp_path / "server", database, pattern)


async def test_a_table_is_followed_once_it_is_made_and_until_it_is_dropped(
    server: Fanout, database: Database
) -> None:
    with started(server):
        wait_until(lambda: tables(server) == {"public.orders_a", "public.orders_b"}, "both")
        wait_until(server.program.is_ready, "ready")
        async with server.follower("public.orders_a") as a:
            await until(lambda: len(a.rows) == 600)
            database.make("orders_c", "orders_tmp_2", rows=600)
            with written(database, "orders_a", "orders_c"):
                wait_until(lambda: is_live(server, "public.orders_c"), "the new one is live")
                async with server.follower("public.orders_c") as c:
                    await until(lambda: len(c.positions) > 50)
            async with server.follower("public.orders_c", "late") as late:
                await until(lambda: late.rows == rows(database, "orders_c"))
            await until(lambda: a.rows == rows(database, "orders_a"))
            b = server.follower("public.orders_b")
            with pytest.raises(AssertionError) as ended:
                async with b:
                    await until(lambda: len(b.rows) == 600)
                    database.run("DROP TABLE orders_b")
                    await until(lambda: b._task is not None and b._task.done())
            assert isinstance(ended.value.__cause__, StreamError)
            assert "public.orders_b isn't served here" in str(ended.value.__cause__)
            wait_until(lambda: tables(server) == {"public.orders_a", "public.orders_c"}, "shown")
            wait_until(server.program.is_ready, "ready again")
            assert len(a.handshakes) == 1


async def test_a_pattern_comes_with_a_reload(server: Fanout, database: Database) -> None:
    database.run("CREATE SCHEMA other", 'CREATE SCHEMA "dot.ted"')
    database.make("other.t", "other.u", '"dot.ted".t', rows=600)
    rewrite(server, "{ table = customers }")
    with started(server):
        async with server.follower("public.customers") as kept:
            await until(lambda: len(kept.rows) == 600)
            everything = '{ schema = "*", table = "*", exclude = ["public.orders_*", u] }'
            rewrite(server, f"{{ table = customers }}, {everything}")
            reload(server)
            wait_until(lambda: is_live(server, "other.t"), "the pattern's is live")
            assert tables(server) == {"public.customers", "other.t"}
            checked = server.run("check").stdout
            assert "*.*: 2 tables" in checked
            assert "dot.ted.t left out, as a schema's name must not have a dot" in checked
            wait_until(lambda: "tables left out" in server.program.log.read_text(), "it is logged")
            rewrite(server, "{ table = customers }")
            assert reload(server)["removed"] == ["other.t"]
            assert len(kept.handshakes) == 1


def config(tmp_path: Path, text: str, source: str = CONNECTION) -> Config:
    file = tmp_path / "f.conf"
    file.write_text(f"sources.{source}\ntables = [ {text} ]\n")
    return load(file)


def names(config: Config) -> list[str]:
    return [table.name for table in config.tables]


def test_listed_tables_come_first_and_a_pattern_has_a_bound(tmp_path: Path) -> None:
    configured = config(
        tmp_path,
        '{ table = "o*", max_tables = 2 }, { table = oz, append_only = true }, { table = "*" }',
    )
    found = [TableName("public", name) for name in ("oz", "oc", "ob", "oa", "x")]
    assert names(expand(configured, found)) == [
        "public.oa",
        "public.ob",
        "public.oz",
        "public.oc",
        "public.x",
    ]
    listed = [
        table.name for table in source_tables(expand(configured, found)) if not table.by_pattern
    ]
    assert listed == ["oz"]
    kept = expand(configured, found, [TableName("public", "oc")])
    assert names(kept)[:2] == ["public.oa", "public.oc"]
    assert [table.append_only for table in kept.tables[:3]] == [False, False, True]


def test_tables_of_several_schemas_have_their_archives_where_the_writer_puts_them(
    tmp_path: Path,
) -> None:
    archive = "targets = [{ archive { store_config.path = /archives } }]"
    configured = config(
        tmp_path, f'{{ schema = "*", table = o, {archive} }}, {{ table = "p*", {archive} }}'
    )
    found = expand(configured, [TableName("eu", "o"), TableName("public", "pets")])
    prefixes = [archive_options(table) for table in found.tables]
    assert [each and each.key_prefix for each in prefixes] == ["eu.o/", "pets/"]


@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        ("{ table = a, exclude = [b] }", CONNECTION, "tables[0].exclude: is for a pattern"),
        ('{ table = "*" }', RELAY, "a relay can't follow a pattern"),
        (
            '{ table = "*", targets = [ { archive { store_config.path = x, key_prefix = y } } ] }',
            CONNECTION,
            "leave key_prefix out",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, source: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        config(tmp_path, text, source)
    assert said in str(refused.value)
