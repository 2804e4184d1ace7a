"""A stream that fails at one place of the WAL: the other way is tried, and what stays is shown."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from laredo_fanout.postgres.connections import (
    DecodingFailed,
    ReplicationStreamBroken,
    SourceError,
    SourceUnavailable,
)
from laredo_fanout.postgres.replication_stream import end_of_stream
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database
from tests.support.server.stuck_proxy import Proxy

_ROWS = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(%d, %d) g"
_REJECTED = (
    "BEGIN",
    _ROWS % (1, 2000),
    "SAVEPOINT a",
    "ALTER TABLE t ADD b int",
    _ROWS % (2001, 4000),
    "ROLLBACK TO a",
    _ROWS % (2001, 4000),
    "ALTER TABLE t ADD c int",
    "UPDATE t SET c = 1 WHERE id < 10",
    "COMMIT",
)
"""PostgreSQL 18 can't decode it in parts: could not map filenumber ... to relation OID."""


def _streamed(database: Database) -> int:
    """Number of transactions that were sent in parts, as PostgreSQL reports it."""
    # A running walsender lets the slot's restart_lsn go on by it.
    database.run("SELECT pg_log_standby_snapshot()")
    return database.streamed()


def _kinds(ingest: RunningIngest) -> dict[str, int]:
    return {kind: number for kind, number in ingest.status.stream_faults.items() if number}


def _sampled(ingest: RunningIngest, until: Callable[[], Any], what: str) -> list[Any]:
    """Every status from now on: none is without an error, connected or not."""
    seen: list[Any] = []

    def sample() -> Any:
        done = until()
        seen.extend(ingest.status for _ in range(100))
        return done

    ingest.wait_until(sample, what)
    assert [each for each in seen if each.error is None] == []
    return seen


def test_a_transaction_that_cannot_be_decoded_in_parts_is_taken_whole(
    database: Database, live: Start
) -> None:
    database.run(
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
    )
    ingest = live("public.t", heartbeat_interval=0.2)
    ingest.stop()
    database.run(*_REJECTED)
    ingest.start()
    ingest.wait_until(lambda: _kinds(ingest), "PostgreSQL can't decode it in parts")
    assert "could not map filenumber" in str(ingest.status.error)
    ingest.wait_live()
    ingest.assert_equal()
    ingest.wait_until(lambda: ingest.status.error is None, "it is behind")
    assert ingest.status.stream_fault is None
    # Once it needn't be decoded any more, large transactions come in parts again.
    before, rows = _streamed(database), iter(range(10_000, 10_000_000, 2000))

    def come_in_parts() -> bool:
        first = next(rows)
        database.run(_ROWS.replace("t SELECT g", "t (id, v) SELECT g") % (first, first + 1999))
        ingest.catch_up()
        return _streamed(database) > before

    ingest.wait_until(come_in_parts, "transactions come in parts again")
    assert _kinds(ingest) == {"decoding": 1}
    ingest.assert_equal()


def test_a_decoding_error_that_stays_is_a_state_until_the_slot_is_given_up(
    database: Database, live: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    name = database.name
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"CREATE PUBLICATION pub_{name} FOR TABLE t WHERE (100 / id > 0)",
        "INSERT INTO t VALUES (1, 'a')",
    )
    ingest = live("public.t", create_publication=False, heartbeat_interval=0.1)
    # Many rows before the one that fails: an attempt is connected for a while.
    database.run("INSERT INTO t SELECT g, 'b' FROM generate_series(-30000, 0) g")
    ingest.wait_until(lambda: _kinds(ingest), "PostgreSQL can't decode it")
    seen = _sampled(ingest, lambda: _kinds(ingest)["decoding"] >= 5, "it is tried again")
    assert any(each.connected for each in seen)
    fault = seen[-1].stream_fault
    assert (fault.kind, fault.attempts >= 4) == ("decoding", True)
    assert re.search(
        r"can't decode .* \(22012\), neither in parts nor whole: .*division by zero", fault.text
    )
    assert f"pg_drop_replication_slot('slot_{name}')" in fault.text
    assert "reached" not in fault.text
    printed = capsys.readouterr().out
    assert 1 <= printed.count("neither in parts nor whole") <= 2
    # The runbook's cure.
    database.run("DELETE FROM t WHERE id = 0")
    ingest.wait_until(lambda: _dropped(database), "the slot is dropped")
    ingest.wait_until(lambda: ingest.status.slot_losses == 1, "there is another slot")
    ingest.wait_live()
    ingest.assert_equal()
    ingest.wait_until(lambda: ingest.status.error is None, "it is over")


def _dropped(database: Database) -> bool:
    """Between two attempts nobody streams from it."""
    with database.connect() as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s AND NOT active",
            (f"slot_{database.name}",),
        )
        return not connection.execute(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND plugin = 'pgoutput'",
            (f"slot_{database.name}",),
        ).fetchall()


def _falsified(data: bytes) -> bytes:
    """Each BEGIN is a STREAM COMMIT, which is longer: the message is cut short."""
    return re.sub(rb"(d\0\0\0\x32w.{24})B", rb"\1c", data, flags=re.DOTALL)


def test_a_violation_of_the_protocol_is_a_state_too(
    database: Database, proxy: Proxy, live: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    ingest = live("public.t", heartbeat_interval=0.1, through=proxy.directory)
    with monkeypatch.context() as patch:
        patch.setattr(proxy, "passed", _falsified)
        database.run("INSERT INTO t VALUES (1)")
        ingest.wait_until(lambda: _kinds(ingest), "it is noticed")
        seen = _sampled(ingest, lambda: _kinds(ingest)["protocol"] >= 4, "it is tried again")
        assert seen[-1].stream_fault.kind == "protocol"
    ingest.assert_equal()
    ingest.wait_until(lambda: ingest.status.error is None, "it is over")
    assert ingest.status.stream_fault is None


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        ("XX000", DecodingFailed),  # could not map filenumber, invalid memory alloc request size
        ("XX001", DecodingFailed),  # missing chunk number for toast value
        ("42704", DecodingFailed),  # publication does not exist
        ("53200", DecodingFailed),  # out of memory
        ("", SourceUnavailable),  # it shuts down
        ("57P01", SourceUnavailable),  # terminated by an administrator
        ("08006", SourceUnavailable),
    ],
)
def test_the_end_of_a_stream_is_told_by_its_sqlstate(
    sqlstate: str, kind: type[SourceError]
) -> None:
    error = end_of_stream(sqlstate, "text")
    assert type(error) is kind
    assert not isinstance(error, ReplicationStreamBroken)
