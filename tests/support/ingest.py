"""A running ingest over a store, and what the database itself says the rows are."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import md5
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.batch.status import CommitInfo
from laredo_fanout.catchup.fall_behind import FallBehind
from laredo_fanout.catchup.plan import CatchupOptions
from laredo_fanout.copy.copier import Copier
from laredo_fanout.copy.range_reader import CopyReader
from laredo_fanout.ingest.supervisor import Ingest
from laredo_fanout.pg_catalog import table_definitions
from laredo_fanout.source_options import (
    CommitIntervals,
    CopyOptions,
    OnSlotLost,
    PublicationOptions,
    SourceOptions,
    SourceTableOptions,
)
from laredo_fanout.store.table import Status, TableRecord
from laredo_fanout.store.writer import Store
from laredo_fanout.watchdog import Watchdog
from laredo_model import line, value_sql
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S


class RunningIngest:
    """One ingest and its store; stop it and start it again at will."""

    def __init__(
        self,
        database: Database,
        path: Path,
        tables: tuple[str, ...],
        *,
        workers: int = 2,
        range_bytes: int = 64 << 20,
        heartbeat_interval: float = 0.5,
        on_slot_lost: OnSlotLost = OnSlotLost.RECREATE,
        create_publication: bool = True,
        receive_timeout: float = 60.0,
        connect_timeout: float = 10.0,
        through: Path | str | None = None,
        catchup: CatchupOptions | None = None,
        append_only: tuple[str, ...] = (),
        copy: CopyOptions | None = None,
        max_size: int = 4 << 30,
    ) -> None:
        """``through``: directory of the socket of a proxy before the server, or host and port."""
        self.max_size = max_size
        self.catchup = catchup
        self.fall_behind: FallBehind | None = None
        self.asks_to_catch_up = False
        self.database = database
        self.path = path
        name = database.name
        self.options = SourceOptions(
            f"postgresql://postgres@/{name}?host={through}" if through else database.dsn,
            slot_name=f"slot_{name}",
            publication=PublicationOptions(f"pub_{name}", create_publication),
            copy=copy or CopyOptions(workers, range_bytes),
            heartbeat_interval=heartbeat_interval,
            on_slot_lost=on_slot_lost,
            receive_timeout=receive_timeout,
            connect_timeout=connect_timeout,
            commits=CommitIntervals(0.1, 0.1),
        )
        self.append_only = frozenset(append_only)
        self.tables = self._configured(tables)
        self.commits = 0
        self.on_commit: Callable[[CommitInfo], None] | None = None
        self.error: Exception | None = None
        self.store: Store
        self.ingest: Ingest
        self._thread: threading.Thread | None = None

    def start(self, *tables: str) -> "RunningIngest":
        """Start it; with ``tables``, on these from now on."""
        if tables:
            self.tables = self._configured(tables)
        self.store = Store.open(self.path, max_size=self.max_size)
        if self.catchup is not None:
            self.fall_behind = FallBehind(self.catchup, self.options, self.store, Watchdog())
            if self.asks_to_catch_up:
                self.fall_behind.ask()
        self.ingest = Ingest(
            self.options,
            self.tables,
            self.store,
            self._committed,
            prune=self._prune,
            change_source=self.fall_behind,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _configured(self, tables: Iterable[str]) -> tuple[SourceTableOptions, ...]:
        return tuple(
            SourceTableOptions(*table.split("."), append_only=table in self.append_only)
            for table in tables
        )

    def stop(self) -> None:
        if self._thread is None:
            return
        self.ingest.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the ingest doesn't stop"
        self._thread = None
        self.store.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _run(self) -> None:
        try:
            self.ingest.run()
        except Exception as error:  # noqa: BLE001
            self.error = error

    def _prune(self) -> None:
        assert not self.store._writing, "a journal can't be pruned in the middle of a transaction"

    def _committed(self, commit: CommitInfo) -> None:
        self.commits += 1
        if self.on_commit is not None:
            self.on_commit(commit)

    def wait_until(self, holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if self.error is not None:
                raise AssertionError(f"the ingest ended: {self.error!r}") from self.error
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}; {self.status}"
            time.sleep(0.005)

    @property
    def status(self) -> Any:
        return self.ingest.status()

    def known(self, table: str) -> TableRecord | None:
        """The newest incarnation, if the store has one."""
        records = [each for each in self.store.tables.values() if each.qualified == table]
        return max(records, key=lambda each: each.id, default=None)

    def record(self, table: str) -> TableRecord:
        """The newest incarnation."""
        record = self.known(table)
        assert record is not None, f"{table} isn't in the store"
        return record

    def is_live(self, table: str) -> bool:
        record = self.known(table)
        return record is not None and record.status is Status.LIVE

    def wait_copied_again(self, before: TableRecord) -> None:
        """Wait until a newer incarnation of this table is live."""
        name = before.qualified
        self.wait_until(
            lambda: self.is_live(name) and self.record(name).id != before.id,
            f"{name} is copied again",
        )

    def wait_live(self, *tables: str) -> None:
        for table in tables or [each.qualified for each in self.tables]:
            self.wait_until(lambda table=table: self.is_live(table), f"{table} is live")

    def move_on(self, times: int = 1) -> None:
        """Wait until a later position is in the store, so many times: after two, there was a
        whole catalog check."""
        for _ in range(times):
            passed = self.store.position
            self.wait_until(lambda at=passed: self.store.position > at, "a later position")

    def catch_up(self) -> None:
        """Wait until everything that is committed now is in the store."""
        here = "SELECT pg_logical_emit_message(true, 'test', 'here') - '0/0'::pg_lsn"
        position = self.database.number(here)
        self.wait_until(lambda: self.store.position >= position, "the stream catches up")

    def state(self, table: str) -> dict[bytes, bytes]:
        """The store's rows."""
        record = self.record(table)
        rows: dict[bytes, bytes] = {}
        with self.store.reader().snapshot(record.id) as snapshot:
            for keys, lines in snapshot.batches():
                rows.update(zip(keys, lines, strict=True))
        return rows

    def rows_sql(self, table: str) -> str:
        """The copy's own SQL: the table's keys (if it has any) and lines."""
        options = next(each for each in self.tables if each.qualified == table)
        with self.database.connect() as connection:
            return self._rows_sql(connection, [options])[table]

    def _rows_sql(self, connection: Any, wanted: Iterable[SourceTableOptions]) -> dict[str, str]:
        connection.execute("SET search_path = pg_catalog")
        known = table_definitions.read_tables(connection, wanted, self.options.publication)
        return {
            name: value_sql.lines_sql(
                source.schema,
                source.name,
                source.selected,
                (source.published and source.published.row_filter) or "",
                key=source.selected_key,
                only=not source.partitioned,
            )
            for name, source in known.items()
        }

    def truth(self, table: str) -> dict[bytes, bytes]:
        """PostgreSQL's rows."""
        return self.truths(table)[table]

    def truths(self, *tables: str) -> dict[str, dict[bytes, bytes]]:
        """PostgreSQL's rows of these tables, or of all."""
        wanted = [each for each in self.tables if not tables or each.qualified in tables]
        found = {}
        with self.database.connect() as connection:
            for setting, value in value_sql.SESSION.items():
                connection.execute(f"SET {setting} = '{value}'")
            for table, rows in self._rows_sql(connection, wanted).items():
                if table in self.append_only:
                    lines = connection.execute(f"SELECT line::text FROM ({rows}) q").fetchall()
                    found[table] = numbered_rows(str(line).encode() for (line,) in lines)
                    continue
                pairs = connection.execute(f"SELECT key, line::text FROM ({rows}) q").fetchall()
                found[table] = {str(key).encode(): str(line).encode() for key, line in pairs}
        return found

    def assert_equal(self, *tables: str) -> None:
        """Store and database hold the same rows, byte for byte."""
        self.catch_up()
        for table in tables or [each.qualified for each in self.tables]:
            state, truth = self.state(table), self.truth(table)
            differing = [
                key for key in state.keys() | truth.keys() if state.get(key) != truth.get(key)
            ]
            shown = [_difference(state.get(key), truth.get(key), key) for key in differing[:3]]
            assert not differing, f"{table}: {len(differing)} rows differ, such as {shown}"
            assert self.record(table).rows == len(truth)


