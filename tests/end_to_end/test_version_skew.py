"""Programs of an earlier commit beside those of this one: what the upgrade page says goes together.

The earlier ones are real processes from their own sources, in the same virtual environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_fanout.store.environment import FORMAT
from tests.support import older
from tests.support.postgres import Database
from tests.support.processes import BIN, Program, completed, wait_until
from tests.support.server.fanout_program import fanout, relay
from tests.support.writer.archiving_programs import Named, Programs, configured

pytestmark = pytest.mark.thorough

EARLIER = "2652d3e"
"""The first commit that runs with this one's requirements; its stores have format 2."""
TABLE = Named("public", "users", None)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return older.checked_out(EARLIER, tmp_path / "earlier")


@pytest.fixture
def programs(tmp_path: Path, database: Database) -> Iterator[Programs]:
    database.run(
        "CREATE TABLE users (id int PRIMARY KEY, name text)",
        "INSERT INTO users SELECT i, 'name ' || i FROM generate_series(1, 500) i",
    )
    both = configured(tmp_path, database, [TABLE])
    yield both
    for program in (both.server, both.writer):
        if program.is_running():
            program.kill()


def changed(database: Database, mark: str) -> None:
    with database.connect() as owner:
        owner.execute("INSERT INTO users SELECT max(id) + 1, %s FROM users", (mark,))
        owner.execute("UPDATE users SET name = %s WHERE id <= 10", (mark,))
        owner.execute("DELETE FROM users WHERE id = (SELECT min(id) FROM users)")


def as_now(program: Program) -> None:
    program.environment = {}


def epoch(programs: Programs) -> int:
    return programs.archive(TABLE).manifest.epoch


@pytest.mark.parametrize("earlier", ["writer", "server"])
def test_a_writer_and_a_server_of_two_versions(
    programs: Programs, database: Database, tree: Path, earlier: str
) -> None:
    older.run_as(programs.writer if earlier == "writer" else programs.server, tree)
    with programs.running():
        for number in range(3):
            changed(database, f"change {number}")
        programs.equal(TABLE)
        assert epoch(programs) == 1
    earlier_reads_it = completed(
        [BIN / "laredo-archive", "verify", programs.directory / "archive" / "users"],
        env={**os.environ, **older.environment(tree)},
    )
    assert earlier_reads_it.returncode == 0, earlier_reads_it.stderr


def test_each_server_refuses_the_store_of_the_other(
    programs: Programs, database: Database, tree: Path
) -> None:
    with programs.server:
        programs.server.wait_ready()
    older.run_as(programs.server, tree)
    assert f"has format {FORMAT}, this version knows 2" in _refusal(programs.server)
    as_now(programs.server)
    with programs.server:
        programs.server.wait_ready()
    state = programs.directory / "server" / "state"
    (written,) = state.glob("data.mdb")
    written.unlink()
    database.drop_slots()
    older.run_as(programs.server, tree)
    with programs.server:
        programs.server.wait_ready()
    as_now(programs.server)
    assert f"has format 2, this version reads format {FORMAT} alone" in _refusal(programs.server)


def _refusal(server: Program) -> str:
    server.start()
    wait_until(lambda: not server.is_running(), "the server ends")
    return server.tail()


def test_a_relay_and_its_upstream_of_two_versions(
    tmp_path: Path, database: Database, tree: Path
) -> None:
    database.run(
        "CREATE TABLE users (id int PRIMARY KEY, name text)",
        "INSERT INTO users SELECT i, 'x' FROM generate_series(1, 100) i",
    )
    upstream = fanout(tmp_path / "up", database, "{ table = users }")
    below = relay(tmp_path / "relay", upstream.grpc_port, "{ table = users }")
    for earlier, now in ((upstream, below), (below, upstream)):
        older.run_as(earlier.program, tree)
        as_now(now.program)
        # What each has was written by the other version, or isn't there yet.
        for server in (upstream, below):
            for file in (server.directory / "state").glob("*.mdb"):
                file.unlink()
        database.drop_slots()
        with upstream.program, below.program:
            upstream.program.wait_ready()
            below.program.wait_ready()
            with database.connect() as owner:
                owner.execute("DELETE FROM users WHERE id = (SELECT min(id) FROM users)")
                (left,) = owner.execute("SELECT count(*) FROM users").fetchone() or (0,)
            wait_until(
                lambda left=left: below.table("public.users")["rows"] == left, "the change is there"
            )
