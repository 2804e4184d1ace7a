"""One seeded run in which tables change their form while everything else goes wrong.

A PostgreSQL of its own, laredo-fanout behind proxies, laredo-snapshotter, clients.
What is written is drawn from the seed, and after how many steps of it which fault
comes. In the end all is well again, and everything that anybody held at any
position is compared with what PostgreSQL held there: each boundary of each
archive, each state that a client came by, the server's own.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_archive import manifest_parser
from laredo_fanout.store.reader import StoreReader
from tests.end_to_end.changing_database import ChangingDatabase
from tests.end_to_end.live_copies import LiveCopies
from tests.end_to_end.oracle import Oracle, assert_same, boundaries
from tests.fanout.source.stuck_proxy import Proxy
from tests.fix_clusters import Clusters
from tests.processes import BIN, Program, free_port, wait_until

FANOUT = """
state {{ path = "{directory}/state", max_size = 4 GB }}
sources {{ pg {{ connection = "{dsn}", heartbeat_interval = 300ms, copy {{ workers = {workers} }}
    catchup {{ mode = auto, threshold_bytes = 60000, check_interval = 10ms
               min_segment_bytes = 30000, max_segments = {segments} }} }} }}
fanout {{ grpc {{ host = "127.0.0.1", port = {grpc}, workers = {serving} }}, drain_grace = 1s }}
http {{ host = "127.0.0.1", port = {http} }}
tables = [ {tables} ]
"""
FANOUT_TABLE = """{{ table = {name}, append_only = {append_only}, targets = [ {{
    heartbeat_interval = 500ms, journal {{ max_entries = {entries} }} }} ] }}"""
SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc}" }}
  diff {{ interval = 300ms }}, seen_interval = 500ms
  snapshot {{ min_interval = 1s, max_churn_records = 400, max_interval = 6s }}
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  formats {{ snapshot = [jsonl, protobuf], diff = [jsonl] }}
  retention {{ keep_epochs = 1000 }}
  http {{ host = "127.0.0.1", port = {http} }}
  tables = [ {tables} ]
}}
"""
PUBLICATIONS = ("laredo", "laredo_append")
POSTGRES = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "10"}
PATIENCE_S = 240


