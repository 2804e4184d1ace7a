"""The state directory is deleted, moved or replaced under the running server: nothing more is
confirmed to PostgreSQL, and the way out that the message names leads to every row."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laredo_model import position
from tests.support import drawn
from tests.support.postgres import Database
from tests.support.processes import eventually, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

_NOTICED_WITHIN_S = 15.0
_RETRIES = 2


@contextmanager
def served(directory: Path, database: Database) -> Iterator[Fanout]:
    """A server of the table ``t``, that has its first row."""
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    with started(fanout(directory, database, "{ table = t }")) as server:
        yield server


def confirmed(database: Database) -> int:
    return database.confirmed(f"s_{database.name}")


def insert(database: Database, number: int) -> int:
    """Insert a row; return the WAL position before it."""
    before = database.position()
    database.run(f"INSERT INTO t VALUES ({number})")
    return before


def not_confirmed(server: Fanout, database: Database) -> None:
    """Check that later changes aren't confirmed, and the server isn't ready."""
    inserted = insert(database, 1)
    state = server.directory / "state"
    message = f"the store {state} was deleted or replaced while the server runs"
    wait_until(
        lambda: any(message in problem for problem in server.problems), "noticed", _NOTICED_WITHIN_S
    )
    restarts = server.metrics['laredo_source_restarts_total{source="pg"}']
    stopped_at = confirmed(database)
    insert(database, 2)
    wait_until(
        lambda: server.metrics['laredo_source_restarts_total{source="pg"}'] >= restarts + _RETRIES,
        "it was tried again",
    )
    assert confirmed(database) == stopped_at <= inserted
    assert position.parse(server.status["sources"]["pg"]["position"]) <= inserted
    logged = map(json.loads, server.program.log.read_text().splitlines())
    (error,) = (line["error"] for line in logged if line["level"] == "error")
    assert error.startswith(message)
    assert f"SELECT pg_drop_replication_slot('s_{database.name}')" in error
    answer = server.program.get("/health/serving")
    assert answer is not None and answer.status_code == 200, "clients are served what there is"


@pytest.mark.thorough
def test_deleted(tmp_path: Path, database: Database) -> None:
    with served(tmp_path, database) as server:
        shutil.rmtree(tmp_path / "state")
        not_confirmed(server, database)
        assert not (tmp_path / "state").exists()
        assert server.program.stop() == 0
        database.drop_slots()
        server.program.start()
        server.program.wait_ready()
        eventually(lambda: server.table("public.t")["rows"], 3)


@pytest.mark.parametrize("instead", drawn.first(1, ["another file", "empty directory"]))
def test_replaced_and_moved_back(tmp_path: Path, database: Database, instead: str) -> None:
    state, moved = tmp_path / "state", tmp_path / "moved"
    with served(tmp_path, database) as server:
        state.rename(moved)
        state.mkdir()
        if instead == "another file":
            (state / "data.mdb").write_bytes(b"another")
        not_confirmed(server, database)
        shutil.rmtree(state)
        moved.rename(state)
        server.program.wait_ready()
        wait_until(lambda: server.table("public.t")["rows"] == 3, "it goes on")
        last = insert(database, 3)
        wait_until(lambda: confirmed(database) > last, "it is confirmed")
