"""Decoded by other processes, the stream is what it is when the ingest decodes it: the same changes
of the same transactions in the same order, whatever happens to those processes."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from laredo_fanout.source import decode_pipeline, decode_wire, stream_decoder
from laredo_fanout.source.append_only import Intake
from laredo_fanout.source.decode_pipeline import DecodePipeline, Decoding
from laredo_fanout.source.decode_wire import Layout
from laredo_fanout.source.message import Emitted, Relation, RelationColumn
from laredo_fanout.source.options import SourceOptions
from laredo_fanout.source.replication import ReplicationStream
from laredo_fanout.source.row_decoder import compile_decoder
from laredo_fanout.source.status import Counters
from laredo_fanout.source.stream_decoder import IGNORED, Drained, Route, StreamDecoder
from laredo_model.change import Action
from laredo_model.rule import TypeInfo
from tests.fanout.source.journal_oracle import Replay, Rows
from tests.fanout.source.test_random_transactions import (
    _INSERTS,
    _SETUP,
    _TABLES,
    Workload,
    _selected,
)
from tests.fix_ingest import RunningIngest
from tests.fix_postgres import Database, on_versions

Start = Callable[..., RunningIngest]

_PATIENCE_S = 60
_SMALL_BLOCK = 4_000

_Change = tuple[int, int, int, bytes, bytes]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes decode as soon as anything comes, in small blocks."""
    monkeypatch.setattr(decode_pipeline, "_ENTER_BYTES", 1)
    monkeypatch.setattr(decode_wire, "BLOCK_BYTES", _SMALL_BLOCK)
    monkeypatch.setattr(stream_decoder, "_SPOOL_FROM_BYTES", 100_000)


def _is_ours(emitted: Emitted) -> bool:
    return emitted.transactional and emitted.prefix == b"laredo"


