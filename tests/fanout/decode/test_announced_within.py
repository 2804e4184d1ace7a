"""A table that gets another replica identity in the middle of a transaction: it is still one."""

from typing import Any

import pytest

from tests.support.ingest import Start
from tests.support.postgres import Database


@pytest.mark.parametrize("many", [2, 60_000])
def test_transaction_is_one_however_its_table_is_announced(
    database: Database, live: Start, many: int
) -> None:
    """``many``: so that it is handed over in pieces, too."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        ingest = live("public.t")
        record = ingest.record("public.t")
        rows = "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(%s::int, %s::int) g"
        with connection.transaction():
            connection.execute(rows, (1, many))
            connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")
            connection.execute(rows, (many + 1, many + 3))
        connection.execute("INSERT INTO t VALUES (0, 'later')")
        ingest.catch_up()
    found: list[Any] = []
    after = record.sequence
    while records := ingest.store.reader().journal(record.id, after, 1 << 20):
        found += records
        after = records[-1].last_sequence
    position = found[0].first_position
    whole = [(each.open, each.continues) for each in found if each.last_position == position]
    count = sum(len(each) for each in found if each.last_position == position)
    if found[-1].first_position == position:
        count += found[-1].decode().counts[0]
        whole.append((False, found[-1].continues))
    assert count == many + 3
    assert [is_open for is_open, _ in whole] == [True] * (len(whole) - 1) + [False]
    assert [continues for _, continues in whole] == [False] + [True] * (len(whole) - 1)
