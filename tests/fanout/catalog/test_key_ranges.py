"""Split points of a table for its copy."""

import psycopg
import pytest

from laredo_fanout.pg_catalog import key_ranges, table_definitions
from laredo_fanout.pg_catalog.table_definitions import SourceTable
from laredo_fanout.postgres.connections import Connection
from laredo_fanout.source_options import PublicationOptions, SourceTableOptions
from laredo_model.value_sql import key_sql
from tests.support.postgres import Database, on_versions

pytestmark = on_versions(16, 18)


def definition(connection: Connection) -> SourceTable:
    """The table ``t`` as the catalog has it."""
    wanted = [SourceTableOptions("public", "t")]
    publication = PublicationOptions("p", create=True)
    return table_definitions.read_tables(connection, wanted, publication)["public.t"]


def test_a_table_that_was_dropped_since_the_look_is_not_cut(database: Database) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT generate_series(1, 100000)")
        connection.execute("ANALYZE t")
        table = definition(connection)
        assert len(key_ranges.plan(connection, table, 1 << 20)) > 1
        connection.execute("DROP TABLE t")
        assert key_ranges.plan(connection, table, 1 << 20) == []


_NUMBERS = "CREATE DOMAIN numbers AS int[]"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("id jsonb PRIMARY KEY", """'"a\\"b"'"""),
        ("id jsonb PRIMARY KEY", """'{"b": 1}'"""),
        ("id jsonb, n int DEFAULT 1, PRIMARY KEY (id, n)", """'"a"'"""),
        ("id numbers PRIMARY KEY", "'{1,2}'"),
        ("id numbers, n int DEFAULT 1, PRIMARY KEY (id, n)", "'{1,2}'"),
        ("id numeric, n text DEFAULT 'x\\', PRIMARY KEY (id, n)", "1.50"),
    ],
)
def test_a_row_is_found_by_its_key(database: Database, key: str, value: str) -> None:
    """Also where a value's text in the key isn't the text of its type."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"{_NUMBERS}; CREATE TABLE t ({key})".encode())
        connection.execute(f"INSERT INTO t (id) VALUES ({value})".encode())
        table = definition(connection)
        row = connection.execute(f"SELECT {key_sql(table.selected_key)} FROM t".encode()).fetchone()
        assert row is not None
        condition = key_ranges.keys_condition(table, [row[0].encode()])
        there = connection.execute(f"SELECT FROM t WHERE {condition}".encode())
        assert there.rowcount == 1
