"""Published columns and rows, read without a lock: equal to PostgreSQL's own view."""

from typing import Any

import pytest

from laredo_fanout.errors import TableLocked
from laredo_fanout.pg_catalog import publication, snapshot, table_definitions
from laredo_fanout.postgres.connections import Connection
from laredo_fanout.source_options import PublicationOptions, SourceTableOptions
from tests.support.ingest import Start
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
FROM pg_publication_tables WHERE pubname = %s AND schemaname || '.' || tablename = ANY(%s)
"""


def test_equals_the_view(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(TABLES)
        for number, (kind, published) in enumerate(PUBLICATIONS.items()):
            name = f"p{number}"
            connection.execute(f"CREATE PUBLICATION {name} {published}".encode())
            shown = connection.execute(VIEW, (name, list(NAMES))).fetchall()
            tables = table_definitions.read_tables(
                connection,
                [SourceTableOptions(*name.split(".")) for name in NAMES],
                PublicationOptions(name),
            )
            by_root = "publish_via_partition_root" in published
            found = {
                (table, read.published.columns, read.published.row_filter)
                for table, read in tables.items()
                # The view names a root's partitions, not the root, which has no rows of its own.
                if read.published is not None and (read.kind != "p" or by_root)
            }
            assert found == {
                (table, tuple(columns), row_filter) for table, columns, row_filter in shown
            }, kind


@pytest.mark.parametrize("row_filter", ["", "WHERE (id >= 0)"])
def test_a_table_that_is_being_altered_holds_up_no_other(
    database: Database, live: Start, row_filter: str
) -> None:
    database.run(
        *("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)"),
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE t {row_filter}, other",
    )
    ingest = live("public.t", "public.other", heartbeat_interval=0.1)
    with database.connect() as altering, database.connect() as connection:
        altering.execute("BEGIN; ALTER TABLE t ADD a text")
        for added in "bc":
            before = ingest.record("public.t"), ingest.record("public.other")
            connection.execute(f"ALTER TABLE other ADD {added} text DEFAULT 'b'".encode())
            ingest.wait_copied_again(before[1])
            assert ingest.status.error is None
            assert ingest.record("public.t").id == before[0].id
            ingest.restart()
        altering.execute("COMMIT")
    ingest.wait_until(lambda: len(ingest.record("public.t").columns) == 2, "t is copied again")
    ingest.wait_live()
    ingest.assert_equal()


def test_a_table_that_is_locked_while_another_one_is_added_is_left_alone(
    database: Database, live: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "tab"),
        f"CREATE PUBLICATION pub_{database.name} FOR TABLE t WHERE (id > 0), b",
    )
    ingest, add = live("public.b"), publication.add
    with database.connect() as locking, database.connect() as side:

        def locked(*given: Any) -> None:
            add(*given)
            locking.execute("BEGIN; LOCK TABLE t")

        monkeypatch.setattr(publication, "add", locked)
        side.execute(snapshot.LOCK_TIMEOUT)
        tables = [SourceTableOptions("public", name) for name in "ta"]
        found = snapshot.take(side, ingest.options, tables, 1)
        assert [type(each) for each in found.problems.values()] == [TableLocked]


def test_a_check_waits_for_one_locked_table(
    database: Database, live: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "tabc"))
    ingest, add, waits = live("public.t"), publication.add, list[str]()

    def noted(connection: Connection, *rest: Any) -> None:
        waits.extend(connection.execute("SHOW lock_timeout").fetchone() or ())
        add(connection, *rest)

    monkeypatch.setattr(publication, "add", noted)
    with database.connect() as locking, database.connect() as side:
        locking.execute("BEGIN; LOCK TABLE a, b")
        side.execute(snapshot.LOCK_TIMEOUT)
        tables = [SourceTableOptions("public", name) for name in "tabc"]
        found = snapshot.take(side, ingest.options, tables, 1)
        assert set(found.problems) == {"public.a", "public.b"}
        assert waits == ["2s", "1ms", "1ms"]
        assert side.execute("SHOW lock_timeout").fetchone() == ("2s",)
