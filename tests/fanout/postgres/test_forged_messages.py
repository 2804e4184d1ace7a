"""Any role of the database may write messages with our prefix into the WAL; they are nobody's."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from laredo_fanout.decode.transaction_spool import TransactionSpool
from laredo_fanout.ingest import session as streaming
from laredo_fanout.postgres import connections
from laredo_fanout.slot.timeline import differs_at
from laredo_fanout.store.environment import Marker
from tests.support.ingest import RunningIngest, Start
from tests.support.postgres import Database


def _emit(database: Database, *contents: bytes, transactional: bool = True) -> None:
    """As a role that may do nothing."""
    with database.connect() as connection:
        connection.execute("SET ROLE pg_monitor")
        for content in contents:
            connection.execute(
                "SELECT pg_logical_emit_message(%s, 'laredo', %b::bytea)", (transactional, content)
            )


def _sent(database: Database, slot: str) -> list[bytes]:
    """Contents of messages that are in the WAL, as another slot shows them."""
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version',"
            " '1', 'publication_names', 'none', 'messages', 'true')",
            (slot,),
        ).fetchall()
    contents = []
    for (data,) in rows:
        assert isinstance(data, bytes)
        if data[:1] == b"M" and data[10:17] == b"laredo\0":
            contents.append(data[21:])
    return contents


def test_what_isnt_awaited_is_nobodys(filled: Database, live: Start) -> None:
    filled.run(
        "CREATE PUBLICATION none", "SELECT pg_create_logical_replication_slot('spy', 'pgoutput')"
    )
    ingest = live("public.t", heartbeat_interval=0.1)
    with filled.connect() as connection:
        names = connection.execute(
            "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'laredo-%'"
        ).fetchall()
    tokens = {str(name).split()[2] for (name,) in names}
    slot = ingest.options.slot_name
    sent = _sent(filled, "spy")
    assert len(sent) >= 2
    assert not any(token.encode() in content for token in tokens for content in sent)
    forged = [f"{slot}:{token}:look:{end}".encode() for token in tokens for end in ("x", "99", "")]
    forged += [f"{slot}:{token}:barrier:1:0".encode() for token in tokens]
    forged += [b"", b"\xff\xfe", b"laredo", slot.encode(), b"\0" * 300, *sent]
    _emit(filled, *forged)
    _emit(filled, *forged, transactional=False)
    ingest.assert_equal()
    ingest.wait_until(
        lambda: ingest.status.strange_messages >= 2 * len(forged), "all of them are counted"
    )
    assert ingest.error is None
    assert ingest.status.reconnects == 0
    filled.run("INSERT INTO t VALUES (1000, 'later')")
    ingest.assert_equal()
    assert ingest.status.strange_messages == 2 * len(forged)


def test_another_slots_server_isnt_strange(filled: Database, live: Start, tmp_path: Path) -> None:
    ingest = live("public.t", heartbeat_interval=0.1)
    other = RunningIngest(filled, tmp_path / "other", ("public.t",), heartbeat_interval=0.1)
    other.options = replace(other.options, slot_name=f"other_{filled.name}")
    other.start()
    try:
        other.wait_live()
        ingest.assert_equal()
        assert ingest.status.strange_messages == 0
        assert other.status.strange_messages == 0
    finally:
        other.stop()


def test_a_message_that_was_written_again_elsewhere_proves_no_history(
    filled: Database, live: Start
) -> None:
    """The store's last message counts in the transaction in which it was met, and in no other."""
    ingest = live("public.t", heartbeat_interval=0.1)
    ingest.wait_until(lambda: ingest.store.marker, "a message of ours was met")
    ingest.stop()
    ingest.start()
    marker = ingest.store.marker
    ingest.stop()
    assert marker is not None
    _emit(filled, marker.content.encode())
    options = ingest.options
    with connections.connect(options, role="test") as connection:
        row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        moved = Marker(int(row[0]) - 1, marker.content)
        _emit(filled, b"after")
        assert differs_at(moved, options, connection, threading.Event()) is not None


@pytest.mark.parametrize("transactional", [True, False])
def test_the_room_of_somebodys_large_message_is_freed(
    filled: Database,
    live: Start,
    monkeypatch: pytest.MonkeyPatch,
    transactional: bool,
) -> None:
    """libpq's buffer never gets smaller: once the message isn't needed, another one is used."""
    monkeypatch.setattr(streaming, "_SESSION_AT_LEAST_S", 0)
    ingest = live("public.t", heartbeat_interval=0.1)
    first = ingest.ingest._streaming
    with filled.connect() as connection:
        connection.execute(
            "SELECT pg_logical_emit_message(%s, 'else', repeat('x', 17 << 20))", (transactional,)
        )
    ingest.wait_until(lambda: ingest.ingest._streaming is not first, "another connection is used")
    ingest.assert_equal()
    second = ingest.ingest._streaming
    filled.run("INSERT INTO t VALUES (1000, 'later')")
    ingest.assert_equal()
    assert ingest.ingest._streaming is second
    assert ingest.status.reconnects == 0


@pytest.mark.parametrize("prefix", ["else", "laredo"])
def test_somebodys_messages_in_streamed_transactions_arent_spooled(
    filled: Database, live: Start, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    filled.run(f"ALTER DATABASE {filled.name} SET logical_decoding_work_mem = '64kB'")
    largest = 0
    add = TransactionSpool.add

    def spied(spool: TransactionSpool, *parts: bytes | memoryview) -> None:
        nonlocal largest
        largest = max(largest, sum(map(len, parts)))
        add(spool, *parts)

    monkeypatch.setattr(TransactionSpool, "add", spied)
    ingest = live("public.t", heartbeat_interval=0.1)
    with filled.connect() as connection, connection.transaction():
        connection.execute("UPDATE t SET a = repeat('streamed', 100)")
        connection.execute(
            "SELECT pg_logical_emit_message(true, %s, repeat('x', 3 << 20))", (prefix,)
        )
        connection.execute(
            "INSERT INTO t SELECT g, repeat('y', 500) FROM generate_series(1001, 2801) g"
        )
    ingest.assert_equal()
    assert 500 < largest < 10_000
