"""Cold replay with everything real: PostgreSQL, both programs, an archive, clients of three kinds.

A recorder notes what a client holds after every transaction. The journal keeps a handful of
entries; clients that stopped at each of those moments resume, are caught up by a snapshot or by
the archive as the manifest says they must, and all hold what PostgreSQL holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    Changes,
    Endpoint,
    FanoutClient,
    Handshake,
    Heartbeat,
    Mode,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
    Subscription,
    SyncOptions,
)
from laredo_model import position as position_
from laredo_model.position import Position
from tests.support.aws import AwsServer
from tests.support.oracle import Connection
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

DDL = "CREATE TABLE things (id bigint PRIMARY KEY, name text, amount numeric, doc jsonb)"
TABLE = """{{ table = things, targets = [ {{
    journal {{ max_entries = 4 }}, heartbeat_interval = 200ms, archive {{ {archive} }} }} ] }}"""
SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc_port}", table = things }}
  diff {{ interval = 500ms }}, seen_interval = 1s
  snapshot {{ max_diffs = 6 }}
  formats {{ snapshot = [{format}], diff = [{format}] }}
  destinations = [ {destination} ]
  http {{ host = "127.0.0.1", port = {http_port} }}
}}
"""
FIRST_ROWS = "INSERT INTO things SELECT n, 'first', n, '[]' FROM generate_series(1, 9) n"
QUICK = Backoff(initial=0.02, maximum=0.2)
Rows = dict[bytes, bytes]


@dataclass
class Replica:
    """A batch client, as plain as can be."""

    endpoint: Endpoint
    rows: Rows = field(default_factory=dict)
    position: int = 0
    history: str = ""
    mode: Mode | None = None
    ends: list[int] = field(default_factory=list)
    moments: list[tuple[int, Rows]] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)

    async def follow(self, *, until: int | None = None) -> None:
        """Take everything; for ever, or until this position is reached."""
        resumed = self.position or None
        options = SyncOptions(
            "public.things",
            "replica",
            None if resumed is None else Position(resumed),
            position_.parse_history(self.history) if self.history else None,
        )
        async with Subscription(self.endpoint, options, backoff=QUICK) as events:
            async for event in events:
                self._take(event)
                if until is not None and self.position >= until:
                    return

    def _take(self, event: object) -> None:
        if isinstance(event, Handshake):
            assert self.mode is None, "the stream was lost"
            self.mode, self.history = event.mode, str(event.history)
        elif isinstance(event, SnapshotBegin):
            self.rows = {}
        elif isinstance(event, SnapshotRows):
            self.rows |= dict(zip(event.keys, event.lines, strict=True))
        elif isinstance(event, SnapshotEnd):
            self.position = int(event.position or 0)
            self.moments.append((self.position, dict(self.rows)))
        elif isinstance(event, Heartbeat):
            self.position = max(self.position, int(event.position or 0))
        elif isinstance(event, Changes):
            self._apply(event)

    def _apply(self, changes: Changes) -> None:
        self.sequences += [changes.sequence(index) for index in range(len(changes))]
        for part in changes.transactions():
            for index in range(part.start, part.stop):
                key, line = changes.keys[index], changes.lines[index]
                if changes.actions[index] == 4:
                    self.rows = {}
                elif changes.actions[index] == 3:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = line
            if part.last:
                assert part.position > self.position, "a transaction came twice, or too late"
                self.position = part.position
                self.ends.append(part.position)
                self.moments.append((part.position, dict(self.rows)))


@dataclass
class Place:
    """Location of the archive: for the snapshotter, for the fan-out server, for the test."""

    destination: str
    archive: str
    directory: Path | None = None
    server: AwsServer | None = None
    bucket: str = ""

    def manifest(self) -> dict[str, Any]:
        key = "things/manifest.json"
        if self.directory is not None:
            file = self.directory / key
            data = file.read_bytes() if file.exists() else b"{}"
        else:
            assert self.server is not None
            s3 = self.server.client("s3")
            found = s3.list_objects_v2(Bucket=self.bucket, Prefix=f"archives/{key}")
            if not found.get("KeyCount"):
                return {}
            answer = s3.get_object(Bucket=self.bucket, Key=f"archives/{key}")
            data = answer["Body"].read()
        return json.loads(data)

    def head(self) -> int:
        text = self.manifest().get("head_position")
        return int(position_.parse(text)) if text else 0


def local_place(tmp_path: Path) -> Place:
    directory = tmp_path / "archive"
    return Place(
        f'{{ type = local, path = "{directory}" }}',
        f'store = local, store_config {{ path = "{directory}" }}',
        directory,
    )


