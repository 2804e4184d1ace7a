"""Tables over several servers, each with its own slot: as docs/server/several-servers.md has it."""

from pathlib import Path
from typing import Any

import pytest

from laredo_archive.maintain.compare_postgres import Comparison, compare
from laredo_archive.reader import Archive
from tests.support.postgres import Database
from tests.support.processes import Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout

WRITER = """
snapshotter {{
  diff {{ interval = 300ms }}, seen_interval = 300ms
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  http {{ host = "127.0.0.1", port = {http} }}
  tables = [
    {{ source {{ server = "127.0.0.1:{orders}", table = orders }} }}
    {{ source {{ server = "127.0.0.1:{events}", table = events }} }}
  ]
}}
"""


class Servers:
    """Two servers of one database, and a writer that takes each table from its own."""

    def __init__(self, directory: Path, database: Database) -> None:
        self.directory, self.database = directory, database
        self.one = self._server("one", "{ table = orders }")
        self.two = self._server("two", "{ table = events }")
        http = free_port()
        config = directory / "snapshotter.conf"
        self.writer = Program("laredo-snapshotter", config, http, log=directory / "writer.log")
        self.write_from(orders=self.one)

    def _server(self, name: str, tables: str) -> Fanout:
        own = f"{name}_{self.database.name}"
        return fanout(
            self.directory / name,
            self.database.dsn,
            tables,
            f"sources.pg.publication.name = {own}\n",
            slot=own,
        )

    def write_from(self, orders: Fanout) -> None:
        """Configure the writer to take ``orders`` from this server."""
        self.writer.config.write_text(
            WRITER.format(
                directory=self.directory,
                http=self.writer.http.rpartition(":")[2],
                orders=orders.grpc_port,
                events=self.two.grpc_port,
            )
        )

    def archive(self, table: str) -> Archive:
        return Archive.at(str(self.directory / "archive" / table))

    def change(self, number: int) -> int:
        """A row of each table; the position that has both."""
        for table in ("orders", "events"):
            self.database.run(f"INSERT INTO {table} VALUES ({number}, 'row {number}')")
        return self.database.position()

    def wait_archived(self, position: int) -> None:
        for table in ("orders", "events"):
            wait_until(lambda t=table: self._seen(t) >= position, f"{table} has {position:#x}")

    def _seen(self, table: str) -> int:
        manifest = self.archive(table).manifest
        return int(max(manifest.head_position or 0, manifest.seen_position or 0))

    def equal(self, table: str) -> None:
        verdict = compare(self.archive(table), self.database.dsn, wait_s=120)
        assert verdict.outcome is Comparison.EQUAL, f"{table}: {verdict.reason}"


@pytest.fixture
def servers(tmp_path: Path, database: Database) -> Servers:
    for table in ("orders", "events"):
        database.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'first' FROM generate_series(1, 50) i",
        )
    return Servers(tmp_path, database)


def _slots(database: Database) -> list[Any]:
    with database.connect() as owner:
        return owner.execute(
            "SELECT slot_name, active FROM pg_replication_slots"
            " WHERE database = current_database() ORDER BY 1"
        ).fetchall()


@pytest.mark.thorough
def test_a_table_moves_to_another_server_within_its_epoch(
    servers: Servers, database: Database
) -> None:
    one, two = servers.one, servers.two
    with one.program, two.program:
        one.program.wait_ready()
        two.program.wait_ready()
        assert _slots(database) == [(f"{n}_{database.name}", True) for n in ("one", "two")]
        with servers.writer:
            servers.writer.wait_ready()
            servers.wait_archived(servers.change(1000))

            two.program.stop()
            text = two.program.config.read_text()
            both = "tables = [ { table = events }, { table = orders } ]"
            two.program.config.write_text(text.replace("tables = [ { table = events } ]", both))
            two.program.start()
            two.program.wait_ready()
            servers.wait_archived(servers.change(1001))

            servers.writer.stop()
            servers.write_from(orders=two)
            servers.writer.start()
            servers.writer.wait_ready()
            one.program.stop()
            servers.wait_archived(servers.change(1002))
            for table in ("orders", "events"):
                servers.equal(table)
                assert {each.epoch for each in servers.archive(table).manifest.artifacts} == {1}
