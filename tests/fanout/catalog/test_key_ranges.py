"""Split points of a table for its copy."""

import psycopg

from laredo_fanout.pg_catalog import key_ranges, table_definitions
from laredo_fanout.source_options import PublicationOptions, SourceTableOptions
from tests.support.postgres import Database, on_versions

pytestmark = on_versions(16, 18)


def test_a_table_that_was_dropped_since_the_look_is_not_cut(database: Database) -> None:
    wanted = SourceTableOptions("public", "t")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT generate_series(1, 100000)")
        connection.execute("ANALYZE t")
        found = table_definitions.read_tables(
            connection, [wanted], PublicationOptions("p", create=True)
        )
        table = found["public.t"]
        assert len(key_ranges.plan(connection, table, 1 << 20)) > 1
        connection.execute("DROP TABLE t")
        assert key_ranges.plan(connection, table, 1 << 20) == []
