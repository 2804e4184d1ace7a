"""The slot moves, is watched, is taken back from a lost connection, and can be waited for."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from laredo_fanout.postgres import connections
from laredo_fanout.postgres.replication_stream import ReplicationStream
from laredo_fanout.slot import health
from laredo_fanout.slot.slot import Oldest, Slot
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database, on_versions
from tests.support.processes import wait_until
from tests.support.server.stuck_proxy import Proxy


def _slot(database: Database) -> tuple[int, int]:
    """Of the slot: how far it is confirmed, and from where on it keeps WAL."""
    with database.connect() as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn, restart_lsn - '0/0'::pg_lsn"
            " FROM pg_replication_slots WHERE slot_name = %s",
            (f"slot_{database.name}",),
        ).fetchone()
    assert row is not None
    return int(str(row[0])), int(str(row[1]))


# ---------------------------------------------------------------- heartbeats


@on_versions(14, 15, 16, 17, 18)
def test_another_database_writes_and_our_idle_ones_slot_follows(
    filled: Database, live: Start
) -> None:
    ingest = live("public.t", heartbeat_interval=0.2)
    before, kept = _slot(filled)
    with filled.server.connect() as other:
        for _ in range(3):
            other.execute("SELECT pg_logical_emit_message(false, 'other', repeat('x', 1 << 20))")
            other.execute("SELECT pg_switch_wal()")
        row = other.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        written = int(str(row[0]))
        assert written - before > 32 << 20

        def released() -> bool:
            # What the slot needs is updated with each record of the running transactions.
            other.execute("CHECKPOINT")
            return min(_slot(filled)) >= written

        ingest.wait_until(released, "the slot let go what the other database wrote")
    assert _slot(filled)[1] > kept
    ingest.wait_until(
        lambda: (ingest.status.slot.retained or 1 << 40) < 16 << 20, "it is confirmed"
    )


# ---------------------------------------------------------------- in danger

WELL = Slot("s", "pgoutput", "d", 1, 100, "reserved", None, "d", 100, 0)
DANGERS = {
    "well": (WELL, set()),
    "no limit": (WELL._replace(retained=10 << 30, wal_status="extended"), {"extended"}),
    "within": (WELL._replace(keep_bytes=1000, safe_wal_size=251), set()),
    "little left": (WELL._replace(keep_bytes=1000, safe_wal_size=249), {"safe_wal_size"}),
    "too late soon": (
        WELL._replace(keep_bytes=1000, safe_wal_size=-5, wal_status="unreserved"),
        {"unreserved"},
    ),
    "too late": (WELL._replace(wal_status="lost", invalidated="wal_removed"), {"lost"}),
    "too late for all else": (
        WELL._replace(
            wal_status="lost",
            idle_s=61,
            idle_timeout_s=120,
            oldest=Oldest(7, 3601),
            xmin_age=110,
            freeze_age=200,
        ),
        {"lost"},
    ),
    "idle": (WELL._replace(active_pid=None, idle_s=61, idle_timeout_s=120), {"idle"}),
    "not idle for long": (WELL._replace(idle_s=59, idle_timeout_s=120), set()),
    "old transaction": (WELL._replace(oldest=Oldest(7, 3601)), {"old_transaction"}),
    "old, prepared": (WELL._replace(oldest=Oldest(None, 3601)), {"old_transaction"}),
    "of unknown age": (WELL._replace(oldest=Oldest(7, None)), set()),
    "catalog": (WELL._replace(xmin_age=110, freeze_age=200), {"xmin"}),
}


@pytest.mark.parametrize("case", DANGERS)
def test_dangers(case: str) -> None:
    slot, kinds = DANGERS[case]
    found = health.warnings(slot)
    assert {warning.kind for warning in found} == kinds
    assert all(warning.cure and "slot s" in warning.text for warning in found)


def _logged(*seen: Slot | None) -> list[tuple[str, str]]:
    watch = health.SlotWatch()
    with capture_logs() as logs:
        for slot in seen:
            watch.update(slot)
    return [(entry["event"], entry["kind"]) for entry in logs]


def test_a_slot_that_is_lost_or_dropped_isnt_out_of_danger() -> None:
    unreserved, lost = (WELL._replace(wal_status=status) for status in ("unreserved", "lost"))
    for gone, kind in ((lost, "lost"), (None, "dropped")):
        said = _logged(unreserved, gone, gone)
        assert said == [("slot in danger", "unreserved"), ("slot lost", kind)]
        assert _logged(unreserved, gone, WELL)[2:] == [
            ("slot recovered", each) for each in sorted((kind, "unreserved"))
        ]


# ---------------------------------------------------------------- who holds the slot


def test_a_walsender_that_a_lost_connection_left_is_ended(
    filled: Database, live: Start, proxy: Proxy
) -> None:
    """PostgreSQL itself would never: wal_sender_timeout is off."""
    filled.run(f"ALTER DATABASE {filled.name} SET wal_sender_timeout = 0")
    ingest = live("public.t", receive_timeout=2, through=proxy.directory)
    proxy.stuck.set()
    filled.run("UPDATE t SET a = 'b' WHERE id < 10")
    ingest.assert_equal()
    assert ingest.status.senders_ended >= 1 and ingest.status.reconnects >= 1
    assert len(ingest.store.streams) == 1


@contextmanager
def _streaming_from(database: Database, run: str) -> Iterator[ReplicationStream]:
    """Another program's stream of the slot, by the name that a server of ours would have."""
    ingest = RunningIngest(database, Path("unused"), ())
    options = replace(ingest.options, run=run)
    with closing(ReplicationStream.open(options)) as stream:
        stream.start(options.slot_name, options.publication.name, 0)
        yield stream


