"""The real ``laredo-fanout`` over a database of the test, and clients of it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil

from laredo_fanout.store.writer import Store
from tests.support import processes
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, free_port
from tests.support.server.states import States
from tests.support.server.store_sample import INSERT, UPDATE, Step, changes, delete

CONFIG = """
state.path = "{directory}/state"
sources {{ pg {{ connection = "{dsn}", slot_name = {slot}, heartbeat_interval = 500ms }} }}
fanout {{ grpc {{ host = "127.0.0.1", port = {grpc} }}, drain_grace = 5s }}
http {{ host = "127.0.0.1", port = {http} }}
tables = [ {tables} ]
"""
RELAY = """
state.path = "{directory}/state"
sources {{ up {{ type = fanout, server = "127.0.0.1:{upstream}" }} }}
fanout {{ grpc {{ host = "127.0.0.1", port = {grpc} }}, drain_grace = 5s }}
http {{ host = "127.0.0.1", port = {http} }}
tables = [ {tables} ]
"""


@dataclass
class Fanout:
    """The program, its ports and its configuration file."""

    program: Program
    grpc_port: int
    directory: Path

    @property
    def status(self) -> dict[str, Any]:
        answer = self.program.get("/status")
        assert answer is not None, self.program.tail()
        return answer.json()

    def table(self, name: str) -> dict[str, Any]:
        return self.status["tables"][name]

    def last_recopy(self, name: str) -> dict[str, Any]:
        """The re-copy that ended last; empty before one is shown, which may be a second late."""
        return (self.table(name)["recopy"] or {}).get("last") or {}

    @property
    def metrics(self) -> dict[str, float]:
        return self.program.metrics

    @property
    def problems(self) -> list[str]:
        """Reasons why it isn't ready; empty if it is, or if it doesn't answer yet."""
        answer = self.program.get("/health/ready")
        return [] if answer is None else list(answer.json()["problems"])

    def go_on_and_split(self) -> None:
        """Let the suspended program go on; that its backlog is to be split it finds at once."""
        address = HTTPConnection(self.program.http.partition("//")[2], timeout=PATIENCE_S)
        with closing(address) as asking:
            asking.request("POST", "/catchup")
            psutil.Process(self.program.pid).resume()
            assert asking.getresponse().status == HTTPStatus.ACCEPTED

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A subcommand, with this server's configuration."""
        return processes.run("laredo-fanout", "--config", self.program.config, *arguments)

    def spoil(self) -> None:
        """Of the stopped server's only table, whose rows are ``id`` and ``v``: 7 is made wrong, 8
        goes, 5000 comes, without PostgreSQL knowing."""
        with Store.open(self.directory / "state", max_size=1 << 30) as store:
            live = next(each for each in store.tables.values() if each.live)
            wrong: Step = (UPDATE, "7", b'{"id":7,"v":"wrong"}')
            steps = [wrong, delete("8"), (INSERT, "5000", b'{"id":5000,"v":"nowhere"}')]
            with store.transaction() as transaction:
                transaction.apply(live.id, changes((store.position, steps), time_us=1))

    def follower(self, table: str, name: str = "follower") -> States:
        return States(self.grpc_port, table, name)


def fanout(
    directory: Path, database: Database | str, tables: str, extra: str = "", slot: str = "s"
) -> Fanout:
    """Its configuration written, not started; of a :class:`Database` the slot has the name."""
    if isinstance(database, Database):
        dsn, slot = database.dsn, f"s_{database.name}"
    else:
        dsn = database
    directory.mkdir(exist_ok=True)
    grpc, http = free_port(), free_port()
    file = directory / "fanout.conf"
    text = CONFIG.format(
        directory=directory, dsn=dsn, slot=slot, grpc=grpc, http=http, tables=tables
    )
    file.write_text(text + extra)
    program = Program("laredo-fanout", file, http, log=directory / "fanout.log")
    return Fanout(program, grpc, directory)


def relay(directory: Path, upstream: int, tables: str, extra: str = "") -> Fanout:
    """A relay of the server at this port: its configuration written, not started."""
    directory.mkdir(exist_ok=True)
    grpc, http = free_port(), free_port()
    file = directory / "fanout.conf"
    text = RELAY.format(directory=directory, upstream=upstream, grpc=grpc, http=http, tables=tables)
    file.write_text(text + extra)
    program = Program("laredo-fanout", file, http, log=directory / "fanout.log")
    return Fanout(program, grpc, directory)


@contextmanager
def started(server: Fanout) -> Iterator[Fanout]:
    """Started and ready; stopped in the end."""
    with server.program:
        server.program.wait_ready()
        yield server
