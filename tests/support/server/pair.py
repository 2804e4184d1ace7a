"""Servers of one slot: one holds it, the others are its standbys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import psycopg

from laredo_archive.maintain.compare_postgres import Comparison, compare
from laredo_archive.reader import Archive
from tests.support import oracle as oracle_
from tests.support import processes
from tests.support.oracle import Oracle
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout
from tests.support.server.states import States
from tests.support.writer.archiving_programs import SNAPSHOTTER

A, B = "public.a", "public.b"
TABLES = "{ table = a }, { table = b }"
BY_HAND = "takeover_after = 0s"


class Pair:
    """The servers, all with one configuration but for ports and directory; none is started."""

    def __init__(
        self, directory: Path, database: Database, extra: str = BY_HAND, *, number: int = 2
    ) -> None:
        database.run(
            "CREATE TABLE a (id int PRIMARY KEY, v text)",
            "CREATE TABLE b (id int PRIMARY KEY, v text)",
            "INSERT INTO a SELECT i, 'v' || i FROM generate_series(1, 50) i",
            "INSERT INTO b SELECT i, 'w' || i FROM generate_series(1, 50) i",
        )
        self.database = database
        self.oracle = Oracle(database.dsn, f"oracle_{database.name}")
        for table in ("a", "b"):
            self.oracle.start(table)
        self.slot = f"s_{database.name}"
        self.servers = [
            fanout(directory / name, database, TABLES) for name in ("a", "b", "c")[:number]
        ]
        peers = ", ".join(f'"127.0.0.1:{each.grpc_port}"' for each in self.servers)
        for each in self.servers:
            block = f"\nstandby {{\n  peers = [{peers}], token = between-us\n  {extra}\n}}\n"
            each.program.config.write_text(each.program.config.read_text() + block)

    @contextmanager
    def started(self) -> Iterator[tuple[Fanout, Fanout]]:
        """The first one holds the slot, and the others are complete; killed in the end."""
        with ExitStack() as stack:
            stack.callback(self.oracle.disconnect)
            for each in self.servers:
                stack.callback(_end, each)
            for each in self.servers:
                each.program.start()
                each.program.wait_ready()
            holder = self.servers[0]
            wait_until(lambda: self.complete(holder) == len(self.servers) - 1, "standbys complete")
            yield self.servers[0], self.servers[1]

    def change(self, first: int, last: int) -> int:
        """Two transactions for each of the numbers; the position that has them all."""
        writing = psycopg.connect(self.database.dsn, autocommit=True, options=oracle_.SESSION)
        with writing as writer:
            for number in range(first, last):
                with writer.transaction():
                    writer.execute("INSERT INTO a VALUES (%s, 'new')", (number,))
                    self.oracle.note(writer, "a")
                with writer.transaction():
                    writer.execute(
                        "UPDATE b SET v = 'n' || %(n)s WHERE id %% 7 = %(n)s %% 7", {"n": number}
                    )
                    writer.execute("DELETE FROM a WHERE id = %s", (number - 90,))
                    self.oracle.note(writer, "a")
                    self.oracle.note(writer, "b")
        return self.database.position()

    def rows(self, table: str) -> set[bytes]:
        """PostgreSQL's, as lines."""
        with self.database.connect() as owner:
            found = owner.execute(f"SELECT row_to_json(t)::text FROM {table} t".encode()).fetchall()
        return {str(line).replace(" ", "").encode() for (line,) in found}

    def complete(self, holder: Fanout) -> int:
        return sum(each["complete"] for each in shown(holder)["standbys"])

    def rejoin(self, server: Fanout, holder: Fanout) -> None:
        """Start a killed server; it follows the holder with all that the holder has."""
        server.program.start()
        server.program.wait_ready()
        wait_until(lambda: self.complete(holder) == 1, "it is complete")

    def confirmed(self) -> int:
        """Position that the slot is confirmed to."""
        return self.database.confirmed(self.slot)

    def is_free(self) -> bool:
        active = "SELECT active::int FROM pg_replication_slots WHERE slot_name = %s"
        return not self.database.number(active, self.slot)

    def promote(self, server: Fanout) -> None:
        """Have the standby take over, as an operator does, once the slot is free.

        :raises AssertionError: if it is refused.
        """
        wait_until(self.is_free, "the slot is free")
        done = server.run("promote")
        assert done.returncode == 0, done.stderr + server.program.tail()


def shown(server: Fanout) -> dict[str, Any]:
    """The server's role, as /status shows it."""
    found: dict[str, Any] = next(iter(server.status["sources"].values()))["standby"]
    return found


def wait_role(server: Fanout, role: str) -> None:
    """Wait until the server is ``role``: it serves clients while it still takes over."""
    wait_until(lambda: shown(server)["role"] == role, role)