class _Reading:
    """Everything one slot's stream brings, table by table, and what it was cut into."""

    def __init__(
        self,
        database: Database,
        path: Path,
        slot: str,
        start: int,
        workers: int,
        *,
        streamed: bool,
        patience: float = 30,
    ) -> None:
        with database.connect() as connection:
            rows = connection.execute(
                "SELECT t.oid::int8, typname::text, nspname::text FROM pg_type t"
                " JOIN pg_namespace n ON n.oid = typnamespace"
            ).fetchall()
        self._types = {row[0]: TypeInfo(int(str(row[0])), str(row[1]), str(row[2])) for row in rows}
        self._workers = workers
        options = SourceOptions(database.dsn, slot_name=slot)
        self.counters = Counters()
        self.changes: dict[str, list[_Change]] = {}
        self.events: list[object] = []
        self.trouble: list[object] = []
        self._names: dict[int, str] = {}
        (path / slot).mkdir()
        self.decoder = StreamDecoder(self, _is_ours, path / slot, start)
        self.stream = ReplicationStream.open(options)
        self.stream.start(slot, "p", start, stream_transactions=streamed)
        self._patience = patience
        self.pipeline = self._pipeline(workers)
        self.taken = 0
        self.as_types: dict[str, TypeInfo] = {}

    def _pipeline(self, workers: int) -> Decoding:
        if not workers:
            return Decoding(self.stream, self.decoder)
        return DecodePipeline(
            self.stream,
            self.decoder,
            workers,
            counters=self.counters,
            wake=lambda: None,
            patience=self._patience,
        )

    # what the decoder asks

    @property
    def decoded(self) -> int:
        """How many blocks other processes have decoded."""
        assert isinstance(self.pipeline, DecodePipeline)
        return sum(process.decoded for process in self.pipeline._pool.processes)

    def route(self, relation: Relation) -> Route:
        if relation.name == "others":
            return IGNORED
        route = Route(relation.oid)
        self._names[relation.oid] = relation.name
        key = tuple(column.name for column in relation.columns if column.in_key)
        if relation.replica_identity == "f":
            key = (relation.columns[0].name,)
        layout = Layout(
            tuple(column.name for column in relation.columns),
            tuple(self._type(relation.name, column) for column in relation.columns),
            key,
        )
        # Of one table rows must be decoded by the ingest, until it has seen enough of them.
        intake = Intake(live=relation.name != "composite")
        route.decode_by(compile_decoder(*layout, route.changes))
        route.layout = lambda: layout if intake.live else None
        return route

    def _type(self, table: str, column: RelationColumn) -> TypeInfo:
        known = self._types[column.type_oid]
        return known if column.in_key else self.as_types.get(table, known)

    def announced_behind(self, root: int, leaf: int) -> None:
        pass

    def truncated(self, oids: Sequence[int]) -> None:
        pass

    def announced_again(self, relation: Relation) -> None:
        """The server does so when its caches were invalidated, also by what others do just now
        (autovacuum): two readers of the same WAL may be told at different places."""

    def broken(self, route: Route, error: Exception) -> None:
        self.trouble.append((self._names[route.table_id or 0], str(error)))
        self.decoder.forget(route.table_id, str(error))

    def apply(self, routes: list[Route]) -> None:
        for route in routes:
            changes = route.whole()
            at = 0
            for count, position, when in zip(
                changes.counts, changes.positions, changes.times_us, strict=True
            ):
                name = self._names[route.table_id or 0]
                for index in range(at, at + count):
                    self.changes.setdefault(name, []).append(
                        (
                            position,
                            when,
                            changes.actions[index],
                            changes.keys[index],
                            changes.lines[index],
                        )
                    )
                at += count
            assert at == len(changes.keys)

    def until(self, end: int, between: Callable[[], None] = lambda: None) -> None:
        """Take everything up to there."""
        deadline = time.monotonic() + _PATIENCE_S
        decoder = self.decoder
        while decoder.position < end:
            assert time.monotonic() < deadline, f"at {decoder.position:x} of {end:x}"
            self.pipeline.gulp()
            result = self.pipeline.drain(1_000)
            self.taken = max(self.taken, self.pipeline.blocks)
            assert result is not Drained.ENDED
            self.apply(decoder.pending)
            decoder.applied()
            if result is Drained.EVENT:
                at = decoder.position, decoder.position_before
                self.events.append((decoder.take_events(), at))
            elif result is Drained.EMPTY:
                self.stream.confirm(0)
                time.sleep(0.001)
            between()

    def wait_ready(self) -> None:
        """Until its processes have started."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.pipeline.workers < self._workers:
            assert time.monotonic() < deadline
            self.pipeline.drain(0)
            time.sleep(0.01)

    def close(self) -> None:
        self.pipeline.close()
        self.stream.close()
        self.decoder.close()


def _workload(database: Database, seed: int) -> int:
    """Transactions of every kind; where the WAL stands behind them."""
    chance = random.Random(seed)
    workload = Workload(database, seed)
    workload.execute("CREATE TABLE others (id int PRIMARY KEY, a text)")
    workload.execute("SELECT pg_logical_emit_message(true, 'laredo', 'before all')")

    def lines(name: str) -> Rows:
        return workload.lines(name, f"SELECT md5(t::text), 'x' FROM {name} t")

    for number in range(150):
        workload.transaction(lines)
        match chance.randrange(14):
            case 0:
                flag = chance.choice(["true", "false"])
                workload.execute(f"SELECT pg_logical_emit_message({flag}, 'laredo', 'm{number}')")
            case 1:
                workload.execute("SELECT pg_logical_emit_message(true, 'other', 'x')")
            case 2:
                workload.execute(f"INSERT INTO others VALUES ({number}, 'x')")
            case 3 if number > 50:
                column = f"c{number}"
                workload.execute(f"ALTER TABLE simple ADD COLUMN {column} int")
            case 4:
                workload.execute("ANALYZE simple; ANALYZE composite")
            case 5:
                workload.execute(
                    f"INSERT INTO whole SELECT md5('{number} ' || g)::uuid, g, NULL"
                    f" FROM generate_series(1, {chance.choice([300, 3000])}) g"
                )
            case 6:
                workload.execute(
                    f"INSERT INTO simple VALUES ({number} - 1000, 'NaN', NULL,"
                    " repeat(md5('wide'), 300))"
                )
            case 7:
                workload.execute("TRUNCATE simple, whole")
    workload.close()
    with database.connect() as connection:
        # Not where the WAL ends, which may be behind what no transaction wrote.
        message = "pg_logical_emit_message(true, 'laredo', 'after all')"
        row = connection.execute(f"SELECT {message} - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(str(row[0]))


def _prepared(database: Database) -> int:
    with database.connect() as connection:
        for statement in _SETUP:
            connection.execute(statement.encode())
        connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        row = connection.execute(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
            (f"{database.name}_0",),
        ).fetchone()
        for workers in (1, 2, 3):
            connection.execute(
                "SELECT pg_copy_logical_replication_slot(%s, %s)",
                (f"{database.name}_0", f"{database.name}_{workers}"),
            )
    assert row is not None
    return int(str(row[0]))


def _truncates(changes: list[_Change]) -> bool:
    return any(action == Action.TRUNCATE for _, _, action, _, _ in changes)


@on_versions(16, 18)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.usefixtures("eager")
def test_the_same_changes_whoever_decodes(
    database: Database, tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of one slot, read from the same position; TRUNCATE, DDL, messages, giants within."""
    start = _prepared(database)
    if streamed:
        with database.connect() as connection:
            connection.execute(
                f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'".encode()
            )
    end = _workload(database, seed=11 + streamed)
    readings, decoded = [], []
    for workers in (0, 1, 2, 3):
        if (
            workers == 2
        ):  # hardly two messages in a block: not even a message of ours and its COMMIT
            monkeypatch.setattr(decode_wire, "BLOCK_BYTES", 150)
        else:
            monkeypatch.setattr(decode_wire, "BLOCK_BYTES", _SMALL_BLOCK)
        slot = f"{database.name}_{workers}"
        reading = _Reading(database, tmp_path, slot, start, workers, streamed=streamed)
        try:
            reading.wait_ready()
            reading.until(end)
            decoded.append(reading.decoded if workers else 0)
        finally:
            reading.close()
        readings.append(reading)
    alone = readings[0]
    assert {len(changes) > 100 for changes in alone.changes.values()} == {True}
    truncated = {name for name, changes in alone.changes.items() if _truncates(changes)}
    assert truncated >= {"simple", "whole"}
    assert len(alone.events) > 5
    assert min(decoded[1:]) > 10, "other processes decoded"
    for other in readings[1:]:
        assert other.taken > 1, "several blocks were on their way at once"
        assert other.counters.decode_restarts == 0
        assert other.changes == alone.changes
        assert other.events == alone.events
        assert other.trouble == alone.trouble


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_lost_takes_nothing_with_it(
    database: Database, tmp_path: Path, how: signal.Signals
) -> None:
    """Killed again and again, or standing still: what it was given is decoded here."""
    start = _prepared(database)
    end = _workload(database, seed=5)
    alone = _Reading(database, tmp_path, f"{database.name}_0", start, 0, streamed=False)
    other = _Reading(database, tmp_path, f"{database.name}_1", start, 2, streamed=False, patience=1)
    hit = 0

    def disturb() -> None:
        nonlocal hit
        children = [child for child in psutil.Process().children() if _decodes(child)]
        if children and hit < (3 if how == signal.SIGKILL else 1):
            hit += 1
            children[0].send_signal(how)

    try:
        alone.until(end)
        other.wait_ready()
        disturb()  # whoever stands still is given blocks all the same
        other.until(end, disturb)
        assert hit
        deadline = time.monotonic() + _PATIENCE_S
        while other.pipeline.workers < 2:
            assert time.monotonic() < deadline, "another takes its place"
            other.pipeline.drain(1)
            time.sleep(0.01)
        assert other.counters.decode_restarts >= hit
    finally:
        alone.close()
        other.close()
    assert other.changes == alone.changes
    assert other.events == alone.events
    assert not [child for child in psutil.Process().children() if _decodes(child)]


