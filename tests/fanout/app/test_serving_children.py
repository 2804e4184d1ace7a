"""Real serving processes over a store that the test writes: started, killed, drained, counted."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from laredo_fanout.app.processes import children as children_
from laredo_fanout.client import (
    Changes,
    Crowded,
    Endpoint,
    GoAway,
    Handshake,
    SnapshotEnd,
    Subscription,
    SyncOptions,
    open_stream,
)
from laredo_fanout.serving.options import ListenerOptions, ServingOptions
from laredo_fanout.store.writer import Store
from laredo_model.line import Action
from tests.fanout.app.running_server import running, serving_children
from tests.support.processes import PATIENCE_S, until
from tests.support.server.serving_world import USERS, line

INSERT = Action.INSERT


async def read_until(events: Subscription, kind: type, timeout: float = PATIENCE_S) -> object:
    async with asyncio.timeout(timeout):
        async for event in events:
            if isinstance(event, kind):
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def test_a_commit_wakes_the_clients_of_every_process(tmp_path: Path) -> None:
    async with running(tmp_path, workers=2) as world:
        async with world.subscription("a") as first, world.subscription("b") as second:
            for events in (first, second):
                end = await read_until(events, SnapshotEnd)
                assert isinstance(end, SnapshotEnd) and end.rows == 10
            for number in range(10, 15):
                position = world.writer.commit((INSERT, line(number)))
                for events in (first, second):
                    changes = await read_until(events, Changes)
                    assert isinstance(changes, Changes)
                    assert list(changes.positions) == [position]
            await until(
                lambda: (
                    {(c.info.client_id, c.state) for c in world.clients.of(USERS)}
                    == {("a", "live"), ("b", "live")}
                )
            )
            sequence = next(iter(world.writer.store.tables.values())).sequence
            await until(lambda: all(c.sequence == sequence for c in world.clients.of()))
        await until(lambda: len(world.clients) == 0)
        assert world.clients.left()["client"] == 2


async def test_max_clients_counts_over_processes(tmp_path: Path) -> None:
    async with running(tmp_path, workers=3, max_clients=4) as world:
        subscriptions = [world.subscription(str(number)) for number in range(4)]
        for each in subscriptions:
            await each.__aenter__()
            await read_until(each, Handshake)
        endpoint = Endpoint(f"127.0.0.1:{world.port}")
        for _ in range(6):
            with pytest.raises(Crowded, match="4 clients"):
                async with open_stream(endpoint, SyncOptions(USERS, "one-more")) as events:
                    await anext(events)
        for each in subscriptions:
            await each.__aexit__(None, None, None)
        async with world.subscription("late") as events:
            await read_until(events, Handshake)


async def test_drain_says_goaway_and_ends_the_processes(tmp_path: Path) -> None:
    async with running(tmp_path, workers=2, grace=600.0) as world:
        pids = world.children.pids
        endpoint = Endpoint(f"127.0.0.1:{world.port}")
        async with open_stream(endpoint, SyncOptions(USERS, "a")) as events:
            draining: asyncio.Task[None] | None = None
            async with asyncio.timeout(PATIENCE_S):
                async for event in events:
                    if isinstance(event, SnapshotEnd):
                        draining = asyncio.create_task(world.children.drain())
                    if isinstance(event, GoAway):
                        break
        assert draining is not None
        # The client has left: nobody waits for the grace.
        await asyncio.wait_for(draining, PATIENCE_S)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert world.children.restarts == 0


async def test_readiness_that_changes_while_a_process_starts_does_not_end_it(
    tmp_path: Path,
) -> None:
    with Store.open(tmp_path / "state", max_size=1 << 28) as store:
        options = ServingOptions(ListenerOptions("127.0.0.1", 0))
        children = serving_children(store.path, options)
        children.start()
        try:
            await until(lambda: bool(children.pids))
            assert not children.listening, "it changes too late to show anything"
            children.update_ready(True)
            await until(lambda: children.listening == 1)
            assert children.restarts == 0
        finally:
            await children.drain()


async def test_what_keeps_a_process_from_serving_is_told(tmp_path: Path) -> None:
    with Store.open(tmp_path / "state", max_size=1 << 28) as store:
        options = ListenerOptions("127.0.0.1", 0, tokens_file=tmp_path / "nosuch")
        children = serving_children(store.path, ServingOptions(options))
        children.start()
        try:
            await until(lambda: children.error)
            assert "nosuch" in (children.error or "")
            assert children.listening == 0
        finally:
            await children.drain()


async def test_a_port_that_is_given_back_soon_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]
    tries: list[object] = []
    bind = socket.socket.bind

    def counted(each: socket.socket, address: tuple[str, int]) -> None:
        tries.append(address)
        bind(each, address)

    monkeypatch.setattr(socket.socket, "bind", counted)
    reserving = asyncio.create_task(children_.reserve("127.0.0.1", port, "a.b"))
    await until(lambda: len(tries) > 1 or reserving.done())  # the first one failed
    assert not reserving.done()
    other.close()
    with await asyncio.wait_for(reserving, PATIENCE_S) as held:
        assert held.getsockname()[1] == port
