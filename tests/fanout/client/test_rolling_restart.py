"""Servers that are restarted in turn, under load: clients resume, without a snapshot."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count

import pytest
from structlog.testing import capture_logs

from laredo_fanout.client import AsyncFanoutClient
from laredo_fanout.client.stream.endpoint import TransportName
from laredo_model.line import Action
from tests.fanout.client.real_server import TABLE, Source, serving
from tests.support import drawn
from tests.support.processes import PATIENCE_S, free_port, until

UPDATE = Action.UPDATE
RESTARTS = 5
CLIENTS = 3


@pytest.mark.parametrize(
    ("transport", "overlapping"),
    drawn.first(1, [("connect", True), ("grpc", True), ("connect", False), ("grpc", False)]),
)
async def test_restarts_under_load_cost_no_snapshot(
    source: Source, transport: TransportName, overlapping: bool
) -> None:
    """The next server takes the port before the old one drains, or only when it has ended."""
    port, connect = free_port(), free_port()
    heard: list[list[int]] = [[] for _ in range(CLIENTS)]
    clients = [
        AsyncFanoutClient(
            f"127.0.0.1:{connect if transport == 'connect' else port}", TABLE, transport=transport
        )
        for _ in range(CLIENTS)
    ]
    written: list[int] = []
    server = AsyncExitStack()
    await server.enter_async_context(serving(source, port, connect=connect))
    with capture_logs() as logs:
        for client, sizes in zip(clients, heard, strict=True):
            await client.start()
            await client.await_ready(PATIENCE_S)
            await client.listen(lambda old, new, sizes=sizes: sizes.append(new["size"]))
        writing = asyncio.create_task(write_for_ever(source, written))
        for restart in range(1, RESTARTS + 1):
            if overlapping:
                following = AsyncExitStack()
                await following.enter_async_context(serving(source, port, connect=connect))
                await server.aclose()
                server = following
            else:
                await server.aclose()
                await server.enter_async_context(serving(source, port, connect=connect))
            await until(lambda restart=restart: modes(logs).count("DELTA") >= restart * CLIENTS)
        writing.cancel()
        await asyncio.wait([writing])
        # Each change once, in order.
        await until(lambda: all(sizes[-1:] == written[-1:] for sizes in heard))
        assert heard == [written] * CLIENTS
        for client in clients:
            await client.stop()
    await server.aclose()
    assert modes(logs).count("FULL_SNAPSHOT") == CLIENTS
    assert set(modes(logs)) == {"FULL_SNAPSHOT", "DELTA"}


def modes(logs: list[dict[str, object]]) -> list[object]:
    """Mode of each stream's handshake."""
    return [entry["mode"] for entry in logs if entry["event"] == "connected"]


async def write_for_ever(source: Source, written: list[int]) -> None:
    for number in count(2):
        source.write([(UPDATE, "a", "x", "acme", number)])
        written.append(number)
        await asyncio.sleep(0.002)