def numbered_rows(lines: Iterable[bytes]) -> dict[bytes, bytes]:
    """Rows of a table without a key, under the keys that docs/archive-format.md gives them."""
    numbers: Counter[bytes] = Counter()
    rows = {}
    for each in lines:
        numbers[each] += 1
        rows[b"%b-%010d" % (md5(each).hexdigest().encode(), numbers[each])] = each
    return rows


def _difference(stored: bytes | None, true: bytes | None, key: bytes) -> object:
    """The first column that differs."""
    if stored is None or true is None or line.is_partial(stored):
        return key, stored, true
    for kept, wanted in zip(line.items(stored), line.items(true), strict=False):
        if kept != wanted:
            return key, kept, wanted
    return key, stored, true


class Gate:
    """Holds copied rows between PostgreSQL and the store, while the stream goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._held: set[CopyReader] = set()
        self._after: int | None = None
        self.rows = 0
        pump = Copier.pump

        def held(copier: Copier, ready: Iterable[CopyReader]) -> int:
            readers = list(ready)
            if readers and self._is_closed():
                self._held.update(readers)
                return 0
            rows = pump(copier, readers)
            self.rows += rows
            return rows

        monkeypatch.setattr(Copier, "pump", held)

    def close_after(self, rows: int) -> None:
        """Let so many rows through before it closes."""
        self._after = rows

    def open(self) -> None:
        """Let everything through."""
        self._open.set()

    def close_again(self, after: int = 0) -> None:
        """Hold what is read from now on, after so many rows."""
        self._after = self.rows + after
        self._held.clear()
        self._open.clear()

    def _is_closed(self) -> bool:
        if self._open.is_set():
            return False
        return self._after is None or self.rows >= self._after

    @contextmanager
    def holding(self, ingest: RunningIngest, readers: int = 1) -> Iterator[None]:
        """This number of readers has read a chunk, which is written after the block."""
        ingest.wait_until(lambda: len(self._held) >= readers, "chunks are read")
        _wait_for_readers(ingest)
        yield
        self._open.set()


def _wait_for_readers(ingest: RunningIngest) -> None:
    """Every reader has its snapshot: its rows lie in buffers, or it waits for room there."""
    with ingest.database.connect() as connection:
        ingest.wait_until(
            lambda: (
                not connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%% copy'"
                    " AND datname = current_database() AND state = 'active'"
                    " AND wait_event IS DISTINCT FROM 'ClientWrite'"
                ).fetchall()
            ),
            "readers have read",
        )


Start = Callable[..., RunningIngest]
"""The fixtures ``ingesting`` and ``live``."""


@contextmanager
def beside(
    database: Database,
    write: Callable[[Any, int], object],
    writers: int = 1,
    synchronous_commit: str = "on",
) -> Iterator[None]:
    """Each writer, with a session and a number from 1 on, writes again and again meanwhile."""
    over = threading.Event()

    def go_on() -> None:
        with database.connect() as session:
            session.execute(f"SET synchronous_commit = {synchronous_commit}".encode())
            for number in count(1):
                if over.is_set():
                    break
                write(session, number)

    threads = [threading.Thread(target=go_on) for _ in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def fill(database: Database, rows: int, table: str = "t", repeated: int = 100) -> None:
    """Make a table of these rows; each has a value in TOAST."""
    database.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, a int, big text)",
        f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO {table} SELECT g, g, repeat(md5(g::text), {repeated})"
        f" FROM generate_series(1, {rows}) g",
        f"ANALYZE {table}",
    )


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def ingesting(database: Database, tmp_path: Path) -> Iterator[Callable[..., RunningIngest]]:
    """Start an ingest of these tables: ``ingesting("public.a", workers=1)``."""
    running: list[RunningIngest] = []

    def start(*tables: str, **options: Any) -> RunningIngest:
        ingest = RunningIngest(database, tmp_path / "store", tables, **options)
        running.append(ingest)
        return ingest.start()

    yield start
    for ingest in running:
        ingest.stop()


@pytest.fixture
def live(ingesting: Start) -> Start:
    """Start an ingest as ``ingesting`` does, and wait until its tables are live."""

    def start(*tables: str, **options: Any) -> RunningIngest:
        ingest = ingesting(*tables, **options)
        ingest.wait_live()
        return ingest

    return start
