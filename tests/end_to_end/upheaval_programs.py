"""The programs of an upheaval, and the proxies before PostgreSQL and the server."""

import random
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.end_to_end.changing_table import ChangingTable
from tests.end_to_end.fanout import snapshotter
from tests.support.processes import Program, free_port
from tests.support.server.stuck_proxy import Proxy

FANOUT = """
state {{ path = "{directory}/state", max_size = 4 GB }}
sources {{ pg {{ connection = "{dsn}", heartbeat_interval = 300ms, receive_timeout = 3s
    copy {{ workers = {workers} }}
    catchup {{ mode = auto, threshold_bytes = 60000, check_interval = 10ms
               min_segment_bytes = 30000, max_segments = {segments} }} }} }}
fanout {{ grpc {{ host = "127.0.0.1", port = {grpc}, workers = {serving} }}, drain_grace = 1s }}
http {{ host = "127.0.0.1", port = {http} }}
tables = [ {tables} ]
"""
FANOUT_TABLE = """{{ table = {name}, append_only = {append_only}, targets = [ {{
    heartbeat_interval = 500ms, journal {{ max_entries = {entries} }} }} ] }}"""


class Programs:
    """laredo-fanout and laredo-snapshotter, configured by chance, and not started."""

    def __init__(
        self,
        directory: Path,
        chance: random.Random,
        socket: Path,
        tables: Sequence[ChangingTable],
        stack: ExitStack,
    ) -> None:
        self._tables = tables
        self._grpc, http = free_port(), free_port()
        place = directory / "p"
        place.mkdir()
        self.to_postgres = Proxy(str(socket), place)
        self.to_server = Proxy(self._grpc)
        stack.callback(self.to_postgres.close)
        stack.callback(self.to_server.close)
        self._drawn = {
            "directory": directory,
            "dsn": f"postgresql://postgres@/postgres?host={place}",
            "grpc": self._grpc,
            "http": http,
            "workers": chance.choice([1, 2]),
            "segments": chance.choice([2, 3]),
            "serving": chance.choice([1, 2]),
        }
        self._entries = chance.choice([1_000_000, 300])
        self.server = Program(
            "laredo-fanout", directory / "fanout.conf", http, log=directory / "fanout.log"
        )
        self.configure()
        archive = directory / "archive"
        archive.mkdir()
        names = [table.name for table in tables]
        self.snapshotter = snapshotter(
            directory, archive, [self.to_server.port], names, compacts=False
        )

    def configure(self, without: Collection[str] = ()) -> None:
        """Write the server's configuration, for its next start."""
        tables = ", ".join(
            FANOUT_TABLE.format(
                name=table.name,
                append_only=str(table.append_only).lower(),
                entries=self._entries,
            )
            for table in self._tables
            if table.name not in without
        )
        self.server.config.write_text(FANOUT.format(**self._drawn, tables=tables))
