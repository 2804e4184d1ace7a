"""Limits of a copy: rows a second, memory, connections; no lock or snapshot outlives a chunk."""

import time
from collections.abc import Iterable

import pytest

from laredo_fanout.copy.copier import Copier
from laredo_fanout.copy.range_reader import CopyReader
from laredo_fanout.postgres import connections
from laredo_fanout.source_options import CopyOptions
from tests.support.ingest import Gate, Start, fill
from tests.support.postgres import Database

_SMALL_RANGES = 64 << 10


def test_no_snapshot_and_no_lock_between_chunks(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    fill(database, 400)
    gate.close_after(100)
    ingest = ingesting("public.t", workers=2, range_bytes=_SMALL_RANGES)
    with gate.holding(ingest), database.connect() as connection:
        told: list[str] = []
        connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        readers = connection.execute(
            "SELECT state, backend_xmin, backend_xid FROM pg_stat_activity"
            " WHERE application_name LIKE '% copy' AND datname = current_database()"
        ).fetchall()
        assert readers and set(readers) == {("idle", None, None)}
        locks = connection.execute(
            "SELECT mode FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE relation = 't'::regclass AND pid <> pg_backend_pid()"
            " AND backend_type <> 'autovacuum worker'"
        ).fetchall()
        assert locks == []
        slots = connection.execute(
            "SELECT xmin FROM pg_replication_slots WHERE database = current_database()"
        ).fetchall()
        assert slots == [(None,)]
        connection.execute("DELETE FROM t WHERE id % 2 = 0")
        connection.execute("VACUUM (VERBOSE) t")
        # Before 15 VACUUM said it in other words.
        removed = "0 are dead but not yet removable", "found 200 removable"
        assert any(words in text for words in removed for text in told), told
    ingest.wait_live()
    ingest.assert_equal()


def test_no_snapshot_outlives_its_incarnation(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    """An append-only table is read in one statement, whose snapshot holds vacuum back."""
    database.run(
        "CREATE TABLE a (id int, v text)",
        "INSERT INTO a SELECT g, repeat('v', 200) FROM generate_series(1, 100000) g",
    )
    gate.close_after(2000)
    ingest = ingesting(
        "public.a", append_only=("public.a",), heartbeat_interval=0.2, receive_timeout=3600
    )
    with gate.holding(ingest), database.connect() as connection:
        reading = (
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '% copy'"
            " AND datname = current_database() AND backend_xmin IS NOT NULL"
        )
        (first,) = connection.execute(reading).fetchall()
        publication = f"{ingest.options.publication.name}_append"
        database.run(
            f"BEGIN; ALTER PUBLICATION {publication} DROP TABLE a;"
            f" ALTER PUBLICATION {publication} ADD TABLE a (id); COMMIT"
        )
        ingest.wait_until(
            lambda: first not in connection.execute(reading).fetchall(), "the first read ends"
        )
    ingest.wait_live()
    ingest.assert_equal()


def test_chunks_that_wait_for_a_lock_leave_no_backends(
    database: Database, ingesting: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CHECK_CLIENT", "100ms")
    fill(database, 400)
    gate.close_after(100)
    ingest = ingesting("public.t", workers=2, range_bytes=_SMALL_RANGES, receive_timeout=1)
    with database.connect() as locking, database.connect() as looking:
        with gate.holding(ingest):
            locking.execute("BEGIN; LOCK TABLE t")
        pids: set[int] = set()

        def waiting() -> set[int]:
            found = looking.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '% copy'"
                " AND datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchall()
            pids.update(pid for (pid,) in found)
            return {pid for (pid,) in found}

        ingest.wait_until(lambda: waiting() and len(pids) >= 6, "chunks were read again")
        ingest.wait_until(lambda: len(waiting()) <= 2, "the former backends have ended")
        locking.execute("ROLLBACK")
    ingest.wait_live()
    ingest.assert_equal()


def test_ranges_are_begun_no_faster_than_the_throttle_allows(
    database: Database, ingesting: Start
) -> None:
    for table in "tu":
        fill(database, 300, table, repeated=10)
    begun = time.monotonic()
    said = CopyOptions(workers=2, max_rows_per_second=200, max_connections=2)
    ingest = ingesting("public.t", "public.u", copy=said)
    ingest.wait_until(lambda: ingest.status.tables["public.t"].ranges, "ranges are known")
    # Each is worth about a second, so that it doesn't take one long breath for all.
    assert ingest.status.tables["public.t"].ranges >= 2
    ingest.wait_live()
    # Of 600 rows, those of the last range of each of two readers aren't waited for.
    assert time.monotonic() - begun > (600 - 2 * 200) / 200
    ingest.assert_equal()


def test_one_bound_on_memory_over_all_connections(
    database: Database, live: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in "tu":
        fill(database, 600, table, repeated=200)
    most = 0
    pump = Copier.pump

    def watched(copier: Copier, ready: Iterable[CopyReader]) -> int:
        nonlocal most
        rows = pump(copier, ready)
        most = max(most, copier.bytes_in_flight)
        return rows

    monkeypatch.setattr(Copier, "pump", watched)
    ingest = live("public.t", "public.u", copy=CopyOptions(workers=2, max_memory=1 << 20))
    ingest.assert_equal()
    assert 0 < most <= 1 << 20


def test_connections_over_all_tables_and_workers_of_each(
    database: Database, ingesting: Start, gate: Gate
) -> None:
    for table in "tuv":
        fill(database, 400, table)
    said = CopyOptions(workers=2, range_bytes=_SMALL_RANGES, max_connections=5)
    ingest = ingesting("public.t", "public.u", "public.v", copy=said)
    with gate.holding(ingest), database.connect() as connection:
        # Each chunk of the table, and nothing else, has its name.
        running = (
            "SELECT substring(query FROM 'LOCK TABLE.*?public.*?([tuv])') FROM pg_stat_activity"
            " WHERE application_name LIKE '% copy' AND datname = current_database()"
        )
        tables: list[str] = []

        def all_read() -> bool:
            tables[:] = sorted(str(row[0]) for row in connection.execute(running) if row[0])
            return len(tables) == 5

        ingest.wait_until(all_read, "all of them read")
        assert tables in (list("ttuuv"), list("ttuvv"), list("tuuvv"))
        assert ingest.status.copy_connections == 5
    ingest.wait_live()
    ingest.assert_equal()
