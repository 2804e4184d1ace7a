"""``make demo``: rows change in a real PostgreSQL and land in an archive that is proven equal.

PostgreSQL, laredo-fanout and laredo-snapshotter run as they would anywhere, with
the configurations beside this file; both programs are killed with -9 on the way.
The exit code is 0 only if every row of the archive equals PostgreSQL's.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import make_conninfo
from rich.console import Console

from examples.snapshotter import demo_workload
from examples.snapshotter.demo_programs import Program, free_port
from examples.snapshotter.demo_proof import Verdict, prove
from examples.snapshotter.demo_view import View, from_here, show_verdicts
from examples.snapshotter.demo_workload import TABLES, Application
from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_model import position

HERE = Path(__file__).parent
MARK = ".laredo-demo"
LOOK_S = 0.12
PATIENCE_S = 300.0


@dataclass
class Stage:
    """Everything that runs."""

    dsn: str
    archive: Path
    server: Program
    writer: Program
    applications: dict[str, Application]


class Interrupted:
    """Ctrl-C ends the workload early; the proof is still made."""

    def __init__(self) -> None:
        self.now = False
        # SIGHUP: its terminal is closed, and the programs are to end too.
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, self._note)

    def _note(self, *_: object) -> None:
        self.now = True


def main() -> int:
    """The exit code: 0 if equal, 1 if not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--seconds",
        type=float,
        default=8,
        help="how long rows change after the first snapshots",
    )
    options.add_argument("--rows", type=int, default=20_000, help="rows a table starts with")
    options.add_argument("--directory", type=Path, help="default: ./demo-run")
    arguments = options.parse_args()
    console = Console()
    directory = _directory(arguments.directory)
    console.print(f"the files of this run are in [bold]{from_here(directory)}[/]", soft_wrap=True)
    console.print("starting PostgreSQL")
    interrupted = Interrupted()
    # The server's own user must be able to reach its data, wherever we may be.
    data = Path(tempfile.mkdtemp(prefix="laredo-demo-")) if os.geteuid() == 0 else directory
    try:
        with EmbeddedPostgres(data / "postgres") as postgres:
            changes, verdicts = _run(console, postgres, directory, arguments, interrupted)
    finally:
        if data != directory:
            shutil.rmtree(data, ignore_errors=True)
    show_verdicts(console, verdicts, changes, directory, killed=not interrupted.now)
    return 0 if all(verdict.equal for verdict in verdicts) else 1


def _directory(wanted: Path | None) -> Path:
    """./demo-run, emptied if an earlier demo made it; a temporary one if it is somebody else's."""
    directory = (wanted or Path("demo-run")).absolute()
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            return Path(tempfile.mkdtemp(prefix="laredo-demo-run-"))
        shutil.rmtree(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MARK).write_text("made by examples/snapshotter/demo.py, which empties it\n")
    except OSError:
        return Path(tempfile.mkdtemp(prefix="laredo-demo-run-"))
    return directory


def _run(
    console: Console,
    postgres: EmbeddedPostgres,
    directory: Path,
    arguments: argparse.Namespace,
    interrupted: Interrupted,
) -> tuple[int, list[Verdict]]:
    """Run the demo; return the number of changed rows, and each table's verdict."""
    with postgres.connect() as admin:
        admin.execute("CREATE ROLE app LOGIN")
        admin.execute("CREATE DATABASE app OWNER app")
    stage = _stage(_as(postgres, "app"), _as(postgres, "laredo"), directory, arguments.rows)
    with postgres.connect("app") as admin:
        admin.execute("GRANT CREATE ON SCHEMA public TO app")
        demo_workload.create(stage.dsn, arguments.rows)
        for statement in demo_workload.ROLE:
            admin.execute(statement)
    try:
        with View(console, stage.archive) as view:
            _play(stage, view, arguments.seconds, interrupted)
            _settle(stage, view, postgres)
            for program in (stage.writer, stage.server):
                view.say(f"{program.name} is stopped with SIGTERM")
                program.stop()
            view.update(stage.server, stage.writer, stage.applications, "done")
        console.print("reading the archive back, and comparing it with PostgreSQL")
        changes = sum(each.changes for each in stage.applications.values())
        return changes, [prove(stage.dsn, table, stage.archive / table) for table in TABLES]
    finally:
        stage.writer.kill()
        stage.server.kill()


def _as(postgres: EmbeddedPostgres, role: str) -> str:
    return make_conninfo(postgres.dsn("app"), user=role)