@on_versions(14, 15, 16, 17, 18)
def test_anybody_elses_stream_is_named_and_left_alone(filled: Database, live: Start) -> None:
    ingest = live("public.t")
    ingest.stop()
    with _streaming_from(filled, "feedfeedfeedfeed") as other, filled.connect() as connection:
        row = connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
        ingest.start()
        ingest.wait_until(lambda: ingest.status.error, "it says so")
        error = ingest.status.error
        assert row is not None
        assert f"in use by pid {row[0]} (laredo-fanout slot_{filled.name} feedfeed" in error
        assert f"SELECT pg_terminate_backend({row[0]});" in error
        attempts = ingest.status.reconnects
        ingest.wait_until(lambda: ingest.status.reconnects > attempts + 1, "it tries again")
        assert connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone() == row
        assert other.read_available() >= 0
        connection.execute("DELETE FROM t WHERE id = 1")
    ingest.assert_equal()
    assert ingest.status.senders_ended == 0


def test_a_streams_name_is_stored_before_it_is_used(
    filled: Database, live: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a crash right after its start would leave a stranger."""
    known: list[bool] = []
    start = ReplicationStream.start

    def looked_at(stream: ReplicationStream, *names: Any, **options: Any) -> None:
        name = stream.pgconn.parameter_status(b"application_name")
        assert name is not None
        known.append(name.decode() in ingest.store.streams)
        start(stream, *names, **options)

    ingest = live("public.t")
    monkeypatch.setattr(ReplicationStream, "start", looked_at)
    filled.run("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
    ingest.wait_until(lambda: known, "it begins again")
    ingest.assert_equal()
    assert all(known)


def test_a_store_that_was_copied_while_it_ran_ends_no_later_stream(
    filled: Database, live: Start
) -> None:
    """Its names are those of then: each connection has a new one, stored before it is used."""
    ingest = live("public.t")
    copied = ingest.store.streams
    with filled.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        ingest.wait_until(lambda: ingest.store.streams not in ((), copied), "connected again")
        row = connection.execute(
            "SELECT application_name FROM pg_stat_replication WHERE application_name = ANY (%s)",
            (list(copied),),
        ).fetchone()
    assert row is None


def test_names_fit_however_long_the_slots_is(filled: Database) -> None:
    options = replace(RunningIngest(filled, Path("unused"), ()).options, slot_name="s" * 63)
    options = replace(options, run="0123456789abcdef")
    with connections.connect(options, role="side") as connection:
        row = connection.execute("SELECT current_setting('application_name')").fetchone()
    assert row == (connections.application_name(options, "side"),)
    assert row[0].endswith("s 0123456789abcdef side")


# ---------------------------------------------------------------- the making of the slot


@on_versions(14, 15, 16, 17, 18)
def test_whom_the_slot_waits_for_is_said_and_it_can_be_stopped(
    filled: Database, ingesting: Start
) -> None:
    with psycopg.connect(filled.dsn, application_name="the report") as left:
        left.execute("INSERT INTO t VALUES (1000, 'left open')")
        pid = left.info.backend_pid
        ingest = ingesting("public.t")
        ingest.wait_until(lambda: f"pid {pid} (" in ingest.status.phase, "it is said")
        phase = ingest.status.phase
        assert phase.startswith("creating the slot waits for transactions to end: ")
        assert "role postgres, the report, idle in transaction, since 20" in phase
        ingest.stop()
        with filled.connect() as connection:
            wait_until(
                lambda: (
                    not connection.execute(
                        "SELECT FROM pg_stat_activity WHERE application_name LIKE 'laredo-fanout%%'"
                        " AND datname = current_database()"
                    ).fetchall()
                ),
                "nothing waits any more",
            )
        ingest.start()
        ingest.wait_until(lambda: f"pid {pid} (" in ingest.status.phase, "it is said again")
        left.commit()
    ingest.wait_live()
    ingest.assert_equal()
    ingest.wait_until(lambda: ingest.status.phase == "streaming", "nothing more is said")


def test_a_prepared_transaction_that_the_slot_waits_for_is_named(
    filled: Database, ingesting: Start
) -> None:
    with filled.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1000, 'prepared')")
        connection.execute(f"PREPARE TRANSACTION 'forgotten_{filled.name}'".encode())
        ingest = ingesting("public.t")
        try:
            ingest.wait_until(
                lambda: f"prepared transaction 'forgotten_{filled.name}'" in ingest.status.phase,
                "it is said",
            )
        finally:
            connection.execute(f"ROLLBACK PREPARED 'forgotten_{filled.name}'".encode())
    ingest.wait_live()
