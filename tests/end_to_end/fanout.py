"""The programs over the workload's tables: the server, a writer of archives, and its archives."""

from collections.abc import Sequence
from pathlib import Path

from laredo_archive.reader import Archive
from tests.end_to_end.workload import TABLES
from tests.support.postgres import Database
from tests.support.processes import Program, free_port
from tests.support.server import fanout_program
from tests.support.server.fanout_program import Fanout

TABLE = "{{ table = {table}, targets = [ {{ heartbeat_interval = 1s }} ] }}"


def fanout(directory: Path, database: Database) -> Fanout:
    """Configured, and not started."""
    tables = ", ".join(TABLE.format(table=table.name) for table in TABLES)
    return fanout_program.fanout(directory, database, tables, "fanout.drain_grace = 1s\n")


SNAPSHOTTER = """
snapshotter {{
  source {{ server = [ {servers} ] }}
  diff {{ interval = 300ms }}, seen_interval = 500ms
  snapshot {{ min_interval = 1s, max_churn_records = 400, max_interval = 6s }}
  destinations = [ {{ type = local, path = "{archive}" }} ]
  formats {{ snapshot = [jsonl, protobuf], diff = [jsonl] }}
  retention {{ keep_epochs = 1000 }}{more}
  http {{ host = "127.0.0.1", port = {http_port} }}
  tables = [ {tables} ]
}}
"""

SNAPSHOTTER_TABLE = "{{ source {{ schema = public, table = {table} }} }}"


def snapshotter(
    directory: Path,
    archive: Path,
    ports: Sequence[int],
    tables: Sequence[str] = tuple(table.name for table in TABLES),
    *,
    compacts: bool = True,
) -> Program:
    """A writer that takes the tables from any of the servers at these ports; not started."""
    http_port = free_port()
    config = directory / "writer.conf"
    config.write_text(
        SNAPSHOTTER.format(
            servers=", ".join(f'"127.0.0.1:{port}"' for port in ports),
            archive=archive,
            more=", compaction { levels = [700ms, 2s, 5s] }" if compacts else "",
            http_port=http_port,
            tables=", ".join(SNAPSHOTTER_TABLE.format(table=table) for table in tables),
        )
    )
    return Program("laredo-snapshotter", config, http_port, log=directory / "writer.log")


def is_archived(archive: Path, last: int) -> bool:
    """True if every table's archive has this position."""
    for table in TABLES:
        if not (archive / table.name / "manifest.json").exists():
            return False
        manifest = Archive.at(str(archive / table.name)).manifest
        if max(manifest.head_position or 0, manifest.seen_position or 0) < last:
            return False
    return True


def end(program: Program) -> None:
    """Kill a program, unless it has ended."""
    if program.is_running():
        program.kill()
