"""A server that has rows wrong, an archive that was begun from them, and a re-copy: then the
archive equals PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from laredo_archive.reader import Archive
from tests.support.archive import command_line
from tests.support.postgres import Database
from tests.support.processes import PATIENCE_S, Program, free_port, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

ROWS = 300
SNAPSHOTTER = """
snapshotter {{
  source {{ server = "127.0.0.1:{grpc}" }}
  diff {{ interval = 300ms }}, seen_interval = 300ms
  destinations = [ {{ type = local, path = "{directory}/archive" }} ]
  formats {{ snapshot = [jsonl], diff = [jsonl] }}
  http {{ host = "127.0.0.1", port = {http} }}
  tables = [ {{ source {{ table = t }} }} ]
}}
"""


@pytest.fixture
def server(tmp_path: Path, database: Database) -> Iterator[Fanout]:
    """With the table copied, and some of its rows made wrong in its store since."""
    with database.connect() as owner:
        owner.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        owner.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, %s) i", (ROWS,))
    server = fanout(tmp_path / "server", database, "{ table = t }")
    with started(server):
        pass
    server.spoil()
    with started(server):
        yield server


def _archived(directory: Path) -> dict[bytes, bytes]:
    archive = Archive.at(str(directory / "archive" / "t"))
    return {
        line.split(b",")[0]: line for _, lines in archive.rows(archive.boundary()) for line in lines
    }


@pytest.mark.thorough
def test_an_archive_of_wrong_rows_is_put_right(
    server: Fanout, database: Database, tmp_path: Path
) -> None:
    http = free_port()
    config = tmp_path / "snapshotter.conf"
    config.write_text(SNAPSHOTTER.format(grpc=server.grpc_port, directory=tmp_path, http=http))
    with Program("laredo-snapshotter", config, http, log=tmp_path / "writer.log") as writer:
        writer.wait_ready()
        wait_until(lambda: b"wrong" in _archived(tmp_path)[b'{"id":7'], "the archive is begun")
        asked = httpx.post(f"{server.program.http}/tables/public.t/recopy", timeout=PATIENCE_S)
        assert asked.status_code == 202
        wait_until(
            lambda: b"wrong" not in _archived(tmp_path)[b'{"id":7'], "the archive has the changes"
        )
        rows = _archived(tmp_path)
        assert len(rows) == ROWS
        assert b'{"id":8' in rows
        verified = command_line.run(
            "verify", str(tmp_path / "archive" / "t"), "--against", database.dsn
        )
        assert verified.returncode == 0, f"{verified.stdout}{verified.stderr}"
        assert server.table("public.t")["recopy"]["last"]["differing"] == 3
