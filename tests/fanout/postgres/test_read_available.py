"""The socket is emptied beside other work: only when allowed, and only up to a bound."""

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_fanout.copy.range_reader import CopyReader, ReadFailed
from laredo_fanout.postgres import pgoutput
from laredo_fanout.postgres.connections import SourceUnavailable
from laredo_fanout.postgres.replication_stream import BackgroundReading, ReplicationStream
from tests.support.ingest import RunningIngest
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, wait_until
from tests.support.server.stuck_proxy import Proxy

_BOUND = 8 << 20
_ROWS, _WIDTH = 8_000, 5_000


class Gulps:
    """Counts gulps; one may be held, and one may fail."""

    def __init__(self) -> None:
        self.count = 0
        self.fails: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self) -> None:
        self.count += 1
        if self.fails is not None:
            raise self.fails
        assert self.may_end.wait(PATIENCE_S)

    def wait_for_more(self, *, than: int, timeout: float = PATIENCE_S) -> None:
        wait_until(lambda: self.count > than, "it gulps again", timeout)


@pytest.fixture
def gulps() -> Gulps:
    return Gulps()


@pytest.fixture
def background_reading(gulps: Gulps) -> Iterator[BackgroundReading]:
    with closing(BackgroundReading(gulps)) as background_reading:
        yield background_reading


def test_it_works_within_and_only_there(
    background_reading: BackgroundReading, gulps: Gulps
) -> None:
    for _ in range(3):
        with background_reading.meanwhile():
            gulps.wait_for_more(than=gulps.count + 1)
        with pytest.raises(AssertionError, match="it gulps again"):
            gulps.wait_for_more(than=gulps.count, timeout=0.05)


def test_the_end_waits_for_a_gulp_that_has_begun(
    background_reading: BackgroundReading, gulps: Gulps
) -> None:
    gulps.may_end.clear()
    with background_reading.meanwhile():
        gulps.wait_for_more(than=0)
        threading.Timer(0.05, gulps.may_end.set).start()
    assert gulps.may_end.is_set()


def test_an_error_of_a_gulp_is_raised_at_the_end(
    background_reading: BackgroundReading, gulps: Gulps
) -> None:
    gulps.fails = SourceUnavailable("cut")
    done = False
    with pytest.raises(SourceUnavailable, match="cut"), background_reading.meanwhile():
        gulps.wait_for_more(than=0)
        done = True
    assert done
    assert gulps.count == 1


def test_an_error_within_is_the_one_that_is_raised(
    background_reading: BackgroundReading, gulps: Gulps
) -> None:
    gulps.fails = SourceUnavailable("cut")
    with pytest.raises(KeyError), background_reading.meanwhile():
        gulps.wait_for_more(than=0)
        raise KeyError
    gulps.fails = None
    with background_reading.meanwhile():
        gulps.wait_for_more(than=gulps.count)


@pytest.fixture
def backlog(database: Database, tmp_path: Path) -> Iterator[ReplicationStream]:
    """A stream with more than twice the bound to bring."""
    options = RunningIngest(database, tmp_path, ()).options
    name, publication = options.slot_name, options.publication.name
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        connection.execute(f"CREATE PUBLICATION {publication} FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        wide = "repeat('x', %s)"
        many = "generate_series(1, %s)"
        connection.execute(f"INSERT INTO t SELECT g, {wide} FROM {many} g", (_WIDTH, _ROWS))
    with closing(ReplicationStream.open(options)) as stream:
        stream.start(name, publication, 0)
        yield stream


def _inserts(stream: ReplicationStream) -> int:
    """Take what was gulped; how many rows are among it."""
    found = 0
    while True:
        size, data = stream.get(1)
        if size <= 0:
            return found
        is_data = data[0] == pgoutput.XLOG_DATA
        found += is_data and bytes(data[pgoutput.ENVELOPE : pgoutput.ENVELOPE + 1]) == b"I"


def test_what_is_gulped_ahead_is_bounded_and_nothing_of_it_is_lost(
    backlog: ReplicationStream,
) -> None:
    backlog.read_available()
    # At once whenever something comes: then the server sends while it is read.
    while select.select([backlog], [], [], 30)[0] and backlog.read_ahead():
        continue
    rows = _inserts(backlog)
    assert _BOUND // 4 < rows * _WIDTH < 2 * _BOUND

    def whole() -> bool:
        nonlocal rows
        backlog.read_available()
        rows += _inserts(backlog)
        return rows == _ROWS

    wait_until(whole, "the rest comes")


class _Unfinished(Proxy):
    """It keeps the end of the answer to IDENTIFY_SYSTEM, ReadyForQuery, to itself."""

    def passed(self, data: bytes) -> bytes:
        return data.removesuffix(b"Z\0\0\0\5I") if b"IDENTIFY_SYSTEM\0Z" in data else data


def test_an_answer_without_its_end(
    database: Database, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    path = tmp_path / "proxy"
    path.mkdir()
    with closing(_Unfinished(str(postgres.socket_directory / ".s.PGSQL.5432"), path)):
        options = RunningIngest(database, tmp_path, (), through=path, receive_timeout=0.5).options
        told = r"didn't finish its answer to IDENTIFY_SYSTEM within"
        with (
            closing(ReplicationStream.open(options)) as stream,
            pytest.raises(SourceUnavailable, match=told),
        ):
            stream.identify()


def test_a_statement_that_nobody_reads_ends_the_reader(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ingest's thread sends it, and must not wait without end."""
    monkeypatch.setattr("laredo_fanout.postgres.replication_stream.FLUSH_S", 0.2)
    with closing(psycopg.connect(database.dsn, autocommit=True)) as connection:
        pid = connection.info.backend_pid
        reader = CopyReader(connection)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ReadFailed, match="PostgreSQL read nothing") as failed:
                reader.begin(b"SELECT '" + b"x" * (64 << 20) + b"'")
        finally:
            os.kill(pid, signal.SIGCONT)
    assert failed.value.connection_lost