def s3_location(server: AwsServer) -> Place:
    bucket = server.new_bucket()
    where = (
        f"bucket = {bucket}, prefix = archives, region = us-east-1, addressing = path,"
        f' endpoint = "{server.endpoint}"'
    )
    return Place(
        f"{{ type = s3, {where} }}",
        f"store = s3, store_config {{ {where} }}",
        server=server,
        bucket=bucket,
    )


class Road:
    """Everything between PostgreSQL and the clients."""

    def __init__(
        self, tmp_path: Path, database: Database, place: Place, format_id: str = "jsonl"
    ) -> None:
        table = TABLE.format(archive=place.archive)
        slot = f"slot_{database.name}"
        self.server: Fanout = fanout(tmp_path / "fanout", database.dsn, table, slot=slot)
        self.place = place
        http_port = free_port()
        config = tmp_path / "snapshotter.conf"
        config.write_text(
            SNAPSHOTTER.format(
                grpc_port=self.server.grpc_port,
                destination=place.destination,
                format=format_id,
                http_port=http_port,
            )
        )
        self.snapshotter = Program(
            "laredo-snapshotter", config, http_port, log=tmp_path / "snapshotter.log"
        )

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"127.0.0.1:{self.server.grpc_port}")

    @property
    def floor(self) -> int:
        return int(position_.parse(self.server.table("public.things")["floor"]))

    def position(self) -> int:
        return int(position_.parse(self.server.table("public.things")["position"]))

    async def archived(self, position: int) -> None:
        """Until the archive reaches there."""
        try:
            await asyncio.to_thread(
                wait_until, lambda: self.place.head() >= position, f"head at {position:#x}"
            )
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.snapshotter.tail()}") from None


def transactions(chance: random.Random, connection: Connection) -> None:
    """A few at once, so that they are in one window; some rows come and go within it."""
    for _ in range(chance.randint(2, 5)):
        with connection.transaction():
            for _ in range(chance.randint(1, 3)):
                number = chance.randint(1, 40)
                if chance.random() < 0.25:
                    connection.execute("DELETE FROM things WHERE id = %s", (number,))
                else:
                    connection.execute(
                        "INSERT INTO things VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE"
                        " SET name = excluded.name, amount = excluded.amount",
                        (number, f"é {chance.random()}", chance.randint(0, 10**20), '{"a": 1e3}'),
                    )


def comes_and_goes(connection: Connection) -> None:
    connection.execute("INSERT INTO things VALUES (1000, 'comes', 1.10, NULL)")
    connection.execute("DELETE FROM things WHERE id = 1000")


def in_postgresql(connection: Connection) -> dict[int, tuple[Any, ...]]:
    found = connection.execute("SELECT id, name, amount::text, doc::text FROM things").fetchall()
    return {row[0]: tuple(row[1:]) for row in found}  # type: ignore[misc]


def as_rows(lines: Rows) -> dict[int, tuple[Any, ...]]:
    parsed = [orjson.loads(line) for line in lines.values()]
    return {row["id"]: (row["name"], row["amount"], _doc(row["doc"])) for row in parsed}


def _doc(value: Any) -> str | None:
    return None if value is None else json.dumps(value).replace("1000.0", "1000")


def expected_mode(manifest: dict[str, Any], position: int, floor: int) -> Mode:
    """By the manifest alone; the table is never truncated here."""
    if position >= floor:
        return Mode.DELTA
    chain: list[dict[str, Any]] = []
    begins: int | None = None
    for artifact in manifest["artifacts"]:
        if artifact["kind"] == "diff":
            chain.append(artifact)
        elif not artifact["continues"]:
            begins, chain = int(position_.parse(artifact["to_position"])), []
    assert begins is not None
    if position < begins:
        return Mode.FULL_SNAPSHOT
    for artifact in chain:
        start = position_.parse(artifact["from_position"])
        if start <= position < position_.parse(artifact["to_position"]):
            hidden = position != start and artifact["cancelled"] != 0
            return Mode.FULL_SNAPSHOT if hidden else Mode.REPLAY_ARCHIVE
    return Mode.FULL_SNAPSHOT


LOCAL_JSONL, S3_PROTOBUF = ("local", "jsonl"), ("s3", "protobuf")


@pytest.fixture(
    params=[S3_PROTOBUF, pytest.param(LOCAL_JSONL, marks=pytest.mark.thorough)], ids="-".join
)
def road(tmp_path: Path, database: Database, request: pytest.FixtureRequest) -> Road:
    store, format_id = request.param
    if store == "local":
        return Road(tmp_path, database, local_place(tmp_path), format_id)
    return Road(tmp_path, database, s3_location(request.getfixturevalue("s3_server")), format_id)


