"""Tables without a key: every row is there as often as in PostgreSQL, from a copy beside inserts,
and the application's own statements never fail because of us."""

import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laredo_fanout.decode.row_scan import IGNORED, Route
from laredo_fanout.decode.stream_decoder import StreamDecoder, StreamRelations
from laredo_fanout.pg_catalog import requirements
from laredo_fanout.postgres.pgoutput import Relation
from laredo_fanout.source_options import PublicationOptions
from laredo_fanout.store.table import Status
from tests.support.drawn import examples
from tests.support.ingest import Gate, Start, beside
from tests.support.oracle import Connection
from tests.support.postgres import Database, on_versions

_LOG = (
    "CREATE TABLE log (at int, what text)",
    "INSERT INTO log SELECT g % 7, 'w' || g % 5 FROM generate_series(1, 500) g",
    "INSERT INTO log VALUES (NULL, NULL), (NULL, NULL)",
)


def test_the_publication_s_name_has_as_many_bytes_as_an_identifier_may_have() -> None:
    assert PublicationOptions("ü" * 31).appends.name == "ü" * 28 + "_append"
    assert PublicationOptions("p" * 63).appends.name == "p" * 56 + "_append"


def test_taken_out_and_put_back_it_is_copied_again(database: Database, live: Start) -> None:
    """Deleted rows aren't published; the message of a refused re-copy advises this."""
    database.run(*_LOG, "CREATE TABLE keyed (id int PRIMARY KEY)")
    ingest = live("public.log", "public.keyed", append_only=("public.log",))
    database.run("DELETE FROM log WHERE ctid IN (SELECT ctid FROM log LIMIT 3)")
    ingest.catch_up()
    assert ingest.state("public.log") != ingest.truth("public.log"), "this proves nothing"
    ingest.stop()
    ingest.start("public.keyed")
    ingest.wait_until(lambda: ingest.known("public.log") is None, "it is gone")
    ingest.stop()
    ingest.start("public.log", "public.keyed")
    ingest.wait_live()
    database.run("INSERT INTO log VALUES (8, 'new'), (8, 'new')")
    ingest.assert_equal()


@on_versions(14, 15, 16, 17, 18)
def test_rows_are_there_as_often_as_they_were_inserted(database: Database, live: Start) -> None:
    database.run(*_LOG, "CREATE TABLE keyed (id int PRIMARY KEY)")
    ingest = live("public.log", "public.keyed", append_only=("public.log",))
    ingest.assert_equal()
    database.run(
        "INSERT INTO log SELECT 3, 'w1' FROM generate_series(1, 20)",
        "INSERT INTO keyed VALUES (1)",
        "BEGIN; INSERT INTO log VALUES (3, 'w1'), (NULL, NULL), (8, 'new'); ROLLBACK",
        "INSERT INTO log VALUES (8, 'new'), (8, 'new')",
    )
    ingest.assert_equal()
    record = ingest.record("public.log")
    assert record.key_fields == ()
    ingest.restart()
    database.run("INSERT INTO log VALUES (8, 'new')")
    ingest.assert_equal()
    assert ingest.record("public.log").id == record.id
    database.run(
        "BEGIN; INSERT INTO log VALUES (1, 'gone'); TRUNCATE log;"
        " INSERT INTO log VALUES (8, 'new'), (8, 'new'); COMMIT",
        "INSERT INTO log VALUES (8, 'new'), (9, 'newer')",
    )
    ingest.assert_equal()
    assert ingest.record("public.log").id == record.id


def test_the_application_may_update_and_delete(database: Database, live: Start) -> None:
    """Their changes aren't followed: the table is configured as append-only."""
    database.run(*_LOG)
    ingest = live("public.log", append_only=("public.log",))
    before = ingest.state("public.log")
    database.run("UPDATE log SET what = 'x' WHERE at = 1", "DELETE FROM log WHERE at = 2")
    ingest.catch_up()
    assert ingest.state("public.log") == before
    assert ingest.status.tables["public.log"].error is None


