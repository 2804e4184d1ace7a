"""Schemas, tables and columns of any name, from PostgreSQL to the archive and its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import sql

from tests.support import drawn
from tests.support.archive import command_line
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.writer.archiving_programs import Named, Programs, configured

NAMES = [
    'quo"te',
    "a'b",
    "back\\slash",
    "dot.ted",
    "per%cent %s %(x)s",
    "new\nline\ttab\rreturn",
    "<script>alert(1)</script>&amp;",
    "\x1b[31mred\x07",
    "é" * 31,
    "${x}",
    "{a=1}",
    "../..",
    "..",
    "/etc/passwd",
    "a/b/../../../c",
    " ",
    "-- drop",
    "; SELECT 1",
    "epoch=1",
    "manifest.json",
    "\u202egnp\u2028",
    "select",
    "$1",
]
SCHEMAS = ["public", 'sch"e/ma\\\n', "$1 %s"]


def _create(database: Database, table: Named) -> None:
    with database.connect() as owner:
        schema, name = sql.Identifier(table.schema), sql.Identifier(table.schema, table.table)
        owner.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
        key = sql.Identifier(table.table)
        others = [column for column in NAMES if column != table.table]
        columns = sql.SQL(", ").join(
            sql.SQL("{} text").format(sql.Identifier(each)) for each in others
        )
        owner.execute(
            sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, {})").format(name, key, columns)
        )
    _insert(database, table, 1, 2, 3)


def _insert(database: Database, table: Named, *numbers: int) -> None:
    with database.connect() as owner:
        name = sql.Identifier(table.schema, table.table)
        columns = [
            sql.Identifier(table.table),
            sql.Identifier("$1" if table.table != "$1" else ".."),
        ]
        for number in numbers:
            owner.execute(
                sql.SQL("INSERT INTO {} ({}) VALUES ({}, {})").format(
                    name, sql.SQL(", ").join(columns), number, f"value {table.table}"
                )
            )


def test_tables_of_any_name_are_archived_and_proven_equal(
    tmp_path: Path, database: Database
) -> None:
    tables = [
        Named(SCHEMAS[number % len(SCHEMAS)], name, f"n{number}/")
        for number, name in enumerate(NAMES)
    ]
    # By default a table's objects are below its name.
    tables += [Named("public", f"{name} by default", None) for name in ('quo"te', "é", "per%cent")]
    for table in tables:
        _create(database, table)
    programs = configured(tmp_path, database, tables)
    with programs.running():
        for table in tables:
            _insert(database, table, 4)
        for table in tables:
            wait_until(lambda table=table: _has_four(programs, table), f"{table} has all")
            programs.equal(table)
        for table in tables[:8]:
            shown = command_line.run("verify", str(tmp_path / "archive" / str(table.key_prefix)))
            assert shown.returncode == 0, f"{table}: {shown.stdout}{shown.stderr}"
    assert {path.name for path in (tmp_path / "archive").iterdir()} == {
        *("catalog.json", ".catalog.json.lock"),
        *(table.key_prefix[:-1] if table.key_prefix else table.table for table in tables),
    }


def _has_four(programs: Programs, table: Named) -> bool:
    archive = programs.archive(table)
    return sum(len(lines) for _, lines in archive.rows(archive.boundary())) == 4


SHARED = [
    [("public", "t", None), ("other", "t", None)],
    [("public", "a", None), ("public", "a/b", None)],
    [("public", "t", None), ("public", "t/", None)],
    [("public", "x", "p"), ("public", "y", "p/")],
]
OUTSIDE = [[("public", name, None)] for name in ("../..", "..", "a/../../b", "/absolute")]


@pytest.mark.parametrize("tables", [*drawn.first(2, SHARED), *drawn.first(1, OUTSIDE)])
def test_tables_that_would_share_a_place_or_leave_theirs_are_refused(
    tmp_path: Path, database: Database, tables: list[tuple[str, str, str | None]]
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    programs = configured(tmp_path, database, [Named(*table) for table in tables])
    with programs.writer:
        assert programs.writer.wait(PATIENCE_S) == 2, programs.writer.tail()
        assert ("key_prefix" if tables in SHARED else tables[0][1]) in programs.writer.tail()
        assert "Traceback" not in programs.writer.tail()
    ours = {"server", "snapshotter.conf", "writer.log", "archive"}
    assert {path.name for path in tmp_path.iterdir()} - before <= ours
    assert ".." not in {path.name for path in tmp_path.rglob("*")}


def test_a_schema_with_a_dot_is_refused(tmp_path: Path, database: Database) -> None:
    """Else a.b and c would read as a and b.c do."""
    tables = [Named("a.b", "c", "one/"), Named("a", "b.c", "two/")]
    programs = configured(tmp_path, database, tables)
    for program in (programs.server, programs.writer):
        with program:
            assert program.wait(PATIENCE_S) != 0
            assert 'a schema with a dot in its name ("a.b")' in program.tail()
            assert "Traceback" not in program.tail()