@pytest.mark.thorough
async def test_clients_of_every_moment_are_caught_up(
    tmp_path: Path,
    database: Database,
    road: Road,
    generated: Path,
) -> None:
    with database.connect() as connection:
        connection.autocommit = True
        connection.execute(DDL)
        connection.execute(FIRST_ROWS)
        with started(road.server), road.snapshotter:
            await asyncio.to_thread(road.snapshotter.wait_ready)
            recorder = Replica(road.endpoint)
            recording = asyncio.create_task(recorder.follow())
            await _until(lambda: bool(recorder.moments))
            stopped = await _stopped_clients(tmp_path, road, connection)
            base = await _stopped_base(tmp_path, road, generated, connection)
            await _fill(random.Random(4), connection, road, recorder)
            await _check_all_moments(road, list(recorder.moments), connection)
            await _check_clients(stopped, road, connection)
            await _check_base(base, road, generated, connection)
            recording.cancel()
            await asyncio.gather(recording, return_exceptions=True)
            await _check_status(road)


async def _check_status(road: Road) -> None:
    def status() -> Any:
        return road.server.table("public.things")["archive"]

    def counted() -> bool:
        replays = status()["replays"]
        assert not set(replays) & {"broken", "unreadable", "columns"}, replays
        # Who leaves as soon as the last window was sent isn't told apart from who leaves before.
        complete, left = replays.get("complete", 0), replays.get("left", 0)
        return bool(complete and replays.get("inexact") and complete + left > 5)

    # A serving process sends its figures now and then.
    await _until(lambda: status()["readable"] and counted())
    replayed = 'laredo_fanout_archive_replays_total{outcome="complete",table="public.things"}'
    await _until(lambda: road.server.metrics.get(replayed) == status()["replays"]["complete"])
    for shown in ("readable", "covers_journal"):
        metric = f'laredo_fanout_archive_{shown}{{table="public.things"}}'
        await _until(lambda shown=shown: status()[shown])
        await _until(lambda metric=metric: road.server.metrics[metric] == 1)


async def _until(condition: Any, timeout: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)  # poll


async def _reached(replica: Replica, connection: Connection) -> None:
    """Until the recorder has everything that PostgreSQL has."""
    wanted = in_postgresql(connection)
    await _until(lambda: as_rows(replica.rows) == wanted)


async def _fill(
    chance: random.Random, connection: Connection, road: Road, recorder: Replica
) -> None:
    """Windows of a few transactions each; the archive has an artifact after each of them."""
    for number in range(10):
        transactions(chance, connection)
        if number in (3, 7):
            comes_and_goes(connection)
            transactions(chance, connection)
        await _reached(recorder, connection)
        await road.archived(recorder.moments[-1][0])
    # Some entries that only the journal has; the ones before are pruned.
    for number in range(6):
        connection.execute("UPDATE things SET name = %s WHERE id = 9", (f"journal {number}",))
        connection.execute(
            "INSERT INTO things VALUES (9, %s, 9, '[]') ON CONFLICT (id) DO UPDATE"
            " SET name = excluded.name",
            (f"journal {number}",),
        )
        await _reached(recorder, connection)
    await road.archived(recorder.moments[-6][0])
    await _until(lambda: road.floor >= recorder.moments[-8][0])


async def _check_all_moments(
    road: Road, moments: list[tuple[int, Rows]], connection: Connection
) -> None:
    """A client that stopped at each moment, all of them at once."""
    manifest = road.place.manifest()
    hidden = [a for a in manifest["artifacts"] if a.get("cancelled")]
    assert hidden, "no window hides anything"
    assert manifest["epoch"] > 1, "no re-base"
    end, rows_now = moments[-1]
    floor = road.floor

    async def resume(position: int, rows: Rows) -> Mode:
        found = Replica(road.endpoint, dict(rows), position, manifest["history"])
        await found.follow(until=end)
        assert found.rows == rows_now, (hex(position), found.mode)
        assert found.mode is not None
        wanted = expected_mode(manifest, position, floor)
        assert found.mode is wanted, (hex(position), found.mode, wanted)
        assert found.ends == sorted(set(found.ends))
        assert found.sequences == sorted(set(found.sequences)), "a number came twice"
        return found.mode

    async with asyncio.timeout(PATIENCE_S):
        modes = await asyncio.gather(*[resume(*moment) for moment in moments])
    assert {Mode.FULL_SNAPSHOT, Mode.DELTA, Mode.REPLAY_ARCHIVE} == set(modes)
    assert as_rows(rows_now) == in_postgresql(connection)
    hiding = [m for m, (_, rows) in zip(modes, moments, strict=True) if b"1000" in rows]
    assert hiding and set(hiding) == {Mode.FULL_SNAPSHOT}, "who held the row that came and went"


