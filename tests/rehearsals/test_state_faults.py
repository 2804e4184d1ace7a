"""The server's state restored from a copy, of a newer version, or too small; a certificate that has
expired. Each is made, shows what the runbook quotes, and the runbook's cure is done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import orjson
import pytest

from laredo_fanout.store import environment
from laredo_fanout.store.writer import Store
from tests.support.postgres import Database
from tests.support.processes import Program, eventually, wait_until
from tests.support.server.certificates import Authority, put_in_place
from tests.support.server.fanout_program import Fanout, fanout, started
from tests.support.writer.archiving_programs import Named, configured

pytestmark = pytest.mark.thorough

NEVER_USED = "exists, but this store has never used it, or another program has advanced it"
SIZE = "state.max_size = 64 MB\n"


@pytest.fixture
def owned(database: Database) -> Database:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i",
    )
    return database


ServerOf: TypeAlias = Callable[[str], Fanout]


@pytest.fixture
def server_of(tmp_path: Path, owned: Database) -> Iterator[ServerOf]:
    """Makes a server with more configuration; killed in the end if it runs."""
    made: list[Fanout] = []

    def make(extra: str) -> Fanout:
        made.append(fanout(tmp_path / "server", owned, "{ table = t }", extra))
        return made[-1]

    yield make
    for server in made:
        if server.program.is_running():
            server.program.kill()


def problem(server: Fanout, words: str) -> str:
    """The one with these words, once it is there."""
    found = wait_until(lambda: [each for each in server.problems if words in each], words)
    return str(found[0])


def update(database: Database, mark: str) -> None:
    with database.connect() as owner:
        owner.execute("UPDATE t SET v = %s WHERE id <= 10", (mark,))


def rewritten(program: Program, before: str, after: str) -> None:
    text = program.config.read_text()
    assert before in text
    program.config.write_text(text.replace(before, after))


@pytest.mark.parametrize("policy", ["recreate", "fail"])
def test_an_old_copy_of_the_state_is_put_back(
    tmp_path: Path, owned: Database, server_of: ServerOf, policy: str
) -> None:
    policy_key = f"sources.pg.on_slot_lost = {policy}\n"
    server = server_of(SIZE + policy_key)
    state, saved = server.directory / "state", tmp_path / "saved"
    with started(server):
        pass
    shutil.copytree(state, saved)
    with started(server):
        before = server.status["sources"]["pg"]["position"]
        update(owned, "later")
        wait_until(lambda: server.table("public.t")["journal"]["entries"] == 10, "taken")
        wait_until(lambda: server.status["sources"]["pg"]["position"] != before, "durable")
    shutil.rmtree(state)
    shutil.copytree(saved, state)
    server.program.start()
    if policy == "fail":
        assert "after the stored position" in problem(server, "was advanced to")
        server.program.stop()
        rewritten(server.program, policy_key, "sources.pg.on_slot_lost = recreate\n")
        server.program.start()
    assert "pg_drop_replication_slot" in problem(server, NEVER_USED)
    owned.drop_slots()
    server.program.wait_ready()
    eventually(lambda: server.table("public.t")["rows"], 100)
    assert server.table("public.t")["copied_rows"] == 100
    server.program.stop()


def test_a_newer_version_wrote_the_store(
    tmp_path: Path, owned: Database, server_of: ServerOf
) -> None:
    server = server_of(SIZE)
    with started(server):
        pass
    state = server.directory / "state"
    with Store.open(state, max_size=64_000_000) as store, store.transaction() as transaction:
        head = orjson.loads(transaction.head.to_bytes()) | {"format": environment.FORMAT + 1}
        raw = transaction._context.transaction
        raw.put(environment.STORE_KEY, orjson.dumps(head), db=store._databases.meta)
    server.program.start()
    assert server.program.wait() == 1
    assert (
        f"has format {environment.FORMAT + 1}, this version reads format {environment.FORMAT} alone"
        in (server.program.tail())
    )
    state.rename(tmp_path / "elsewhere")
    server.program.start()
    problem(server, NEVER_USED)
    owned.drop_slots()
    server.program.wait_ready()
    eventually(lambda: server.table("public.t")["rows"], 100)
    server.program.stop()


def test_a_store_that_is_too_small(tmp_path: Path, owned: Database, server_of: ServerOf) -> None:
    small = "state.max_size = 2 MB\n"
    server = server_of(small)
    with started(server):
        with owned.connect() as owner:
            owner.execute(
                "INSERT INTO t SELECT i, repeat('x', 2000) FROM generate_series(101, 2000) i"
            )
        problem(server, "has reached state.max_size (2.0 MB)")
        assert server.metrics["laredo_store_free_bytes"] < 2_000_000
        assert server.metrics["laredo_store_max_bytes"] == 2_000_000
        answer = server.program.get("/health/serving")
        assert answer is not None and answer.status_code == 200, "what it has isn't served"
    rewritten(server.program, small, SIZE)
    with started(server):
        wait_until(lambda: server.table("public.t")["rows"] == 2000, "all rows")
        assert server.table("public.t")["copied_rows"] == 0


def test_the_server_s_certificate_has_expired(tmp_path: Path, owned: Database) -> None:
    authority = Authority(tmp_path / "ca")
    files = authority.sign("server", 0)
    programs = configured(tmp_path, owned, [Named("public", "t", None)])
    tls = f'fanout.grpc {{ tls {{ cert = "{files.cert}", key = "{files.key}" }} }}\n'
    programs.server.config.write_text(programs.server.config.read_text() + tls)
    rewritten(programs.writer, "127.0.0.1", "localhost")
    rewritten(
        programs.writer,
        "source { server =",
        f'source {{ tls {{ ca = "{authority.pem}" }}, server =',
    )
    with programs.server, programs.writer:
        programs.server.wait_ready()
        wait_until(lambda: "certificate expired" in programs.server.tail(10**6), "logged")

        def said() -> str:
            answer = programs.writer.get("/status")
            return "" if answer is None else str(answer.json()["tables"]["public.t"]["problem"])

        wait_until(lambda: "certificate has expired" in said(), "the writer says why")
        put_in_place(authority.sign("renewed"), files)
        programs.writer.wait_ready()
