"""One table from PostgreSQL through server and writer, beside what PostgreSQL held."""

import json
from pathlib import Path
from typing import Any

from laredo_model import position
from tests.support.oracle import Connection, Oracle, assert_same, boundaries
from tests.support.postgres import Database
from tests.support.processes import Program, free_port
from tests.support.server.fanout_program import Fanout

SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc}" }}
  diff {{ interval = 100ms }}, seen_interval = 300ms
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  formats {{ snapshot = [jsonl], diff = [jsonl] }}
  retention {{ keep_epochs = 1000 }}
  http {{ host = "127.0.0.1", port = {http} }}
  tables = [ {{ source {{ table = t }} }} ]
}}
"""


def writer_of(server: Fanout, directory: Path) -> Program:
    """A writer of the server's table ``t`` to ``archive`` in the directory; not started."""
    http = free_port()
    config = directory / "snapshotter.conf"
    config.write_text(SNAPSHOTTER.format(grpc=server.grpc_port, directory=directory, http=http))
    return Program("laredo-snapshotter", config, http, log=directory / "writer.log")


class Road:
    """PostgreSQL, server and writer, and what PostgreSQL held at every position."""

    def __init__(self, database: Database, directory: Path, server: Fanout) -> None:
        self.database = database
        self.directory = directory
        self.server = server
        self.oracle = Oracle(database.dsn)
        self.oracle.start("t")
        self.writer = writer_of(server, directory)

    def noted(self, session: Connection, *statements: str) -> None:
        """A transaction of these statements."""
        with session.transaction():
            for statement in statements:
                session.execute(statement.encode())
            self.oracle.note(session, "t")

    def status(self) -> dict[str, Any]:
        """The table in the writer's /status."""
        answer = self.writer.get("/status")
        assert answer is not None
        return answer.json()["tables"]["public.t"]

    def reached(self) -> int:
        """Position of the archive's head; 0 before the first artifact."""
        manifest = self.directory / "archive" / "t" / "manifest.json"
        head = json.loads(manifest.read_bytes())["head_position"] if manifest.exists() else None
        return 0 if head is None else position.parse(head)

    def check(self) -> int:
        """Compare every boundary; how many there are."""
        found = boundaries(self.directory / "archive" / "t")
        for end, lines in found:
            assert_same(self.oracle, "t", end, lines)
        return len(found)
