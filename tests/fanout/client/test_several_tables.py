"""Several tables over one connection: each has its own rows, listeners, readiness and error."""

import asyncio
from pathlib import Path

import psutil
import pytest

from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    BadTableName,
    ClientStopped,
    FanoutClient,
    TableIndex,
    TableNotFound,
)
from laredo_fanout.client.stream.endpoint import TransportName
from laredo_fanout.client.table.rows import Row
from laredo_model.line import Action
from tests.fanout.client.kept_copy import Server, row
from tests.fanout.client.real_server import OTHER, TABLE, Source, serving
from tests.support import drawn
from tests.support.processes import PATIENCE_S, free_port, until, wait_until

INSERT, UPDATE = Action.INSERT, Action.UPDATE
QUICK = Backoff(initial=0.01, maximum=0.05)


def connections(port: int) -> int:
    """Number of this process's connections to the port."""
    found = psutil.Process().net_connections("tcp")
    return sum(1 for one in found if one.raddr and one.raddr.port == port)


@pytest.fixture(params=drawn.first(1, ["connect", "grpc"]))
def transport(request: pytest.FixtureRequest) -> TransportName:
    return request.param


async def test_tables_of_one_client(source: Source, transport: TransportName) -> None:
    connect = free_port()
    async with serving(source, connect=connect) as grpc:
        port = connect if transport == "connect" else grpc
        client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, transport=transport)
        other = await client.follow(OTHER, indexes={"t": TableIndex(["tenant"])})
        missing = await client.follow("public.missing")
        async with client:
            await client.await_ready(PATIENCE_S)
            await other.await_ready(PATIENCE_S)
            with pytest.raises(TableNotFound):
                await missing.await_ready(PATIENCE_S)
            assert (len(client), len(other)) == (3, 0)
            await until(lambda: connections(port) == (2 if transport == "connect" else 1))
            heard: list[tuple[str, object]] = []
            for name, one in client.tables.items():
                await one.listen(lambda old, new, name=name: heard.append((name, new)))
            source.write([(INSERT, "o", "1", "t", 1)], other=True)
            await until(lambda: heard)
            source.write([(INSERT, "c", "1", "t", 2)])
            await until(lambda: len(heard) == 2)
            assert heard == [(OTHER, row("o", "1", "t", 1)), (TABLE, row("c", "1", "t", 2))]
            assert await other.lookup_index("t", "t") == [row("o", "1", "t", 1)]
            assert client.error is None and other.error is None
            assert isinstance(missing.error, TableNotFound)
            await other.stop()
            source.write([(INSERT, "c", "2", "t", 3)])
            await until(lambda: client.position == source.position)
            assert isinstance(other.error, ClientStopped) and client.error is None
        assert isinstance(client.error, ClientStopped)
        if transport == "connect":  # gRPC closes its own when its objects are collected
            await until(lambda: connections(port) == 0)


async def test_a_table_that_waits_for_its_listener_holds_up_no_other(
    source: Source, transport: TransportName
) -> None:
    connect = free_port()
    async with serving(source, connect=connect, grace=0.2) as grpc:
        port = connect if transport == "connect" else grpc
        async with AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, transport=transport) as client:
            other = await client.follow(OTHER)
            await client.await_ready(PATIENCE_S)
            await other.await_ready(PATIENCE_S)
            stuck = asyncio.Event()

            async def never(old: Row | None, new: Row | None) -> None:
                stuck.set()
                await asyncio.Event().wait()

            await client.listen(never)
            # More than any window or buffer of the connection has room for.
            wide = "x" * 1_000_000
            for number in range(20):
                source.write([(INSERT, "w", str(number), wide, number)])
            await stuck.wait()
            for number in range(10):
                source.write([(INSERT, "o", str(number), wide, number)], other=True)
            await until(lambda: len(other) == 10)
            assert len(client) < 23


def test_tables_of_one_thread_safe_client(server: Server, tmp_path: Path) -> None:
    with FanoutClient(server.address, TABLE, backoff=QUICK) as client:
        other = client.follow(OTHER, local_snapshot_path=tmp_path / "other")
        assert list(client.tables) == [TABLE, OTHER]
        assert client.tables[OTHER] is other and other.tables[TABLE] is client
        with pytest.raises(BadTableName, match="tables"):
            client.follow(OTHER)
        with pytest.raises(BadTableName):
            client.follow("other")
        client.await_ready(PATIENCE_S)
        other.await_ready(PATIENCE_S)
        server.stop()
        server.source.write([(INSERT, "o", "1", "t", 1)], other=True)
        server.source.write([(INSERT, "c", "1", "t", 1)])
        server.start()
        wait_until(lambda: other.lookup("o", "1") and client.lookup("c", "1"), "both")
    assert isinstance(other.error, ClientStopped)
    assert (tmp_path / "other").exists()
