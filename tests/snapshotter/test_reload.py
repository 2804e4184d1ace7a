"""The writer takes up other tables while it writes: the others notice nothing.

A command that asks for it, or for something of the server, recognises its program first.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_snapshotter import config
from laredo_snapshotter.app.service import NOT_WRITTEN, Service
from tests.support import processes
from tests.support.archive.answering import Answer, answering
from tests.support.aws import AwsServer
from tests.support.faults.fault import Exchange, Fault, Rule
from tests.support.faults.proxy import FaultProxy
from tests.support.postgres import Database, new_database
from tests.support.processes import PATIENCE_S, until, wait_until
from tests.support.writer.archiving_programs import Named, Programs, configured
from tests.support.writer.buckets import new_bucket
from tests.support.writer.served import Served, put, serving
from tests.support.writer.writing import ReadyWriter, Writer

A, B, C = (Named("public", name, None) for name in "abc")


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, database: Database) -> Iterator[Programs]:
    """Three tables are served, two of them written."""
    with database.connect() as owner:
        for table in "abc":
            owner.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
            owner.execute(f"INSERT INTO {table} SELECT i, 'v' FROM generate_series(1, 500) i")
    programs = configured(tmp_path_factory.mktemp("programs"), database, [A, B, C])
    rewrite(programs, [A, B])
    with programs.running():
        yield programs


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "state", "users", "orders", "notes") as server:
        yield server


@pytest.fixture
def programs(running: Programs) -> Programs:
    """Two of the tables are written again."""
    rewrite(running, [A, B])
    reload(running)
    running.writer.wait_ready()
    return running


def rewrite(programs: Programs, tables: Sequence[Named], extra: str = "") -> None:
    """Other tables in the writer's configuration, and what is put behind them."""
    before = programs.writer.config.read_text().partition("  tables = [")[0]
    blocks = ", ".join(f"{{ source.table = {table.table} }}" for table in tables)
    programs.writer.config.write_text(f"{before}  tables = [ {blocks} ]\n}}\n{extra}")


def reload(programs: Programs) -> dict[str, Any]:
    answered = httpx.post(f"{programs.writer.http}/reload", timeout=PATIENCE_S)
    assert answered.status_code == 200, answered.text
    return answered.json()


def commanded(programs: Programs) -> subprocess.CompletedProcess[str]:
    """``laredo-snapshotter reload``."""
    return processes.run("laredo-snapshotter", "--config", programs.writer.config, "reload")


def tables(programs: Programs) -> dict[str, Any]:
    """Tables in /status."""
    answer = programs.writer.get("/status")
    assert answer is not None
    return answer.json()["tables"]


def clients(programs: Programs) -> dict[str, str]:
    """Time at which each of the server's clients connected."""
    answer = programs.server.get("/status")
    assert answer is not None
    return {each["client_id"]: each["connected_at"] for each in answer.json()["clients"]}


def metrics(programs: Programs) -> str:
    answer = programs.writer.get("/metrics")
    assert answer is not None
    return answer.text


def change(database: Database, *names: str) -> None:
    with database.connect() as owner:
        for name in names:
            owner.execute(f"INSERT INTO {name} SELECT max(id) + 1, 'new' FROM {name}".encode())
            owner.execute(f"UPDATE {name} SET v = v || '+' WHERE id < 20".encode())


def test_tables_come_and_go_and_the_others_go_on(programs: Programs, database: Database) -> None:
    before = clients(programs)
    epoch = tables(programs)["public.b"]["epoch"]
    change(database, "a", "b", "c")
    rewrite(programs, [A, C])
    assert reload(programs) == {
        "added": ["public.c"],
        "removed": ["public.b"],
        "altered": [],
        "changed": [],
        "needs_restart": [],
    }
    # What it had taken of the table that went was written first.
    programs.equal(B)
    assert set(tables(programs)) == {"public.a", "public.c"}
    assert 'table="public.b"' not in metrics(programs)
    wait_until(programs.writer.is_ready, "the new one has its base")
    change(database, "a", "b", "c")
    programs.equal(A)
    programs.equal(C)
    now = clients(programs)
    assert now["laredo-snapshotter:public.a"] == before["laredo-snapshotter:public.a"]
    assert "laredo-snapshotter:public.b" not in now
    rewrite(programs, [A, B, C])
    assert commanded(programs).stdout == "table added: public.b\n"
    wait_until(programs.writer.is_ready, "all are followed")
    programs.equal(B)
    assert tables(programs)["public.b"]["epoch"] == epoch
    assert clients(programs)["laredo-snapshotter:public.a"] == before["laredo-snapshotter:public.a"]


