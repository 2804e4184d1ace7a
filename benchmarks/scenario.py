"""Parts that all subjects share: one PostgreSQL with the table, one server, made on first use."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from rich.console import Console

from benchmarks import bench_table
from benchmarks.processes import (
    SCRIPTS,
    AnonymousMemory,
    Program,
    free_port,
    get_json,
    wait_until,
)
from examples.snapshotter.embedded_postgres import EmbeddedPostgres

DATABASE = "bench"
SLOT = "laredo_bench"
PUBLICATION = "laredo_bench"
_PATIENCE = 600.0

_POSTGRES = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    # A process that a benchmark has stopped (SIGSTOP) must not lose its connection.
    "wal_sender_timeout": "0",
}


class Scenario:
    """A context manager. ``rows``: the table's; ``updates``: of each backlog."""

    def __init__(self, console: Console, *, rows: int, updates: int, seconds: float) -> None:
        self.console = console
        self.rows = rows
        self.updates = updates
        self.seconds = seconds
        self.line_bytes = 0.0
        self._stack = ExitStack()
        directory = tempfile.TemporaryDirectory(prefix="laredo-bench-")
        self.directory = Path(self._stack.enter_context(directory))
        # The embedded server runs as another user when this is root.
        self.directory.chmod(0o755)
        self.postgres = EmbeddedPostgres(
            self.directory / "postgres", settings=_POSTGRES, tcp_port=free_port()
        )
        self._by_tcp = False
        self.grpc_port, self.http_port, self.connect_port = free_port(), free_port(), free_port()
        self.memory = AnonymousMemory()
        self._stack.callback(self.memory.stop)
        self._server: Program | None = None

    def __enter__(self) -> Self:
        self.say("starting PostgreSQL and filling the table")
        self._stack.enter_context(self.postgres)
        try:
            with self.postgres.connect() as admin:
                admin.execute(f"CREATE DATABASE {DATABASE}")
            with self.connect() as database:
                self.line_bytes = bench_table.create(database, self.rows)
        except BaseException:
            self._stack.close()
            raise
        self.say(f"{self.rows:,} rows, {self.line_bytes:.0f} bytes of JSON each")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_server()
        for log in sorted(self.directory.glob("*.log")) if error is not None else ():
            tail = log.read_text(errors="replace")[-3000:]
            self.console.print(f"{log.name} ends:\n{tail}", markup=False)
        self._stack.close()

    def say(self, text: str) -> None:
        """Tell how far it is."""
        self.console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}", highlight=False)

    # ---------------------------------------------------------------- PostgreSQL

    @property
    def dsn(self) -> str:
        """Of the database with the table."""
        return (self.postgres.tcp_dsn if self._by_tcp else self.postgres.dsn)(DATABASE)

    @contextmanager
    def by_tcp(self) -> Iterator[None]:
        """The server and others that are given :attr:`dsn` connect by TCP; servers begin anew."""
        self.stop_server()
        self._by_tcp = True
        try:
            yield
        finally:
            self.stop_server()
            self._by_tcp = False

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """An autocommit connection."""
        return self.postgres.connect(DATABASE)

    def psql(self, statement: str) -> float:
        """Seconds that psql takes for it, its output thrown away."""
        began = time.perf_counter()
        subprocess.run(
            [str(self.postgres.bin / "psql"), self.dsn, "-qAtX", "-c", statement],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - began

    def wal_position(self) -> str:
        """Current position of the WAL."""
        with self.connect() as database:
            found = database.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert found is not None
        return str(found[0])

    def recvlogical(self, slot: str, *more: str) -> list[str]:
        """The command that reads the publication by ``slot``; ``more``: how far, and where to."""
        return [
            str(self.postgres.bin / "pg_recvlogical"),
            f"--dbname={self.dsn}",
            f"--slot={slot}",
            "--start",
            "--no-loop",
            "--option=proto_version=1",
            f"--option=publication_names={PUBLICATION}",
            *more,
        ]

    # ---------------------------------------------------------------- the server

    @property
    def address(self) -> str:
        """host:port of the gRPC side."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def connect_address(self) -> str:
        """host:port of the Connect side."""
        return f"127.0.0.1:{self.connect_port}"

    @property
    def server(self) -> Program:
        """The running server's main process, which ingests."""
        assert self._server is not None
        return self._server

    def start_server(self, *sets: str, heartbeat: str = "10s") -> Program:
        """``laredo-fanout`` with its store as it is; ``sets`` are for ``--set``."""
        config = self.directory / "fanout.conf"
        config.write_text(
            f"""
            state {{ path = "{self.directory / "state"}" }}
            sources {{ pg {{ type = postgresql, connection = "{self.dsn}", slot_name = {SLOT}
                             publication {{ name = {PUBLICATION}, create = true }} }} }}
            fanout {{ grpc {{ host = "127.0.0.1", port = {self.grpc_port}, max_clients = 1000 }}
                      connect {{ port = {self.connect_port} }}
                      drain_grace = 2s }}
            http {{ host = "127.0.0.1", port = {self.http_port} }}
            tables = [ {{ source = pg, schema = public, table = {bench_table.NAME}
                          targets = [ {{ type = replication-fanout
                              heartbeat_interval = {heartbeat}
                              journal {{ max_entries = 5000000, max_age = 24h }} }} ] }} ]
            """
        )
        command = [str(SCRIPTS / "laredo-fanout"), "--config", str(config)]
        for each in sets:
            command += ["--set", each]
        self._server = Program(command, self.directory / "fanout.log")
        self.memory.watch(self._server.pid, "laredo-fanout, ingest")
        return self._server

    def stop_server(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it if it runs."""
        if self._server is not None:
            self._server.stop(how)
            self._server = None

    @contextmanager
    def paused_server(self) -> Iterator[Program]:
        """Stop the ready server's main process (SIGSTOP) until :meth:`Program.go_on`."""
        self.ready_server()
        assert self._server is not None
        self._server.process.send_signal(signal.SIGSTOP)
        try:
            yield self._server
        finally:
            self._server.go_on()

    def status(self) -> dict[str, Any] | None:
        """Content of /status; None while the server doesn't answer."""
        assert self._server is not None
        self._server.check()
        return get_json(f"http://127.0.0.1:{self.http_port}/status")

    def wait_ready(self, pause: float = 0.02) -> dict[str, Any]:
        """Wait until the server is ready; return its status."""

        def ready() -> dict[str, Any] | None:
            found = self.status()
            return found if found is not None and found["ready"] else None

        found: dict[str, Any] = wait_until(
            ready, timeout=_PATIENCE, what="the server's readiness", pause=pause
        )
        return found

    def ready_server(self) -> dict[str, Any]:
        """Its status, with the table copied; started if it doesn't run."""
        if self._server is None:
            self.start_server()
        return self.wait_ready()

    def place(self) -> tuple[str, str]:
        """Position and history of the ready server, to resume from."""
        source = self.ready_server()["sources"]["pg"]
        return source["position"], source["history"]

    # ---------------------------------------------------------------- a writer, our own clients

    def start_writer(self, name: str) -> tuple[Program, Path]:
        """``laredo-snapshotter`` of the table, and the directory that it archives to."""
        archive = self.directory / f"{name}-archive"
        config = self.directory / f"{name}.conf"
        config.write_text(
            f"""
            snapshotter {{
                source {{ server = "{self.address}", table = {bench_table.NAME} }}
                destinations = [ {{ type = local, path = "{archive}" }} ]
                diff {{ interval = 5s }}
                http {{ port = {free_port()} }}
            }}
            """
        )
        command = [str(SCRIPTS / "laredo-snapshotter"), "--config", str(config)]
        return Program(command, self.directory / f"{name}.log"), archive

    @contextmanager
    def running(
        self, module: str, *arguments: object, what: str
    ) -> Iterator["subprocess.Popen[str]"]:
        """A process of this package; each line of its output is JSON."""
        process = subprocess.Popen(
            [str(SCRIPTS / "python"), "-m", f"benchmarks.{module}", *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.memory.watch(process.pid, what)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()


def told(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line of a process of this package.

    :raises RuntimeError: if it ended instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` (0 to 1) of them don't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