def copies(*servers: Fanout) -> int:
    """Number of tables that they have copied from PostgreSQL since they were first started."""
    logs = [(each.directory / "fanout.log").read_text() for each in servers]
    return sum(log.count("table copy scheduled") for log in logs)


def sequences(server: Fanout) -> list[int]:
    return [int(server.table(name)["sequence"]) for name in (A, B)]


def check_servers(*servers: Fanout) -> None:
    """All have the same history, and no table was copied a second time."""
    assert copies(*servers) == 2
    first, *others = map(sequences, servers)
    assert others == [first] * len(others)


def check_client(client: States, pair: Pair) -> None:
    """It has PostgreSQL's rows of the table ``a``, and was sent one snapshot."""
    assert set(client.rows.values()) == pair.rows("a")
    assert len(client.snapshots) == 1


def end_walsender(pair: Pair) -> None:
    with pair.database.connect() as owner:
        owner.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{pair.slot}'".encode()
        )


Confirmation = tuple[int | None, int]
"""The walsender that reads the slot, and the confirmed position."""


@contextmanager
def confirmations(pair: Pair) -> Iterator[list[Confirmation]]:
    """The history of the slot, as it is seen every few milliseconds."""
    seen: list[Confirmation] = []
    over = Event()

    def watch() -> None:
        query = (
            "SELECT active_pid, confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            f" WHERE slot_name = '{pair.slot}'"
        )
        with pair.database.connect() as owner:
            while not over.wait(0.01):
                row = owner.execute(query.encode()).fetchone()
                found = row and (row[0], int(row[1]))
                if found and [found] != seen[-1:]:
                    seen.append(found)

    watching = Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def check_confirmations(seen: list[Confirmation]) -> int:
    """The slot's position never went back, and no walsender came back after another one; the number
    of walsenders."""
    positions = [position for _, position in seen]
    assert positions == sorted(positions)
    readers = [pid for pid, _ in groupby(pid for pid, _ in seen if pid is not None)]
    assert len(readers) == len(set(readers))
    return len(readers)


@contextmanager
def frozen(server: Fanout) -> Iterator[None]:
    """All of the server's processes are stopped within."""
    main = psutil.Process(server.program.pid)
    found = [main, *main.children(recursive=True)]
    for process in found:
        process.suspend()
    try:
        yield
    finally:
        for process in found:
            process.resume()


def check_archive(archive: Path, pair: Pair) -> None:
    """Each boundary equals PostgreSQL, the last one PostgreSQL now; all are of one epoch."""
    for name in ("a", "b"):
        found = Archive.at(str(archive / name))
        verdict = compare(found, pair.database.dsn, wait_s=120)
        assert verdict.outcome is Comparison.EQUAL, verdict.reason
        ends = oracle_.ends(archive / name)
        assert len(ends) > 1
        for artifact, reached, lines in ends:
            oracle_.assert_same(pair.oracle, name, reached, lines)
            assert artifact["epoch"] == 1
        verified = processes.run("laredo-archive", "verify", str(archive / name))
        assert verified.returncode == 0, verified.stdout


@contextmanager
def archived(directory: Path, *servers: Fanout) -> Iterator[Path]:
    """A writer that follows the first of these servers that serves; its destination."""
    http = free_port()
    file = directory / "writer.conf"
    tables = ", ".join(f"{{ source {{ schema = public, table = {name} }} }}" for name in "ab")
    file.write_text(
        SNAPSHOTTER.format(
            grpc=servers[0].grpc_port,
            directory=directory,
            http=http,
            tables=tables,
            bases="jsonl, protobuf",
        )
    )
    one = f'server = "127.0.0.1:{servers[0].grpc_port}"'
    listed = ", ".join(f'"127.0.0.1:{each.grpc_port}"' for each in servers)
    file.write_text(file.read_text().replace(one, f"server = [{listed}]"))
    writer = Program("laredo-snapshotter", file, http, log=directory / "writer.log")
    with writer:
        writer.wait_ready()
        yield directory / "archive"


@contextmanager
def rehearsed(pair: Pair, directory: Path, *order: Fanout) -> Iterator[list[Confirmation]]:
    """The started pair with a writer as of :func:`archived`, and the history of the slot; in the
    end archive and servers are checked."""
    with pair.started(), archived(directory, *order) as archive, confirmations(pair) as confirmed:
        yield confirmed
        check_archive(archive, pair)
        check_servers(*pair.servers)


def wipe(server: Fanout) -> None:
    """The stopped server's disk is lost."""
    shutil.rmtree(server.directory / "state")


def _end(server: Fanout) -> None:
    if server.program.is_running():
        server.program.kill()