def _stage(dsn: str, server_dsn: str, directory: Path, rows: int) -> Stage:
    grpc, server_http, writer_http = free_port(), free_port(), free_port()
    archive = directory / "archive"
    server = Program(
        "laredo-fanout",
        HERE / "fanout.conf",
        {
            "sources.pg.connection": server_dsn,
            "sources.pg.heartbeat_interval": "1s",
            "state.path": directory / "fanout-state",
            "state.max_size": "4 GB",
            "fanout.grpc.port": grpc,
            "fanout.drain_grace": "1s",
            "http.port": server_http,
        },
        directory / "laredo-fanout.log",
        server_http,
    )
    writer = Program(
        "laredo-snapshotter",
        HERE / "full.conf",
        {
            "snapshotter.source.server": f"127.0.0.1:{grpc}",
            "snapshotter.destinations": f'[{{type = local, path = "{archive}"}}]',
            "snapshotter.diff.interval": "1s",
            "snapshotter.snapshot.min_interval": "6s",
            "snapshotter.snapshot.max_churn_records": 3000,
            "snapshotter.seen_interval": "1s",
            "snapshotter.http.port": writer_http,
        },
        directory / "laredo-snapshotter.log",
        writer_http,
    )
    applications = {table: Application(dsn, table, rows, seed) for seed, table in enumerate(TABLES)}
    return Stage(dsn, archive, server, writer, applications)


def _play(stage: Stage, view: View, seconds: float, interrupted: Interrupted) -> None:
    """The acts, each at its part of the time, which begins with the first snapshots."""
    server, writer, orders = stage.server, stage.writer, stage.applications["orders"]

    def kill(program: Program) -> Callable[[], None]:
        def act() -> None:
            _wait_until(writer.is_ready, stage, view, interrupted)
            view.say(f"kill -9 {program.name}", "bold red")
            program.kill()

        return act

    def start(program: Program) -> Callable[[], None]:
        def act() -> None:
            view.say(f"{program.name} is started again", "bold")
            program.start()

        return act

    def truncate() -> None:
        view.say("TRUNCATE orders", "bold")
        orders.truncate()

    acts: list[tuple[float, Callable[[], None]]] = [
        (0.10, kill(writer)),
        (0.20, start(writer)),
        (0.40, truncate),
        (0.60, kill(server)),
        (0.70, start(server)),
        (1.00, lambda: None),
    ]
    view.say("both programs start; rows change while they are copied", "bold")
    for application in stage.applications.values():
        application.start()
    server.start()
    writer.start()
    _wait_until(writer.is_ready, stage, view, interrupted)
    began = time.monotonic()
    for part, act in acts:
        due = began + part * seconds
        _wait_until(lambda due=due: time.monotonic() >= due, stage, view, interrupted)  # type: ignore[misc]
        if interrupted.now:
            view.say("interrupted: the rows stop changing, the proof follows", "bold")
            break
        act()
    for application in stage.applications.values():
        application.stop()
    for program in (server, writer):
        if program.pid is None:
            program.start()


def _wait_until(
    condition: Callable[[], bool], stage: Stage, view: View, interrupted: Interrupted | None = None
) -> None:
    """Show what happens until ``condition``, or somebody interrupts.

    :raises RuntimeError: if neither comes in time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and not (interrupted is not None and interrupted.now):
        if time.monotonic() > deadline:
            logs = f"{stage.server.log} and {stage.writer.log}"
            raise RuntimeError(f"nothing more happens for {PATIENCE_S:g} s; see {logs}")
        view.update(stage.server, stage.writer, stage.applications)
        time.sleep(LOOK_S)


def _settle(stage: Stage, view: View, postgres: EmbeddedPostgres) -> None:
    """Wait until the archive has all that was committed."""
    with postgres.connect("app") as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    end = str(row[0])
    view.say(f"no more changes: PostgreSQL is at {end}, the archive catches up", "bold")
    _wait_until(
        lambda: _reached(stage.writer, position.parse(end)) and view.has_all_rows(stage.server),
        stage,
        view,
    )


def _reached(writer: Program, end: int) -> bool:
    tables = (writer.status() or {}).get("tables", {})
    seen = [
        position.parse(table["seen_position"])
        for table in tables.values()
        if table["seen_position"] is not None
    ]
    return len(seen) == len(TABLES) and min(seen) >= end


if __name__ == "__main__":
    sys.exit(main())
