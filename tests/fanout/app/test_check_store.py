"""``laredo-fanout check`` finds whatever the server would refuse because of its store or slot."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fanout.app.checking import missing
from tests.support.postgres import Database
from tests.support.processes import Program, wait_until
from tests.support.server.fanout_program import CONFIG, Fanout, fanout, relay, started

TABLES = "{ table = a }"


def checked(server: Fanout, extra: str = "") -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings of ``check``, which must not call all well if something isn't."""
    more = ["--set", extra] if extra else []
    done = server.run("check", "--json", *more)
    assert done.stdout, done.stderr
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    is_well = not missing(found) and "store in use" not in found
    assert ("nothing is missing" in server.run("check", *more).stdout) is is_well
    return done.returncode, found


def refused(server: Fanout, reason: str) -> None:
    """Start the server for real: it doesn't follow the slot, for this reason."""
    with server.program:
        wait_until(lambda: any(reason in each for each in server.problems), reason, 60)


def over(server: Fanout, database: Database, state: Path) -> Fanout:
    """The server's ports, with PostgreSQL and the server's slot, over another store."""
    file = server.directory / "over.conf"
    http = server.program.http.rpartition(":")[2]
    text = CONFIG.format(
        directory=state.parent, dsn=database.dsn, slot=f"s_{database.name}",
        grpc=server.grpc_port, http=http, tables=TABLES,
    )  # fmt: skip
    file.write_text(text)
    program = Program("laredo-fanout", file, int(http), log=server.directory / "over.log")
    return Fanout(program, server.grpc_port, server.directory)


def test_a_store_in_use_and_an_empty_one(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    fresh = fanout(tmp_path / "fresh", database, TABLES)
    with started(server):
        code, found = checked(server)
        assert (code, missing(found)) == (0, set())
        assert found["store in use"]["verdict"] == "warning"
        assert str(server.program.pid) in found["store in use"]["detail"]
        code, found = checked(fresh)
        assert (code, missing(found)) == (1, {"slot"}), "another store uses it"
    code, found = checked(server)
    assert (code, missing(found)) == (0, set()), "its own slot"


@pytest.mark.thorough
def test_slots_of_other_stores_are_refused(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    fresh = fanout(tmp_path / "fresh", database, TABLES)
    other = fanout(tmp_path / "other", database.dsn, TABLES, slot=f"o_{database.name}")
    following = relay(tmp_path / "relay", server.grpc_port, TABLES)
    with started(server):
        refused(fresh, "is in use")
        with started(following), started(other):
            pass
    for each in (following, other):
        taking = over(each, database, each.directory / "state")
        code, found = checked(taking)
        assert (code, missing(found)) == (1, {"slot"})
        refused(taking, "this store has never used it")


def test_a_lost_slot(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    with started(server):
        pass
    database.run(f"SELECT pg_drop_replication_slot('s_{database.name}')")
    code, found = checked(server)
    assert (code, found["slot"]["verdict"]) == (0, "warning")
    assert "copied again" in found["slot"]["detail"]
    fails = "sources.pg.on_slot_lost=fail"
    code, found = checked(server, fails)
    assert (code, missing(found)) == (1, {"slot"})
    file = server.program.config
    file.write_text(file.read_text() + "sources.pg.on_slot_lost = fail\n")
    refused(server, "doesn't exist any more")


def test_a_store_that_cannot_be_read(tmp_path: Path, database: Database) -> None:
    database.run("CREATE TABLE a (id int PRIMARY KEY)")
    server = fanout(tmp_path / "server", database, TABLES)
    state = server.directory / "state"
    state.mkdir()
    (state / "data.mdb").write_bytes(b"no store" * 1000)
    code, found = checked(server)
    assert (code, missing(found)) == (1, {"store"})
    assert "is damaged" in found["store"]["detail"]
