"""A server whose version before stopped in the middle of releasing a backlog out of order."""

from collections.abc import Callable

import orjson

from laredo_fanout.store import layout, meta
from laredo_fanout.store.writer import Store
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database
from tests.support.server.store_sample import changes, delete

Start = Callable[..., RunningIngest]


def _leave_out_of_order(ingest: RunningIngest, name: str) -> None:
    """As that version did: a row of the table is of a position that isn't reached yet."""
    with Store.open(ingest.path, max_size=ingest.max_size) as store:
        (record,) = (each for each in store.tables.values() if each.qualified == name)
        with store.transaction() as transaction:
            transaction.apply(record.id, changes((store.position, [delete("1")])))
        record = store.tables[record.id]
        assert record.rows == 1
        key = meta.DEFINITION + layout.prefix(record.id)
        with store._environment.begin(write=True, db=store._databases.meta) as raw:
            definition = orjson.loads(raw.get(key))
            definition["disorders"] = [[record.sequence + 1, store.position, 1000, 0, 0, 0]]
            raw.put(key, orjson.dumps(definition))


def test_the_table_is_copied_anew_and_no_other(database: Database, ingesting: Start) -> None:
    with database.connect() as connection:
        for name in ("early", "in_order"):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)".encode())
            connection.execute(f"INSERT INTO {name} VALUES (1, 1), (2, 2)".encode())
        ingest = ingesting("public.early", "public.in_order")
        ingest.wait_live()
        before = {name: ingest.record(f"public.{name}") for name in ("early", "in_order")}
        ingest.stop()
        _leave_out_of_order(ingest, "public.early")
        connection.execute("UPDATE early SET v = 3 WHERE id = 2")
        connection.execute("UPDATE in_order SET v = 3 WHERE id = 2")
    ingest.start()
    ingest.wait_live()
    ingest.assert_equal()
    after = {name: ingest.record(f"public.{name}") for name in ("early", "in_order")}
    assert before["early"] is not None and after["early"] is not None
    assert before["in_order"] is not None and after["in_order"] is not None
    assert after["early"].incarnation == before["early"].incarnation + 1
    assert after["in_order"].id == before["in_order"].id
