"""Values that PostgreSQL rewrites in silence while artifacts are cut: no boundary is wrong.

The server looks at the catalog seldom by itself, so that only its looks for those who wait come
between a rewrite and the next artifacts.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laredo_model import position
from tests.support.oracle import Connection, Oracle, assert_same, boundaries
from tests.support.postgres import Database, on_versions
from tests.support.processes import Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

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
REWRITE = "ALTER TABLE t ALTER v TYPE int USING v + 1000"


class Road:
    """PostgreSQL, server and writer, and what PostgreSQL held at every position."""

    def __init__(self, database: Database, directory: Path, server: Fanout) -> None:
        self.database = database
        self.directory = directory
        self.server = server
        self.oracle = Oracle(database.dsn)
        self.oracle.start("t")
        http = free_port()
        config = directory / "snapshotter.conf"
        config.write_text(SNAPSHOTTER.format(grpc=server.grpc_port, directory=directory, http=http))
        self.writer = Program("laredo-snapshotter", config, http, log=directory / "writer.log")

    def noted(self, session: Connection, *statements: str) -> None:
        """A transaction of these statements."""
        with session.transaction():
            for statement in statements:
                session.execute(statement.encode())
            self.oracle.note(session, "t")

    def status(self) -> dict[str, Any]:
        """What the writer says of the table."""
        answer = self.writer.get("/status")
        assert answer is not None
        found: dict[str, Any] = answer.json()["tables"]["public.t"]
        return found

    def reached(self) -> int:
        """How far the archive's artifacts reach; 0 before the first."""
        manifest = self.directory / "archive" / "t" / "manifest.json"
        head = json.loads(manifest.read_bytes())["head_position"] if manifest.exists() else None
        return 0 if head is None else position.parse(head)

    def wait_for_last_commit(self) -> None:
        last = self.oracle.last_commit()
        wait_until(lambda: self.reached() >= last, "the archive has the last commit")

    def check(self) -> int:
        """Compare every boundary; how many there are."""
        found = boundaries(self.directory / "archive" / "t")
        for end, lines in found:
            assert_same(self.oracle, "t", end, lines)
        return len(found)


@pytest.fixture
def road(tmp_path: Path, database: Database) -> Iterator[Road]:
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        owner.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i")
    server = fanout(
        tmp_path / "server",
        database.dsn,
        "{ table = t }",
        "sources.pg.heartbeat_interval = 10s",
        slot=f"s_{database.name}",
    )
    road = Road(database, tmp_path, server)
    with started(server), road.writer:
        wait_until(lambda: road.reached() > 0, "the archive is begun")
        yield road
    road.oracle.close()


@on_versions(16, 18)
def test_no_artifact_ends_between_a_silent_rewrite_and_its_detection(road: Road) -> None:
    rewrites, changes = 4, 8
    with road.database.connect() as session:
        for _ in range(rewrites):
            before = road.reached()
            while road.reached() == before:
                road.noted(session, "UPDATE t SET v = v + 1 WHERE id < 5")
            road.noted(session, REWRITE)
            for _ in range(changes):
                # The others stay as they were rewritten: no change of theirs hides it.
                road.noted(session, "UPDATE t SET v = v + 1 WHERE id = 20")
                time.sleep(0.03)  # so that cuts fall between them
    road.wait_for_last_commit()
    assert road.check() > rewrites