@dataclass
class Stopped:
    """Clients with local snapshots that were stopped early."""

    path: Path
    blocking: Path


async def _stopped_clients(tmp_path: Path, road: Road, connection: Connection) -> Stopped:
    found = Stopped(tmp_path / "async.snapshot", tmp_path / "blocking.snapshot")
    async with _async_client(road, found) as client:
        await client.await_ready(PATIENCE_S)
        connection.execute("INSERT INTO things VALUES (500, 'while they are here', 0, '{}')")
        await _until(lambda: len(client) == len(in_postgresql(connection)))
    with _client(road, found) as blocking:
        await asyncio.to_thread(blocking.await_ready, PATIENCE_S)
    return found


def _async_client(road: Road, stopped: Stopped) -> AsyncFanoutClient:
    return AsyncFanoutClient(
        road.endpoint.server,
        "public.things",
        client_id="async",
        local_snapshot_path=stopped.path,
        backoff=QUICK,
    )


def _client(road: Road, stopped: Stopped) -> FanoutClient:
    return FanoutClient(
        road.endpoint.server,
        "public.things",
        client_id="blocking",
        local_snapshot_path=stopped.blocking,
        indexes={"by_name": ("name",)},
        backoff=QUICK,
    )


async def _check_clients(stopped: Stopped, road: Road, connection: Connection) -> None:
    async with _async_client(road, stopped) as client:
        await client.await_ready(PATIENCE_S)
        with _client(road, stopped) as blocking:
            await asyncio.to_thread(blocking.await_ready, PATIENCE_S)
            for number in range(3):
                connection.execute("UPDATE things SET name = %s WHERE id = 500", (f"{number}",))
            wanted = in_postgresql(connection)
            await _until(lambda: (blocking.lookup(500) or {}).get("name") == "2")
            await _until(lambda: client.position == blocking.position)
            assert len(client) == len(blocking) == len(wanted)
            for number, (name, amount, _) in wanted.items():
                for row in (await client.lookup(number), blocking.lookup(number)):
                    assert row is not None and (row["name"], str(row["amount"])) == (name, amount)
            assert [row["id"] for row in blocking.lookup_index("by_name", "2")] == [500]


async def _stopped_base(tmp_path: Path, road: Road, code: Path, connection: Connection) -> Path:
    """A base client that takes four changes of a transaction of six, and leaves."""
    file = tmp_path / "base.json"
    client = await _base(road, code, file, leave_after=4)
    assert client.stderr is not None
    await client.stderr.readline()
    with connection.transaction():
        for number in range(600, 606):
            connection.execute("INSERT INTO things VALUES (%s, 'base', 1, '{}')", (number,))
    _, err = await asyncio.wait_for(client.communicate(), PATIENCE_S)
    assert client.returncode == 0, err.decode()
    saved = json.loads(file.read_text())
    assert saved["taken"] == 4 and "603" in saved["rows"] and "604" not in saved["rows"]
    return file


async def _check_base(file: Path, road: Road, code: Path, connection: Connection) -> None:
    # The entry at its position is sent again, as the transaction may have gone on.
    before = position_.parse(json.loads(file.read_text())["position"]) - 1
    expected = expected_mode(road.place.manifest(), before, road.floor)
    client = await _base(road, code, file, leave_after=0)
    assert client.stderr is not None
    # Its way is decided now: the row comes with the journal, after all that is replayed. In a
    # window it would stand before the others, and the client would leave too soon.
    await client.stderr.readline()
    connection.execute("INSERT INTO things VALUES (-1, 'end', 0, '{}')")
    _, err = await asyncio.wait_for(client.communicate(), PATIENCE_S)
    assert client.returncode == 0, err.decode()
    saved = json.loads(file.read_text())
    wanted = in_postgresql(connection)
    assert {int(key) for key in saved["rows"]} == set(wanted)
    assert {int(k): r["name"] for k, r in saved["rows"].items()} == {
        number: row[0] for number, row in wanted.items()
    }
    assert saved["mode"] == expected


async def _base(road: Road, code: Path, file: Path, leave_after: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("base_replica.py")),
        road.endpoint.server,
        str(file),
        str(leave_after),
        env={**os.environ, "PYTHONPATH": str(code)},
        stderr=subprocess.PIPE,
    )
