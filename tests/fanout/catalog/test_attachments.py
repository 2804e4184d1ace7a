"""An attached partition counts as empty only if its file has never had a row."""

from collections.abc import Sequence

import pytest

from laredo_fanout.pg_catalog import partitions
from laredo_fanout.pg_catalog.partitions import EmptyAttachments
from tests.support.postgres import Database


@pytest.mark.parametrize(
    ("before", "between", "came_empty"),
    [
        ((), (), True),
        (("INSERT INTO x VALUES (101)",), (), False),
        (("INSERT INTO x VALUES (101)",), ("TRUNCATE a",), False),
        (("INSERT INTO x VALUES (101)",), ("DELETE FROM a", "VACUUM x"), False),
        (("INSERT INTO x VALUES (101)", "DELETE FROM x", "VACUUM x"), (), False),
        ((), ("TRUNCATE x",), False),
    ],
    ids=["empty", "filled", "truncated", "vacuumed", "vacuumed before", "empty, and truncated"],
)
def test_what_happens_before_it_is_measured(
    database: Database, before: Sequence[str], between: Sequence[str], came_empty: bool
) -> None:
    database.run(
        "CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE x (LIKE a INCLUDING ALL)",
        *before,
        "ALTER TABLE a ATTACH PARTITION x FOR VALUES FROM (100) TO (200)",
    )
    with database.connect() as connection:
        root = database.number("SELECT 'a'::regclass::oid::int8")
        [found] = partitions.read(connection, [root])[root]
        database.run(*between)
        [measured] = EmptyAttachments().with_attachments(connection, [found])
    assert measured.came_empty is came_empty