def test_a_table_with_other_settings_goes_on_in_its_archive(
    programs: Programs, database: Database
) -> None:
    before, epochs = clients(programs), {n: t["epoch"] for n, t in tables(programs).items()}
    rewrite(programs, [A, B])
    text = programs.writer.config.read_text()
    other = "{ source.table = b, diff.interval = 100ms, formats.diff = [jsonl] }"
    programs.writer.config.write_text(text.replace("{ source.table = b }", other))
    assert commanded(programs).stdout == "table restarted with other settings: public.b\n"
    change(database, "a", "b")
    wait_until(programs.writer.is_ready, "both are followed")
    programs.equal(A)
    programs.equal(B)
    newest = programs.archive(B).manifest.artifacts[-1]
    assert list(newest.formats) == ["jsonl"]
    assert {n: t["epoch"] for n, t in tables(programs).items()} == epochs
    assert clients(programs)["laredo-snapshotter:public.a"] == before["laredo-snapshotter:public.a"]


def test_a_wrong_configuration_changes_nothing(programs: Programs, database: Database) -> None:
    before = programs.writer.log.read_text().count("configuration not reloaded")
    rewrite(programs, [A, A])
    refused = httpx.post(f"{programs.writer.http}/reload", timeout=PATIENCE_S)
    assert refused.status_code == 422
    assert "public.a is already written by" in refused.json()["error"]
    assert commanded(programs).returncode == 2
    os.kill(programs.writer.pid, signal.SIGHUP)
    log = programs.writer.log
    refusals = "configuration not reloaded"
    wait_until(lambda: log.read_text().count(refusals) == before + 2, "the signal's too")
    assert set(tables(programs)) == {"public.a", "public.b"}
    change(database, "a", "b")
    programs.equal(A)
    programs.equal(B)
    rewrite(programs, [A, C])
    os.kill(programs.writer.pid, signal.SIGHUP)
    wait_until(lambda: set(tables(programs)) == {"public.a", "public.c"}, "what is right is used")
    wait_until(programs.writer.is_ready, "it has its base")
    programs.equal(C)


def test_a_writer_that_is_killed_goes_on_with_the_new_tables(
    programs: Programs, database: Database
) -> None:
    rewrite(programs, [B, C])
    os.kill(programs.writer.pid, signal.SIGHUP)
    programs.writer.kill()
    change(database, "b", "c")
    programs.writer.start()
    programs.writer.wait_ready()
    assert set(tables(programs)) == {"public.b", "public.c"}
    programs.equal(B)
    programs.equal(C)


def test_what_needs_a_restart_is_named(programs: Programs) -> None:
    http = programs.writer.http
    rewrite(programs, [A, B], "snapshotter.http { port = 1, public = [health] }")
    done = httpx.post(f"{http}/reload", timeout=PATIENCE_S).json()
    assert done["changed"] == ["snapshotter.http.public"]
    assert done["needs_restart"] == ["snapshotter.http.port"]
    assert done["altered"] == []
    assert "doesn't answer" in commanded(programs).stderr


def test_a_writer_ends_while_a_file_of_its_reload_hangs(tmp_path: Path, served: Served) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret")
    with ReadyWriter(tmp_path, served, more=f'source.token_file = "{secret}"') as writer:
        secret.unlink()
        os.mkfifo(secret)
        os.kill(writer.program.pid, signal.SIGHUP)
        wait_until(lambda: writer.logged("configuration reload requested"), "it reads the file")
        writer.wait_head(served.commit("users", put(1, "goes on")))
        assert writer.program.stop() == 0