class Upheaval:
    """A seed's database, programs and clients."""

    def __init__(self, seed: int, clusters: Clusters, directory: Path, stack: ExitStack) -> None:
        self.chance = random.Random(f"faults {seed}")
        self.history: list[str] = []
        """What was done, for whom reads why it failed."""
        self.compared = 0
        self.blind: Counter[str] = Counter()
        """States of a time when nobody could know of a change, by who held them."""
        self._directory = directory
        self._stack = stack
        self.postgres: EmbeddedPostgres = clusters.new(self.chance.choice([16, 18]), **POSTGRES)
        self.oracle = Oracle(self.postgres.dsn())
        stack.callback(self.oracle.disconnect)
        self.database = ChangingDatabase(self.postgres.dsn(), seed, self.oracle, PUBLICATIONS)
        stack.callback(self.database.close)
        grpc = free_port()
        self._to_postgres, self._to_server = self._proxies(grpc)
        self.server = self._server(grpc)
        self.snapshotter = self._snapshotter()
        self.clients = LiveCopies(
            self._to_server.port, [table.name for table in self.database.tables]
        )

    def _proxies(self, grpc: int) -> tuple[Proxy, Proxy]:
        path = self._directory / "p"
        path.mkdir()
        to_postgres = Proxy(str(self.postgres.socket_directory / ".s.PGSQL.5432"), path)
        to_server = Proxy(grpc)
        self._stack.callback(to_postgres.close)
        self._stack.callback(to_server.close)
        return to_postgres, to_server

    def _server(self, grpc: int) -> Program:
        http, chance = free_port(), self.chance
        entries = chance.choice([1_000_000, 300])
        config = self._directory / "fanout.conf"
        config.write_text(
            FANOUT.format(
                directory=self._directory,
                dsn=f"postgresql://postgres@/postgres?host={self._to_postgres.directory}",
                grpc=grpc,
                http=http,
                workers=chance.choice([1, 2]),
                segments=chance.choice([2, 3]),
                serving=chance.choice([1, 2]),
                tables=", ".join(
                    FANOUT_TABLE.format(
                        name=table.name, append_only=str(table.append_only).lower(), entries=entries
                    )
                    for table in self.database.tables
                ),
            )
        )
        return Program("laredo-fanout", config, http, log=self._directory / "fanout.log")

    def _snapshotter(self) -> Program:
        http = free_port()
        (self._directory / "archive").mkdir()
        config = self._directory / "snapshotter.conf"
        config.write_text(
            SNAPSHOTTER.format(
                directory=self._directory,
                grpc=self._to_server.port,
                http=http,
                tables=", ".join(
                    f"{{ source {{ schema = public, table = {table.name} }} }}"
                    for table in self.database.tables
                ),
            )
        )
        return Program("laredo-snapshotter", config, http, log=self._directory / "snapshotter.log")

    # ------------------------------------------------------------ what happens

    def go(self, scenes: int) -> None:
        """So many things go wrong, then the end.

        :raises AssertionError: naming what was broken.
        """
        self._stack.callback(self._end_all)
        self._steps(self.chance.randint(0, 60))
        self.server.start()
        self.snapshotter.start()
        self.clients.start()
        for _ in range(scenes):
            self._scene()
        self._end()
        self._check()

    def _scene(self) -> None:
        """Some steps, something that goes wrong, some steps, and perhaps a rest."""
        faults: list[Callable[[], None]] = [
            self._server_killed,
            self._server_killed,
            self._child_killed,
            self._snapshotter_killed,
            self._walsender_ended,
            self._walsender_killed,
            self._postmaster_killed,
            self._connections_cut,
            self._clients_cut,
            self._fallen_behind,
            self._fallen_behind,
            self._copied_anew,
        ]
        self._steps(self.chance.choice([5, 40, 100]))
        if self.chance.random() < 0.7:
            self.chance.choice(faults)()
        self._steps(self.chance.choice([0, 5, 40]))
        self.clients.check()
        rest = self.chance.random()
        if rest < 0.7:
            # A copy waits for whoever has written to its table, and we are all of them.
            self.database.finish()
        if rest < 0.5:
            self._wait(lambda: self._archives_reach(self._last_commit()), "archives are level")
        elif rest < 0.7:
            self._wait(self._is_ready, "the server is ready")

    def _steps(self, count: int) -> None:
        for _ in range(count):
            if self.chance.random() < 0.04:
                self.database.change_form()
            else:
                self.database.step()

    def _tell(self, what: str) -> None:
        self.history.append(what)

    def _server_killed(self) -> None:
        self._tell("server killed")
        self.server.kill()
        self._steps(self.chance.choice([0, 20]))
        self.server.start()

    def _child_killed(self) -> None:
        """A serving process, or one that decodes a segment."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.server.pid).children(recursive=True)
            if children:
                child = self.chance.choice(sorted(children, key=lambda each: each.pid))
                self._tell("server's child killed")
                child.kill()

    def _snapshotter_killed(self) -> None:
        self._tell("snapshotter killed")
        self.snapshotter.kill()
        self._steps(self.chance.choice([0, 20]))
        self.snapshotter.start()

    def _walsenders(self) -> list[int]:
        with self.postgres.connect() as connection:
            found = connection.execute("SELECT pid FROM pg_stat_replication ORDER BY pid")
            return [int(str(pid)) for (pid,) in found]

    def _walsender_ended(self) -> None:
        self._tell("walsenders ended")
        with self.postgres.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")

    def _walsender_killed(self) -> None:
        """By which the whole of PostgreSQL begins anew: it trusts no shared memory after that."""
        for pid in self._walsenders()[:1]:
            self._tell("walsender killed")
            os.kill(pid, signal.SIGKILL)
            self._wait(self._lost_its_sessions, "PostgreSQL notices")
            self._postgres_is_back()

    def _lost_its_sessions(self) -> bool:
        return self.oracle.is_cut()

    def _postmaster_killed(self) -> None:
        self._tell("postmaster killed")
        self.postgres.stop(how=signal.SIGQUIT)
        self.postgres.start()
        self._postgres_is_back()

    def _postgres_is_back(self) -> None:
        self._wait(self._answers, "PostgreSQL answers")
        self.oracle.reconnect()
        self.database.reconnect()

    def _answers(self) -> bool:
        with suppress(Exception):
            self.postgres.connect().close()
            return True
        return False

    def _connections_cut(self) -> None:
        self._tell("connections to PostgreSQL cut")
        self._to_postgres.cut()

    def _clients_cut(self) -> None:
        self._tell("clients' connections cut")
        self._to_server.cut()

    def _fallen_behind(self) -> None:
        """So far that the backlog is split; perhaps one of the segments' processes is killed."""
        self._tell("server stopped for a while")
        if not self.server.is_running():
            self.server.start()
        server = psutil.Process(self.server.pid)
        server.suspend()
        try:
            self._steps(self.chance.choice([10, 100]))
            for _ in range(self.chance.choice([3, 12])):
                self.database.much()
        finally:
            server.resume()
        if self.chance.random() < 0.5:
            self._steps(5)
            self.chance.choice([self._child_killed, self._server_killed])()

    def _copied_anew(self) -> None:
        """By an operator, without disturbing anybody."""
        table = self.chance.choice(self.database.tables).name
        with suppress(httpx.TransportError):
            answer = httpx.post(f"{self.server.http}/tables/public.{table}/recopy", timeout=10)
            self._tell(f"{table} copied anew: {answer.status_code}")

    # ------------------------------------------------------------ how it ends

    def _end(self) -> None:
        self.database.finish()
        for program in (self.server, self.snapshotter):
            if not program.is_running():
                program.start()
        last = self._last_commit()
        self._wait(lambda: self._archives_reach(last), "archives reach the last commit")
        self._wait(lambda: self._clients_reach(last), "clients reach the last commit")
        self.clients.finish()
        assert self.snapshotter.stop() == 0, self.snapshotter.tail()
        assert self.server.stop() == 0, self.server.tail()

    def _end_all(self) -> None:
        for program in (self.snapshotter, self.server):
            with suppress(AssertionError):
                if program.is_running():
                    program.kill()
        with suppress(BaseException):
            self.clients.finish()

    def _last_commit(self) -> int:
        return self.oracle.last_commit()

    def _is_ready(self) -> bool:
        return self.server.is_ready()

    def _archives_reach(self, last: int) -> bool:
        return all(self._head(table.name) >= last for table in self.database.tables)

    def _head(self, table: str) -> int:
        """How far the table's archive reaches, quiet or not; 0 before the first artifact."""
        manifest = self._directory / "archive" / table / "manifest.json"
        if not manifest.exists():
            return 0
        read = manifest_parser.parse(manifest.read_bytes(), str(manifest))
        return max(read.head_position or 0, read.seen_position or 0)

    def _clients_reach(self, last: int) -> bool:
        return all(copy.position >= last for copy in self.clients.copies.values())

    def _wait(self, condition: Callable[[], Any], what: str) -> None:
        def holds() -> Any:
            self.clients.check()
            for program in (self.server, self.snapshotter):
                assert program.is_running(), f"{program.script} ended:\n{program.tail()}"
            return condition()

        began = time.monotonic()
        try:
            wait_until(holds, what, PATIENCE_S)
        except AssertionError as late:
            tails = f"{self.server.tail()}\n{self.snapshotter.tail()}"
            raise AssertionError(f"{late}\n{tails}") from None
        self._tell(f"({what}: {time.monotonic() - began:.1f} s)")

    # ------------------------------------------------------------ what must be true

    def _check(self) -> None:
        for program in (self.server, self.snapshotter):
            log = program.log.read_text(errors="replace")
            assert "Exception in thread" not in log, f"{program.script}: a thread ended: {log}"
        for table in self.database.tables:
            archive = self._directory / "archive" / table.name
            found = boundaries(archive)
            positions = [position for position, _ in found]
            assert positions == sorted(positions)
            for position, lines in found:
                self._compare(f"archive of {table.name}", table.name, position, lines)
            copy = self.clients.copies[table.name]
            for position, lines in copy.states.items():
                self._compare(f"client of {table.name}", table.name, position, lines)
            self._check_store(table.name)
            self._verify(archive)

    def _compare(self, whose: str, table: str, position: int, lines: list[bytes]) -> None:
        if self.oracle.is_blind(table, position):
            self.blind[whose.split(maxsplit=1)[0]] += 1
            return
        self.compared += 1
        try:
            assert_same(self.oracle, table, position, lines)
        except AssertionError as differs:
            known = self.oracle.changes_before(table, position)
            raise AssertionError(f"{whose}: {differs}\n{position}: {known}") from None

    def _check_store(self, table: str) -> None:
        reader = StoreReader.open(self._directory / "state")
        try:
            known = reader.table(f"public.{table}")
            with reader.snapshot(known.record.id) as snapshot:
                lines = [line for _, some in snapshot.batches() for line in some]
                position = snapshot.position
        finally:
            reader.close()
        self._compare(f"store's {table}", table, position, lines)

    def _verify(self, archive: Path) -> None:
        verified = subprocess.run(
            [BIN / "laredo-archive", "verify", str(archive)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr


def run(seed: int, clusters: Clusters, directory: Path, scenes: int) -> Upheaval:
    """One whole run, in which so many things go wrong.

    :raises AssertionError: naming what was broken.
    """
    with ExitStack() as stack:
        made = Upheaval(seed, clusters, directory, stack)
        try:
            made.go(scenes)
        except BaseException as failure:
            failure.add_note(
                f"seed {seed}: {'; '.join(made.history)}\nforms: {'; '.join(made.database.done)}\n"
                f"logs: {directory}"
            )
            raise
        return made