def test_copy_beside_inserts(database: Database, live: Start) -> None:
    """Each transaction counts once, in the snapshot or from the stream."""
    database.run(*_LOG)

    def write(session: Connection, number: int) -> None:
        session.execute("INSERT INTO log VALUES (%s, 'beside')", (number % 50,))
        if number % 10 == 0:
            session.execute(
                "BEGIN; INSERT INTO log VALUES (1, 'beside'); SAVEPOINT s;"
                " INSERT INTO log VALUES (2, 'in a subtransaction'); RELEASE s;"
                " INSERT INTO log VALUES (1, 'beside'); COMMIT"
            )

    with beside(database, write, writers=3, synchronous_commit="off"):
        ingest = live("public.log", append_only=("public.log",))
    ingest.assert_equal()


def test_rows_that_are_streamed_between_reading_and_writing(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    database.run(*_LOG)
    with database.connect() as early:
        ingest = ingesting("public.log", append_only=("public.log",))
        with gate.holding(ingest):
            # After the snapshot, and streamed before its rows are written.
            early.execute("INSERT INTO log VALUES (3, 'w1'), (9, 'after the snapshot')")
            ingest.catch_up()
    ingest.wait_live()
    ingest.assert_equal()


class _NoTables:
    """Nobody wants anything of the relations that are announced."""

    def route(self, relation: Relation) -> Route:
        return IGNORED

    def announced_after(self, root: int, leaf: int) -> None:
        pass

    def announced_again(self, relation: Relation) -> None:
        raise AssertionError

    def broken(self, route: Route, error: Exception) -> None:
        raise AssertionError from error


def test_transactions_that_were_left_out_take_a_bit_each() -> None:
    """A copy may wait for hours for the transactions that write to its table."""
    transaction_filter = requirements.TransactionFilter(live=False)
    first = (1 << 32) - 10_000
    tracemalloc.start()
    try:
        for xid in range(first, first + 20_000):
            assert not transaction_filter.takes(xid % (1 << 32))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    last = first + 19_999
    for snapshot in (
        (first, last + 1, frozenset({first})),
        (last, last + 1, frozenset({last})),
        (first, last, frozenset[int]()),
    ):
        assert not transaction_filter.read_at(requirements.XidSnapshot(*snapshot))
    running = frozenset({first - 1, last + 1})
    assert transaction_filter.read_at(requirements.XidSnapshot(first - 1, last + 2, running))
    assert transaction_filter.takes((last + 1) % (1 << 32))
    assert not transaction_filter.takes(last % (1 << 32))


@given(
    start=st.integers(0, (1 << 33) - 1),
    left_out=st.sets(st.integers(0, 100)),
    running=st.sets(st.integers(0, 120)),
    xmax=st.integers(0, 120),
)
@settings(max_examples=examples(200))
def test_a_snapshot_is_taken_if_it_shows_all_that_was_left_out(
    start: int, left_out: set[int], running: set[int], xmax: int
) -> None:
    transaction_filter = requirements.TransactionFilter(live=False)
    for number in left_out:
        transaction_filter.takes((start + number) % (1 << 32))
    runs = frozenset(start + number for number in running if number < xmax)
    xmin = min(runs, default=start + xmax)
    taken = requirements.XidSnapshot(xmin, start + xmax, runs)
    shown = all(taken.shows((start + number) % (1 << 32)) for number in left_out)
    assert transaction_filter.read_at(taken) == shown


@pytest.mark.parametrize("shown", [True, False])
def test_truncate_counts_only_if_the_snapshot_doesnt_show_it(tmp_path: Path, shown: bool) -> None:
    """It may come in the stream long after rows were copied that were written after it."""
    relations = StreamRelations()
    decoder = StreamDecoder(_NoTables(), relations, lambda _: False, tmp_path, 0)
    transaction_filter = requirements.TransactionFilter(live=False)
    running = frozenset[int]() if shown else frozenset({70})
    assert transaction_filter.read_at(requirements.XidSnapshot(70, 71, running))
    route = Route(1)
    route.takes = lambda: transaction_filter.takes(relations.xid)
    relations.set_route(5, route)
    messages = [
        struct.pack(">cQqI", b"B", 100, 0, 70),
        struct.pack(">cIBI", b"T", 1, 0, 5),
        struct.pack(">cBQQq", b"C", 0, 100, 120, 0),
    ]
    waiting = [struct.pack(">cQQq", b"w", 0, 120, 0) + each for each in messages]
    decoder.drain(lambda _: (len(waiting[0]), waiting.pop(0)) if waiting else (0, b""), 10)
    assert decoder.position == 120
    assert len(route.changes) == (0 if shown else 1)


def test_interrupted_copy_begins_again(database: Database, ingesting: Start, gate: Gate) -> None:
    database.run("CREATE TABLE log (at int, what text)")
    database.run(
        "INSERT INTO log SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, 6000) g",
    )
    gate.close_after(2500)
    ingest = ingesting("public.log", append_only=("public.log",))
    with gate.holding(ingest):
        ingest.wait_until(lambda: ingest.record("public.log").rows > 0, "rows are written")
        ingest.stop()
    database.run("INSERT INTO log VALUES (1, 'while away')")
    ingest.start()
    ingest.wait_live()
    ingest.assert_equal()
    assert [each.status for each in ingest.store.tables.values()] == [Status.LIVE]


def test_partitions_without_keys(database: Database, live: Start) -> None:
    database.run(
        "CREATE TABLE log (at int, what text) PARTITION BY RANGE (at)",
        "CREATE TABLE log1 PARTITION OF log FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE log2 PARTITION OF log DEFAULT",
        "INSERT INTO log SELECT g % 20, 'w' FROM generate_series(1, 200) g",
    )
    ingest = live("public.log", append_only=("public.log",), heartbeat_interval=0.1)
    before = ingest.record("public.log")
    database.run("INSERT INTO log VALUES (1, 'w'), (11, 'w')", "INSERT INTO log2 VALUES (12, 'w')")
    ingest.assert_equal()
    database.run("DROP TABLE log1")
    ingest.wait_copied_again(before)
    ingest.assert_equal()


def test_added_to_a_running_server_while_an_old_transaction_is_open(
    database: Database, live: Start
) -> None:
    """Its publication is made after the slot: what was written before can't be decoded with it."""
    database.run(*_LOG, "CREATE TABLE keyed (id int PRIMARY KEY)", "CREATE TABLE noise (id int)")
    ingest = live("public.keyed", heartbeat_interval=0.1)
    keyed = ingest.record("public.keyed")
    ingest.stop()
    with database.connect() as old:
        old.execute("BEGIN")
        old.execute("INSERT INTO keyed VALUES (1)")
        ingest.append_only = frozenset({"public.log"})
        ingest.start("public.keyed", "public.log")
        ingest.move_on(3)
        assert ingest.known("public.log") is None
        old.execute("INSERT INTO keyed VALUES (2)")
        old.execute("COMMIT")
    ingest.wait_live()
    database.run("INSERT INTO log VALUES (1, 'x')", "INSERT INTO keyed VALUES (3)")
    ingest.assert_equal()
    assert ingest.record("public.keyed").id == keyed.id
    assert ingest.status.error is None and ingest.status.reconnects == 0


def test_table_that_is_published_with_its_changes_too_is_taken_out_there(
    database: Database, live: Start
) -> None:
    name = f"pub_{database.name}"
    database.run(*_LOG, f"CREATE PUBLICATION {name} FOR TABLE log")
    live("public.log", append_only=("public.log",), heartbeat_interval=0.1)
    database.run("UPDATE log SET what = 'allowed' WHERE at = 1")
    with database.connect() as connection:
        found = connection.execute("SELECT pubname FROM pg_publication_tables").fetchall()
    assert found == [(f"{name}_append",)]


@pytest.mark.parametrize(
    ("text", "shown", "hidden"),
    [
        ("10:20:10,14,15", [9, 11, 13, 19], [10, 14, 15, 20, 21]),
        ("10:10:", [9], [10]),
        # Transaction ids in the stream have 32 bits, those of snapshots 64.
        (
            f"{(5 << 32) + 10}:{(5 << 32) + 20}:{(5 << 32) + 10}",
            [9, 2**32 - 5, 19],
            [10, 20, 2**30],
        ),
        (f"{(5 << 32) - 10}:{(5 << 32) - 3}:{(5 << 32) - 5}", [2**32 - 11], [2**32 - 5, 2, 2**30]),
    ],
)
def test_what_a_snapshot_shows(text: str, shown: list[int], hidden: list[int]) -> None:
    snapshot = requirements.snapshot(text)
    assert all(map(snapshot.shows, shown))
    assert not any(map(snapshot.shows, hidden))
