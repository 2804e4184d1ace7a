"""The state directory is deleted, moved or replaced under the running server: nothing more is
confirmed to PostgreSQL, and the way out that the message names leads to every row."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from laredo_model import position
from tests.support import drawn
from tests.support.postgres import Database
from tests.support.processes import eventually, wait_until
from tests.support.server.fanout_program import Fanout, fanout, started

_NOTICED_WITHIN_S = 15.0
_RETRIES = 2


@contextmanager
def served(directory: Path, database: Database) -> Iterator[tuple[Fanout, psycopg.Connection]]:
    """A server of the table ``t``, that has its first row."""
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    server = fanout(directory, database, "{ table = t }")
    with started(server), database.connect() as owner:
        yield server, owner


def confirmed(database: Database) -> int:
    return database.number(
        "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s",
        f"s_{database.name}",
    )


def insert(owner: psycopg.Connection, number: int) -> int:
    """Insert a row; return the WAL position before it."""
    row = owner.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    owner.execute("INSERT INTO t VALUES (%s)", (number,))
    assert row is not None
    return int(row[0])


def not_confirmed(server: Fanout, owner: psycopg.Connection, database: Database) -> None:
    """Check that later changes aren't confirmed, and the server isn't ready."""
    inserted = insert(owner, 1)
    state = server.directory / "state"
    message = f"the store {state} was deleted or replaced while the server runs"
    wait_until(
        lambda: any(message in problem for problem in server.problems), "noticed", _NOTICED_WITHIN_S
    )
    restarts = server.metrics['laredo_source_restarts_total{source="pg"}']
    stopped_at = confirmed(database)
    insert(owner, 2)
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
    with served(tmp_path, database) as (server, owner):
        shutil.rmtree(tmp_path / "state")
        not_confirmed(server, owner, database)
        assert not (tmp_path / "state").exists()
        assert server.program.stop() == 0
        owner.execute("SELECT pg_drop_replication_slot(%s)", (f"s_{database.name}",))
        server.program.start()
        server.program.wait_ready()
        eventually(lambda: server.table("public.t")["rows"], 3)


@pytest.mark.parametrize("instead", drawn.first(1, ["another file", "empty directory"]))
def test_replaced_and_moved_back(tmp_path: Path, database: Database, instead: str) -> None:
    state, moved = tmp_path / "state", tmp_path / "moved"
    with served(tmp_path, database) as (server, owner):
        state.rename(moved)
        state.mkdir()
        if instead == "another file":
            (state / "data.mdb").write_bytes(b"another")
        not_confirmed(server, owner, database)
        shutil.rmtree(state)
        moved.rename(state)
        server.program.wait_ready()
        wait_until(lambda: server.table("public.t")["rows"] == 3, "it goes on")
        last = insert(owner, 3)
        wait_until(lambda: confirmed(database) > last, "it is confirmed")
