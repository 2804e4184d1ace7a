"""Clusters of a test's own: made once a version and copied, put back, replicated, promoted."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from tests.support.postgres import VERSION, Database, new_server, owned_directory
from tests.support.processes import wait_until


class Clusters:
    """Servers below one directory; all are stopped at the end.

    ``address`` is a directory for ``host=``: it leads to whichever server :meth:`lead_to`
    named last, as a database's name in the DNS does.
    """

    def __init__(self, directory: Path, templates: Callable[[int], Path], stack: ExitStack) -> None:
        self._directory = directory
        self._templates = templates
        self._stack = stack
        self._number = 0
        self.servers: list[EmbeddedPostgres] = []
        self.address = Path(stack.enter_context(TemporaryDirectory(prefix="laredo-ha-"))) / "s"

    def new(self, version: int = VERSION, **settings: str) -> EmbeddedPostgres:
        """A new cluster, running."""
        data = self._place()
        _copy(self._templates(version), data)
        return self.running(data, version, **settings)

    def running(self, data: Path, version: int = VERSION, **settings: str) -> EmbeddedPostgres:
        """The cluster in this directory, started."""
        server = new_server(data, version, settings)
        server.start()
        self._stack.callback(server.stop, how=signal.SIGQUIT)
        self.servers.append(server)
        return server

    def recovered(self, data: Path, version: int = VERSION) -> EmbeddedPostgres:
        """The cluster in this directory as after a recovery from a backup: on a new timeline."""
        (data / "recovery.signal").touch()
        server = self.running(data, version, restore_command="false")

        def writable() -> bool:
            with server.connect() as connection:
                return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)

        wait_until(writable, "the recovery is over")
        return server

    def saved(self, server: EmbeddedPostgres) -> Path:
        """A copy of a stopped server's files, as a disk's snapshot is one."""
        copy = self._place()
        _copy(server.data, copy)
        return copy

    def put_back(self, server: EmbeddedPostgres, saved: Path) -> None:
        """The stopped server's files are what they were."""
        shutil.rmtree(server.data)
        _copy(saved, server.data)

    def standby(
        self, primary: EmbeddedPostgres, version: int = VERSION, **settings: str
    ) -> EmbeddedPostgres:
        """A streaming standby of ``primary``."""
        data = self._place()
        socket = f"host={primary.socket_directory} user=postgres dbname=postgres"
        with primary.connect() as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('standby')")
        subprocess.run(
            [str(_pg_basebackup(primary)), "-D", str(data), "-d", socket, "-c", "fast"],
            check=True,
            capture_output=True,
        )
        (data / "standby.signal").touch()
        _own_as(primary.data, data)
        return self.running(
            data,
            version,
            primary_conninfo=socket,
            primary_slot_name="standby",
            hot_standby_feedback="on",
            **settings,
        )

    def lead_to(self, server: EmbeddedPostgres) -> Database:
        """From now on ``address`` is this server's; a database that is reached by it."""
        new = self.address.with_name("new")
        new.symlink_to(server.socket_directory)
        new.replace(self.address)
        return ByAddress(server, "postgres", self.address)

    def _place(self) -> Path:
        self._number += 1
        return self._directory / f"data{self._number}"


class ByAddress(Database):
    """The database, by a name that may lead elsewhere later."""

    def __init__(self, server: EmbeddedPostgres, name: str, address: Path) -> None:
        super().__init__(server, name)
        object.__setattr__(self, "address", address)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/{self.name}?host={self.address}"  # type: ignore[attr-defined]

    def connect(self) -> Any:
        return psycopg.connect(self.dsn, autocommit=True)


def position_of(server: EmbeddedPostgres) -> int:
    """End of the server's WAL."""
    with server.connect() as connection:
        row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    return int(str(row[0]))


def wait_replayed(standby: EmbeddedPostgres, position: int) -> None:
    """Until the standby has all up to there."""

    def replayed() -> bool:
        with standby.connect() as connection:
            row = connection.execute(
                "SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn >= %s", (position,)
            ).fetchone()
        return row is not None and bool(row[0])

    wait_until(replayed, "the standby has replayed it")


def wait_synced(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Until the standby, whose sync_replication_slots is on, has the primary's logical slot.

    The worker keeps its slot until the primary's has caught up with it; the function
    pg_sync_replication_slots drops it, and begins anew for as long as transactions come.
    """

    def synced() -> bool:
        with primary.connect() as connection:
            # Of what runs, which the standby's slot begins with, a note is made every 15 s.
            connection.execute("SELECT pg_log_standby_snapshot()")
            # It is used once something after it is confirmed: what has no transaction id.
            connection.execute("SELECT pg_logical_emit_message(false, 'filler', 'x', true)")
        wait_replayed(standby, position_of(primary))
        with standby.connect() as connection:
            return bool(
                connection.execute(
                    "SELECT FROM pg_replication_slots WHERE synced AND NOT temporary"
                    " AND invalidation_reason IS NULL"
                ).fetchall()
            )

    wait_until(synced, "the slot is on the standby")


def promote(standby: EmbeddedPostgres) -> None:
    """Make it the primary."""
    with standby.connect() as connection:
        row = connection.execute("SELECT pg_promote(true, 30)").fetchone()
        assert row == (True,)


def write_wal(server: EmbeddedPostgres, megabytes: int) -> None:
    """Write WAL that concerns no table, and a checkpoint, after which old files go."""
    with server.connect() as connection:
        for _ in range(megabytes):
            connection.execute(
                "SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20))"
            )
        connection.execute("CHECKPOINT")


def invalidate(server: EmbeddedPostgres) -> None:
    """More WAL than a slot may keep (max_slot_wal_keep_size = 16MB) that nobody reads from."""
    with server.connect() as connection:
        for _ in range(4):
            # A switch goes to the next file of 16 MB, however little is in this one.
            connection.execute("SELECT pg_logical_emit_message(true, 'filler', 'x')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")


def _pg_basebackup(server: EmbeddedPostgres) -> Path:
    """A later version's, which knows older servers, where the server's own isn't there."""
    own = server.bin / "pg_basebackup"
    return own if own.exists() else new_server(server.data, 18).bin / "pg_basebackup"


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _own_as(like: Path, path: Path) -> None:
    owner = like.stat()
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", str(path)], check=True)
    path.chmod(0o700)


@contextmanager
def templates() -> Iterator[Callable[[int], Path]]:
    """A stopped cluster of each version that is asked for, made at the first time."""
    with owned_directory() as path:
        path.chmod(0o755)
        made: dict[int, Path] = {}

        def template(version: int) -> Path:
            if version not in made:
                data = path / f"template{version}"
                with new_server(data, version) as server:
                    server.connect().close()
                made[version] = data
            return made[version]

        yield template


@pytest.fixture(scope="session")
def template() -> Iterator[Callable[[int], Path]]:
    with templates() as made:
        yield made


@pytest.fixture
def clusters(template: Callable[[int], Path]) -> Iterator[Clusters]:
    """Servers of the test's own."""
    with owned_directory() as path, ExitStack() as stack:
        path.chmod(0o755)
        yield Clusters(path, template, stack)