def test_a_writer_that_a_reload_ends_while_it_claims_gives_the_claim_up(
    tmp_path: Path, served: Served, s3_server: AwsServer
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    async def held(exchange: Exchange) -> None:
        reached.set()
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        await exchange.respond(await exchange.forward())

    bucket = new_bucket(s3_server)
    with FaultProxy(s3_server.endpoint) as proxy:
        proxy.add(Rule(Fault("held", held), "GetObject", "*/manifest.json"))
        place = bucket.configured(endpoint=f'"{proxy.endpoint}"')
        with Writer(tmp_path, served, destinations=(place,)) as writer:
            writer.archive = bucket
            assert reached.wait(PATIENCE_S)
            file = writer.program.config
            file.write_text(file.read_text().replace("interval = 200ms", "interval = 100ms"))
            assert writer.post("/reload").json()["altered"] == ["public.users"]
            writer.program.wait_ready()
            go_on.set()
            wait_until(lambda: writer.logged("claim abandoned"), "the old writer's thread ends")
            writer.wait_head(served.commit("users", put(1, "goes on")))
            assert writer.manifest()["writer_term"] == 1
            assert writer.program.stop() == 0


async def test_the_event_loop_never_resolves_a_path(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network directory that hangs would hold up every table."""
    resolved = os.path.realpath

    def off_the_loop(path: Any, **how: Any) -> Any:
        assert asyncio._get_running_loop() is None, path
        return resolved(path, **how)

    writer = Writer(tmp_path, served, "users", "orders")
    catalog = tmp_path / "archive" / "catalog.json"
    load = partial(config.load, writer.program.config)
    block = load()
    monkeypatch.setattr(os.path, "realpath", off_the_loop)
    service = Service(block, 5.0, load)
    running = asyncio.create_task(service.run())
    await until(catalog.exists)
    Writer(tmp_path, served, "users", "notes")
    done = await service.reload()
    assert (done["added"], done["removed"]) == (["public.notes"], ["public.orders"])
    await until(lambda: b"notes" in catalog.read_bytes())
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_a_writer_that_ends_gives_the_disk_space_of_what_waits_back(
    tmp_path: Path, served: Served
) -> None:
    place = tmp_path / "spill"
    more = f'diff.max_memory = 64 KiB, source.local_snapshot_path = "{place}"'
    file = Writer(tmp_path, served, more=more).program.config
    load = partial(config.load, file)
    service = Service(load(), 0.1, load)
    running = asyncio.create_task(service.run())
    await until(lambda: any(each.ready for each in service.statuses()))
    served.looks_by_itself = False
    gc.disable()
    try:
        served.commit("users", *(put(number, "x" * 100) for number in range(5000)))
        await until(lambda: service.statuses()[0].unverified)
        file.write_text(file.read_text().replace("interval = 200ms", "interval = 100ms"))
        assert (await service.reload())["altered"] == ["public.users"]
        await until(lambda: service.statuses()[0].unverified)
        opened = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        spilled = [each for each in opened if str(each.readlink()).startswith(str(place))]
        on_disk = service.statuses()[0].buffer_spilled_bytes
        assert sum(each.stat().st_size for each in spilled) == on_disk > 500_000
    finally:
        gc.enable()
    served.looks_by_itself = True
    served.look()
    await until(lambda: not service.statuses()[0].buffer_depth)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_a_signal_during_a_reload_exits_with_what_its_writers_left(
    tmp_path: Path, served: Served
) -> None:
    file = Writer(tmp_path, served).program.config
    load = partial(config.load, file)
    service = Service(load(), 1.0, load)
    running = asyncio.create_task(service.run())
    await until(lambda: any(each.ready for each in service.statuses()))
    served.looks_by_itself = False
    served.commit("users", put(1, "isn't verified"))
    await until(lambda: service.statuses()[0].unverified)
    file.write_text(file.read_text().replace("interval = 200ms", "interval = 100ms"))
    reloading = asyncio.create_task(service.reload())
    (writer,) = service._writers.all
    await until(writer._stopping.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == NOT_WRITTEN
    await reloading


async def test_a_client_that_leaves_waits_for_no_base(tmp_path: Path, served: Served) -> None:
    served.stop()
    writer = Writer(tmp_path, served, "users", "orders")
    load = partial(config.load, writer.program.config)
    service = Service(load(), 5.0, load)
    running = asyncio.create_task(service.run())
    async with httpx.AsyncClient(base_url=writer.program.http, timeout=PATIENCE_S) as client:
        while True:
            try:
                await client.get("/health/live")
                break
            except httpx.ConnectError:
                await asyncio.sleep(0.01)  # poll
        for table in ("", "&table=public.users"):
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"/snapshot?wait=true{table}", timeout=0.5)
    await until(lambda: not any("run_asgi" in repr(task) for task in asyncio.all_tasks()))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


def of_writer(programs: Programs, url: str) -> subprocess.CompletedProcess[str]:
    """``laredo-snapshotter reload``, at another port."""
    return processes.run(
        "laredo-snapshotter",
        "reload",
        "--config",
        programs.writer.config,
        "--set",
        f"snapshotter.http.port={urlsplit(url).port}",
    )


def of_server(url: str) -> list[subprocess.CompletedProcess[str]]:
    """Each command of ``laredo-fanout`` that asks a running server."""
    commands = (["reload"], ["catchup"], ["recopy", "public.a"], ["status"])
    return [processes.run("laredo-fanout", *each, "--url", url) for each in commands]


def test_a_command_at_the_other_programs_port_changes_nothing(programs: Programs) -> None:
    server, writer = programs.server, programs.writer

    def reloads() -> list[int]:
        logs = (server.log, writer.log)
        return [log.read_text().count("configuration reloaded") for log in logs]

    before = reloads()
    refused = of_writer(programs, server.http)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"{server.http} is the port of laredo-fanout: nothing was changed;"
        " give the http.port of laredo-snapshotter\n",
    )
    for refused in of_server(writer.http):
        assert (refused.returncode, refused.stderr) == (
            1,
            f"laredo-fanout: {writer.http} is the port of laredo-snapshotter: nothing was changed;"
            " give the http.port of laredo-fanout\n",
        )
    assert reloads() == before


@pytest.mark.parametrize(
    "body", [b"{}", pytest.param(b"welcome", marks=pytest.mark.thorough)], ids=["json", "text"]
)
def test_an_unknown_program_gets_no_order(programs: Programs, body: bytes) -> None:
    with answering(Answer(body=body)) as foreign:
        url = foreign.endpoint
        for ended in (of_writer(programs, url), *of_server(url)):
            assert ended.returncode == 1 and ended.stderr.count("\n") == 1
            assert f"{url} is the port of an unknown program: nothing was changed" in ended.stderr
    assert "POST" not in {asked.method for asked in foreign.asked}
