"""Scrapes of the running server, in both formats, read by Prometheus' own parsers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import httpx
import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from examples.snapshotter.embedded_postgres import EmbeddedPostgres
from laredo_service import build
from tests.support.postgres import Database, new_database
from tests.support.processes import PATIENCE_S, free_port, wait_until
from tests.support.server.connect_client import SERVICE, envelope, sync_request
from tests.support.server.fanout_program import Fanout, fanout, started

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
ROWS = 2000
MAX_SIZE = (1 << 30) + 12345
WORKERS = ("serving-0", "serving-1")


@pytest.fixture(scope="module")
def connect_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, database: Database, connect_port: int
) -> Iterator[Fanout]:
    with database.connect() as owner:
        owner.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        owner.execute(
            "INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, %s) i", (ROWS,)
        )
    extra = (
        f"fanout {{ grpc.workers = {len(WORKERS)}, connect.port = {connect_port} }}\n"
        f"state.max_size = {MAX_SIZE}\n"
    )
    table = "{ table = a, targets = [{ client_buffer.max_size = 1234 }] }"
    with started(fanout(tmp_path_factory.mktemp("server"), database, table, extra)) as running:
        yield running


@dataclass
class Received:
    """Bytes and messages that a client has read of its stream."""

    bytes: int = 0
    messages: int = 0


def scraped(server: Fanout, accept: str) -> httpx.Response:
    return httpx.get(
        f"{server.program.http}/metrics", headers={"Accept": accept}, timeout=PATIENCE_S
    )


def by_process(server: Fanout, name: str) -> dict[str, float]:
    """A metric's samples by their only label."""
    sample = re.compile(rf'{name}\{{process="([^"]+)"\}}')
    return {
        found[1]: value for key, value in server.metrics.items() if (found := sample.fullmatch(key))
    }


def test_both_formats_have_the_same_metrics(server: Fanout) -> None:
    plain, opened = scraped(server, "*/*"), scraped(server, OPEN_METRICS)
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert opened.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert opened.text.endswith("# EOF\n")
    of_text = {family.name: family for family in text_format(plain.text)}
    of_open = {family.name: family for family in open_metrics(opened.text)}
    assert len(of_text) > 60 and of_text.keys() == of_open.keys()
    for name, family in of_text.items():
        assert {s.name for s in family.samples} == {s.name for s in of_open[name].samples}


def test_it_names_its_build(server: Fanout) -> None:
    labels = f'commit="{build.commit()}",version="{build.version()}"'
    assert server.metrics[f"laredo_build_info{{{labels}}}"] == 1
    assert (server.status["version"], server.status["commit"]) == (
        build.version(),
        build.commit(),
    )


def test_every_process_has_its_memory_and_keeps_its_name(server: Fanout) -> None:
    name = "laredo_process_resident_memory_bytes"
    before = by_process(server, name)
    assert before.keys() == {"main", *WORKERS}
    resident = sorted(
        psutil.Process(pid).memory_info().rss for pid in server.status["fanout"]["pids"]
    )
    shown = sorted(before[each] for each in WORKERS)
    assert shown == pytest.approx(resident, rel=0.2)
    assert before["main"] == pytest.approx(
        psutil.Process(server.program.pid).memory_info().rss, rel=0.2
    )
    kill_one(server)
    wait_until(lambda: by_process(server, name).keys() == before.keys(), "under the same name")


def kill_one(server: Fanout) -> None:
    """Kill a serving process, and wait for the one that takes its place."""
    before = server.status["fanout"]
    os.kill(before["pids"][0], signal.SIGKILL)
    restarts = before["restarts"] + 1
    wait_until(lambda: server.status["fanout"]["restarts"] == restarts, "restarted")


def test_sizes_are_the_configured_ones(server: Fanout) -> None:
    metrics = server.metrics
    assert metrics["laredo_store_max_bytes"] == MAX_SIZE
    state = server.directory / "state"
    shown, used = metrics["laredo_store_bytes"], server.status["store"]["bytes"]
    on_disk = 512 * (state / "data.mdb").stat().st_blocks
    assert 0 < used <= shown == metrics["laredo_store_allocated_bytes"] == on_disk <= MAX_SIZE
    free = psutil.disk_usage(str(state)).free
    assert metrics["laredo_store_disk_free_bytes"] == pytest.approx(free, abs=1 << 30)
    assert metrics['laredo_position_bytes{source="pg"}'] > 0
    assert 0 < metrics["laredo_store_free_bytes"] < MAX_SIZE - used + (1 << 20)
    assert metrics['laredo_fanout_client_buffer_limit{table="public.a"}'] == 1234
    assert metrics['laredo_fanout_client_buffer_depth{table="public.a"}'] == 0


async def test_what_is_sent_is_what_clients_receive(
    server: Fanout, database: Database, connect_port: int
) -> None:
    received = Received()
    async with (
        over_grpc(server.grpc_port, received),
        over_grpc(server.grpc_port, received),
        # Two of Connect, to which the same bytes are written together once they are live.
        over_connect(connect_port, received),
        over_connect(connect_port, received),
    ):
        await until(server, received, at_least=4 * ROWS)
        with database.connect() as owner:
            for number in range(20):
                owner.execute("UPDATE a SET v = %s WHERE id <= 10", (f"v{number}",))
        await until(server, received, at_least=4 * (ROWS + 200))
        before = sent(server)
        await asyncio.to_thread(kill_one, server)
        assert sent(server) == before, "a counter went back"


def sent(server: Fanout) -> tuple[float, float]:
    size = by_process(server, "laredo_fanout_sent_bytes_total")
    messages = by_process(server, "laredo_fanout_sent_messages_total")
    assert size.keys() == messages.keys() == set(WORKERS)
    return sum(size.values()), sum(messages.values())


async def until(server: Fanout, received: Received, at_least: int) -> None:
    """Both sides agree, on so many messages at least."""

    def agreed() -> bool:
        shown = sent(server)
        return shown == (received.bytes, received.messages) and received.messages >= at_least

    try:
        await asyncio.to_thread(wait_until, agreed, "both agree", 60)
    except AssertionError:
        assert sent(server) == (received.bytes, received.messages)
        raise


@asynccontextmanager
async def over_grpc(port: int, received: Received) -> AsyncIterator[None]:
    async def read() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            async for message in channel.unary_stream(f"{SERVICE}/Sync")(request()):
                received.bytes += len(message)
                received.messages += 1

    reading = asyncio.create_task(read())
    yield
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def request() -> bytes:
    return sync_request(table="a").SerializeToString()


@asynccontextmanager
async def over_connect(port: int, received: Received) -> AsyncIterator[None]:
    """The whole body as it is on the wire, chunks and all."""
    body = envelope(request())
    head = (
        f"POST {SERVICE}/Sync HTTP/1.1\r\nHost: localhost\r\nConnect-Protocol-Version: 1\r\n"
        f"Content-Type: application/connect+proto\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def read(stream: asyncio.StreamReader) -> None:
        await stream.readuntil(b"\r\n\r\n")
        while True:
            line = await stream.readuntil(b"\r\n")
            chunk = await stream.readexactly(int(line, 16) + 2)
            received.bytes += len(line) + len(chunk)
            received.messages += enveloped(chunk[:-2])

    stream, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    reading = asyncio.create_task(read(stream))
    yield
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    writer.close()


def enveloped(chunk: bytes) -> int:
    """Number of messages in a chunk."""
    number = at = 0
    while at < len(chunk):
        at += 5 + int.from_bytes(chunk[at + 1 : at + 5], "big")
        number += 1
    return number
