"""Published columns and rows, read without a lock: equal to PostgreSQL's own view."""

from collections.abc import Callable

import pytest

from laredo_fanout.pg_catalog import table_definitions
from laredo_fanout.source_options import PublicationOptions, SourceTableOptions
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database

TABLES = """
CREATE SCHEMA apart;
CREATE TABLE plain (id int PRIMARY KEY, a text, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE apart.other (id int PRIMARY KEY, a text);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE root (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10);
"""
NAMES = ("public.plain", "apart.other", "public.unlogged", "public.root", "public.part")
PUBLICATIONS = {
    "nothing": "",
    "a table": "FOR TABLE plain",
    "a list and a filter": "FOR TABLE plain (id, a) WHERE (id > 3), apart.other",
    "a list with a generated column": "FOR TABLE plain (id, twice)",
    "all tables": "FOR ALL TABLES",
    "a schema": "FOR TABLES IN SCHEMA apart",
    "a schema and a table of it": "FOR TABLES IN SCHEMA apart, TABLE apart.other, plain",
    "a root": "FOR TABLE root",
    "a root, as itself": "FOR TABLE root WITH (publish_via_partition_root)",
    "a partition": "FOR TABLE part WITH (publish_via_partition_root)",
    "all tables, by their roots": "FOR ALL TABLES WITH (publish_via_partition_root)",
    "generated columns": "FOR TABLE plain WITH (publish_generated_columns = stored)",
}
VIEW = """
SELECT schemaname || '.' || tablename, attnames::text[], rowfilter
FROM pg_publication_tables WHERE pubname = 'p' AND schemaname || '.' || tablename = ANY(%s)
"""


@pytest.mark.parametrize("kind", PUBLICATIONS)
def test_equals_the_view(database: Database, kind: str) -> None:
    with database.connect() as connection:
        connection.execute(TABLES)
        connection.execute(f"CREATE PUBLICATION p {PUBLICATIONS[kind]}".encode())
        shown = connection.execute(VIEW, (list(NAMES),)).fetchall()
        tables = table_definitions.read_tables(
            connection,
            [SourceTableOptions(*name.split(".")) for name in NAMES],
            PublicationOptions("p"),
        )
    published = {
        (name, table.published.columns, table.published.row_filter)
        for name, table in tables.items()
        # The view names the partitions of a root, not the root, which has no rows of its own.
        if table.published is not None and not (table.kind == "p" and "ROOT" not in _via(kind))
    }
    assert published == {(name, tuple(columns), row_filter) for name, columns, row_filter in shown}


def _via(kind: str) -> str:
    return "ROOT" if "publish_via_partition_root" in PUBLICATIONS[kind] else ""


def test_a_table_that_is_being_altered_holds_up_no_other(
    database: Database, ingesting: Callable[..., RunningIngest]
) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    ingest = ingesting("public.t", "public.other", heartbeat_interval=0.1)
    ingest.wait_live()
    before = ingest.record("public.other")
    assert before is not None
    with database.connect() as altering, database.connect() as connection:
        altering.execute("BEGIN; ALTER TABLE t ADD a text")
        connection.execute("ALTER TABLE other ADD b text DEFAULT 'b'")
        ingest.wait_until(
            lambda: ingest.is_live("public.other") and ingest.record("public.other").id > before.id,  # type: ignore[union-attr]
            "the other table was copied again",
        )
        assert ingest.status.error is None
        altering.execute("COMMIT")
    ingest.wait_until(lambda: len(ingest.record("public.t").columns) == 2, "t is copied again")  # type: ignore[union-attr]
    ingest.wait_live()
    ingest.assert_equal()
