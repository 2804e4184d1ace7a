"""Unexpected failures in the side connection's thread."""

import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

import psycopg
import pytest

from laredo_fanout.batch.status import CommitInfo
from laredo_fanout.batch.write_batch import WriteBatch
from laredo_fanout.ingest.change_source import MessageFeed
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.pg_catalog.side_connection import (
    CheckRequest,
    ConnectionReady,
    ConnectionRequest,
    Report,
    SideConnection,
    SideConnectionDown,
)
from laredo_fanout.pg_catalog.snapshot import CatalogSnapshot
from laredo_fanout.postgres import connections
from laredo_fanout.postgres.connections import Connection, SourceUnavailable
from laredo_fanout.postgres.pgoutput import ExpectedMessages
from laredo_fanout.source_options import PublicationOptions, SourceOptions, SourceTableOptions
from laredo_fanout.store.writer import Store
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until


class Defective:
    """A detour that fails as only a defect does, once the ingest's loop is held."""

    interval = 0.01

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.failed: list[threading.Thread] = []

    def measure(self, connection: Connection) -> None:
        if self.is_held.is_set():
            self.failed.append(threading.current_thread())
            raise ZeroDivisionError("measured by nothing")

    def open(self, connection: Connection, batch: WriteBatch) -> MessageFeed | None:
        return None

    def is_over(self, level: int) -> bool:
        return False


@pytest.fixture
def options(database: Database) -> SourceOptions:
    slot, publication = f"slot_{database.name}", PublicationOptions("defective")
    return SourceOptions(database.dsn, slot_name=slot, publication=publication)


def side_of(options: SourceOptions, reports: list[Report]) -> SideConnection:
    awaited = ExpectedMessages(options.slot_name, lambda: None)
    return SideConnection(options, (), awaited, reports.append)


def test_a_defect_ends_the_ingest_and_whoever_waits_for_it_is_answered(
    database: Database, options: SourceOptions, store: Store
) -> None:
    """Its side connection fails while its loop is held; after that a re-copy is asked for."""
    database.run("CREATE TABLE users (id int PRIMARY KEY)")
    source = Defective()
    asked: list[Future[None]] = []

    def hold(_: CommitInfo) -> None:
        if ingest.status().connected and not asked:
            source.is_held.set()
            wait_until(lambda: source.failed, "it fails")
            # Its failure lies in the loop's mailbox when its thread has ended.
            source.failed[0].join(PATIENCE_S)
            asked.append(ingest.recopy("public.users"))

    table = SourceTableOptions("public", "users")
    often = replace(options, heartbeat_interval=0.1)
    ingest = Ingest(often, [table], store, hold, change_source=source)
    with pytest.raises(ZeroDivisionError, match="measured by nothing"):
        ingest.run()
    (answer,) = asked
    with pytest.raises(SourceUnavailable, match="the stream has just ended"):
        answer.result(PATIENCE_S)


def test_a_connection_that_cannot_be_made_ready_is_closed(options: SourceOptions) -> None:
    side = side_of(options, [])
    connection = connections.connect(options, role="side")
    connection.execute("BEGIN")
    with suppress(psycopg.errors.UndefinedTable):
        connection.execute("SELECT FROM nothing")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        side.start(connection)
    side.stop()
    assert connection.closed


def is_checked(reports: list[Report]) -> bool:
    return any(isinstance(each, CatalogSnapshot) and each.answers == 7 for each in reports)


def test_other_work_goes_on_while_some_fails_each_time(options: SourceOptions) -> None:
    reports, failures = list[Report](), list[float]()

    def fail(connection: Connection) -> None:
        failures.append(time.monotonic())
        connection.execute("SELECT FROM nothing")

    side = side_of(options, reports)
    side.every(0.01, fail)
    side.start(connections.connect(options, role="side"))
    try:
        wait_until(lambda: failures, "it fails")
        side.request(CheckRequest(7))
        wait_until(lambda: is_checked(reports), "the catalog is checked")
        wait_until(lambda: len(failures) == 4, "it is tried again, less and less often")
    finally:
        side.stop()
    assert failures[3] - failures[2] > 0.3


def test_other_work_goes_on_while_no_connection_for_a_copy_can_be_opened(
    options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role's CONNECTION LIMIT may leave room for none, for good."""
    connect, reports = connections.connect, list[Report]()

    def refusing(options: SourceOptions, *, role: str, replication: bool = False) -> Connection:
        if role == "copy":
            raise SourceUnavailable("too many connections for role")
        return connect(options, role=role, replication=replication)

    monkeypatch.setattr(connections, "connect", refusing)
    side = side_of(options, reports)
    side.start(connect(options, role="side"))
    try:
        side.request(ConnectionRequest())
        wait_until(lambda: any(isinstance(r, SideConnectionDown) for r in reports), "it is refused")
        side.request(CheckRequest(7))
        wait_until(lambda: is_checked(reports), "the catalog is checked")
    finally:
        side.stop()
    assert not any(isinstance(each, ConnectionReady) for each in reports)


def test_it_is_closed_whatever_the_failure_is(options: SourceOptions) -> None:
    connection = connections.connect(options, role="side")
    with pytest.raises(KeyboardInterrupt), connections.closed_on_failure(connection):
        raise KeyboardInterrupt
    assert connection.closed