def _decodes(process: psutil.Process) -> bool:
    try:
        return any("decode_worker" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("eager")
def test_a_row_that_cannot_be_decoded_is_met_where_it_comes(
    database: Database, tmp_path: Path
) -> None:
    """The process leaves it to the ingest, which says what is wrong with it, in its place."""
    start = _prepared(database)
    with database.connect() as connection:
        connection.execute("CREATE TABLE odd (id int PRIMARY KEY, a text)")
        for number in range(300):
            value = '{"a}' if number == 250 else f"{{{number}}}"
            connection.execute("INSERT INTO odd VALUES (%s, %s)", (number, value))
    end = _workload(database, seed=3)
    readings = []
    for workers in (0, 1):
        slot = f"{database.name}_{workers}"
        reading = _Reading(database, tmp_path, slot, start, workers, streamed=False)
        reading.as_types = {"odd": TypeInfo(1007, "_int4", element=TypeInfo(23, "int4"))}
        try:
            reading.wait_ready()
            reading.until(end)
        finally:
            reading.close()
        readings.append(reading)
    alone, other = readings
    assert len(alone.changes["odd"]) == 250
    assert "odd" in str(alone.trouble[0])
    assert other.trouble == alone.trouble
    assert other.changes == alone.changes


@pytest.mark.parametrize("seed", [7])
@pytest.mark.usefixtures("eager")
def test_every_commit_is_in_the_journal_while_processes_are_killed(
    database: Database, ingesting: Start, seed: int
) -> None:
    """Copies, looks and barriers beside; at every commit the journal has what PostgreSQL had."""
    workload = Workload(database, seed)
    for statement in _SETUP:
        workload.execute(statement)
    for number in range(1, 200):
        for name in _TABLES:
            workload.execute(f"INSERT INTO {name} " + _INSERTS[name].format(n=-number))
    ingest = ingesting(*_TABLES, range_bytes=64 << 10, heartbeat_interval=0.2, decode_workers=2)
    selected = {name: _selected(ingest, name) for name in _TABLES}
    stop = threading.Event()

    def kill() -> None:
        chance = random.Random(seed)
        while not stop.wait(chance.uniform(0.2, 0.6)):
            children = [child for child in psutil.Process().children() if _decodes(child)]
            if children:
                chance.choice(children).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while not all(ingest.is_live(name) for name in _TABLES):
            workload.transaction(lambda name: workload.lines(name, selected[name]))
            assert ingest.error is None
        starts = [Replay(ingest, name) for name in _TABLES]
        for _ in range(200):
            workload.transaction(lambda name: workload.lines(name, selected[name]))
    finally:
        stop.set()
        killer.join()
    ingest.assert_equal()
    assert ingest.status.decode_restarts > 1
    assert ingest.status.reconnects == 0, "the stream goes on"
    for replay in starts:
        assert replay.compare(workload.commits) > 30
    workload.close()
    ingest.stop()
    assert not [child for child in psutil.Process().children() if _decodes(child)]
