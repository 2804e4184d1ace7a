"""Server and writer over tables of any name, archived into a directory of the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from laredo_archive.maintain.compare_postgres import Comparison, compare
from laredo_archive.reader import Archive
from tests.support.postgres import Database
from tests.support.processes import Program, free_port
from tests.support.server.fanout_program import fanout

SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc}" }}
  diff {{ interval = 300ms }}, seen_interval = 300ms
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  formats {{ snapshot = [{bases}], diff = [jsonl, protobuf] }}
  http {{ host = "127.0.0.1", port = {http} }}
  tables = [ {tables} ]
}}
"""


class Named(NamedTuple):
    """A table, and where its archive is below the destination; None: where the default says."""

    schema: str
    table: str
    key_prefix: str | None


def hocon(text: str) -> str:
    """Any text as a string of HOCON."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return '"' + text.translate(str.maketrans(escapes)) + '"'


@dataclass
class Programs:
    """Both, configured for the tables; not started."""

    server: Program
    writer: Program
    directory: Path
    dsn: str

    def archive(self, table: Named) -> Archive:
        return Archive.at(str(self.directory / "archive" / (table.key_prefix or f"{table.table}/")))

    def equal(self, table: Named) -> None:
        """Hold the archive equal to PostgreSQL once it has caught up.

        :raises AssertionError: it isn't, or doesn't catch up.
        """
        verdict = compare(self.archive(table), self.dsn, wait_s=120)
        assert verdict.outcome is Comparison.EQUAL, (
            f"{table}: {verdict.reason}\n{self.writer.tail()}"
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Both ready, until the end."""
        with self.server, self.writer:
            self.server.wait_ready(120)
            self.writer.wait_ready(120)
            yield


def configured(
    directory: Path, database: Database, tables: Sequence[Named], bases: str = "jsonl, protobuf"
) -> Programs:
    """Both programs for these tables, in files that quote every name; ``bases``: their formats."""
    served, written = [], []
    for table in tables:
        name = f"schema = {hocon(table.schema)}, table = {hocon(table.table)}"
        served.append(f"{{ {name} }}")
        prefix = "" if table.key_prefix is None else f', key_prefix = "{table.key_prefix}"'
        written.append(f"{{ source {{ {name} }}{prefix} }}")
    server = fanout(directory / "server", database, ", ".join(served))
    http = free_port()
    file = directory / "snapshotter.conf"
    file.write_text(
        SNAPSHOTTER.format(
            grpc=server.grpc_port,
            directory=directory,
            http=http,
            tables=", ".join(written),
            bases=bases,
        )
    )
    writer = Program("laredo-snapshotter", file, http, log=directory / "writer.log")
    return Programs(server.program, writer, directory, database.dsn)
