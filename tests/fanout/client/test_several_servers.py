"""A list of servers: which one is asked when, and what each was asked for."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from structlog.testing import capture_logs

from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    Endpoint,
    GaveUp,
    Handshake,
    NotReadyInTime,
    Subscription,
    SyncOptions,
    TableNotFound,
)
from laredo_fanout.client.stream import servers
from laredo_fanout.client.stream.endpoint import TransportName
from laredo_model.line import Action
from laredo_model.position import Position
from tests.fanout.client.real_server import TABLE, Source, serving
from tests.fanout.client.scripted_replica import CUT
from tests.support.processes import PATIENCE_S, free_port
from tests.support.server import scripted_server
from tests.support.server.scripted_server import (
    End,
    Hold,
    Script,
    Scripted,
    go_away,
    handshake,
    heartbeat,
    playing,
    snapshot,
)

QUICK = Backoff(initial=0.001, maximum=0.01)
OPTIONS = SyncOptions("public.users", "test-client", position=Position(0x20))
RESUMED: Script = [handshake("DELTA"), heartbeat(5, "0/50"), Hold()]
NOT_READY: Script = [End(grpc.StatusCode.FAILED_PRECONDITION, "still copying")]
BEHIND: Script = [End(grpc.StatusCode.UNAVAILABLE, "behind")]
NO_TABLE: Script = [End(grpc.StatusCode.NOT_FOUND, "no such table")]
SNAPSHOT: Script = [handshake(), *snapshot({}, "0/60", 9), Hold()]


pytestmark = pytest.mark.usefixtures("transport")


@asynccontextmanager
async def listed(*scripts: Sequence[Script]) -> AsyncIterator[tuple[Endpoint, list[Scripted]]]:
    """A server for each list of scripts, and the endpoint that has all of them in this order."""
    async with AsyncExitStack() as stack:
        played = [await stack.enter_async_context(playing(*each)) for each in scripts]
        endpoints = [endpoint for endpoint, _ in played]
        others = tuple(endpoint.server for endpoint in endpoints[1:])
        yield replace(endpoints[0], others=others), [server for _, server in played]


async def until_heartbeats(subscription: Subscription, many: int = 1) -> list[str]:
    """Follow it until so many servers have sent a handshake and an event after it; their names."""
    found = []
    async with asyncio.timeout(PATIENCE_S), subscription as events:
        async for event in events:
            if not isinstance(event, Handshake):
                found.append(subscription.server)
                if len(found) == many:
                    return found
    raise AssertionError("the subscription ended")


@pytest.mark.parametrize("trouble", [[CUT], NOT_READY, BEHIND, NO_TABLE, SNAPSHOT])
async def test_the_next_of_the_list_is_resumed_from(trouble: Script) -> None:
    async with listed([trouble], [RESUMED]) as (endpoint, (first, second)):
        found = await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK))
    assert found == [endpoint.others[0]]
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert second.requests[0].last_known_source_position == "0/20"


async def test_nobody_listens_at_the_first_two(transport: TransportName) -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    async with playing(RESUMED) as (endpoint, _):
        every = replace(endpoint, server=dead[0], others=(dead[1], endpoint.server))
        with capture_logs() as logs:
            found = await until_heartbeats(Subscription(every, OPTIONS, backoff=QUICK))
    assert found == [endpoint.server]
    lost = [entry["server"] for entry in logs if entry["event"] == "disconnected"]
    assert lost == dead


async def test_a_server_that_drains_is_left_for_the_next_one() -> None:
    deadline = int((time.time() + 3600) * 1000)
    drained: Script = [handshake("DELTA"), heartbeat(5, "0/50"), go_away(deadline), Hold()]
    async with listed([drained], [RESUMED]) as (endpoint, (first, second)):
        names = await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK), 3)
    assert names[0] == endpoint.server and names[-1] == endpoint.others[0]
    assert len(first.requests) == 1
    assert second.requests[0].last_known_source_position == "0/50"


async def test_a_server_that_never_answers_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_ANSWER_S", 0.3)
    async with listed([[Hold()]], [RESUMED]) as (endpoint, _):
        with capture_logs() as logs:
            found = await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK))
    assert found == [endpoint.others[0]]
    (lost,) = (entry for entry in logs if entry["event"] == "disconnected")
    assert (lost["server"], lost["error"]) == (
        endpoint.server,
        "no answer within 0.3 s of the request",
    )


async def test_it_stays_with_the_server_that_serves_and_comes_back_round() -> None:
    cut: Script = [handshake("DELTA"), heartbeat(5, "0/50"), CUT]
    async with listed([cut, RESUMED], [cut], [cut]) as (endpoint, _):
        found = await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK), 4)
    assert found == [*endpoint.servers, endpoint.server]


async def test_a_snapshot_is_taken_if_nobody_can_resume() -> None:
    async with listed([SNAPSHOT], [NO_TABLE, SNAPSHOT], [SNAPSHOT]) as (endpoint, all_servers):
        found = await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK))
    assert found == [endpoint.servers[2]]
    assert [len(server.requests) for server in all_servers] == [1, 1, 1]


async def test_a_snapshot_is_taken_if_who_could_resume_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_RESUME_S", 0.5)
    async with listed([[CUT]], [SNAPSHOT]) as (endpoint, (first, second)):
        found = await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK))
    assert found == [endpoint.others[0]]
    assert len(first.requests) > 1 and len(second.requests) > 1


async def test_what_all_of_them_refuse_is_raised() -> None:
    async with listed([NO_TABLE], [NO_TABLE]) as (endpoint, (first, second)):
        with pytest.raises(TableNotFound, match="no such table") as raised:
            await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=QUICK))
    assert raised.value.server == endpoint.others[0]
    assert len(first.requests) == len(second.requests) == 1


async def test_the_bound_of_attempts_is_for_the_whole_list() -> None:
    twice = Backoff(initial=0.001, maximum=0.01, attempts=2)
    async with listed([[CUT]], [NO_TABLE]) as (endpoint, (first, second)):
        with capture_logs() as logs, pytest.raises(GaveUp) as raised:
            await until_heartbeats(Subscription(endpoint, OPTIONS, backoff=twice))
    assert f"gave up on {', '.join(endpoint.servers)} after 2 attempts" in str(raised.value)
    assert len(first.requests) == len(second.requests) == 2
    # One line for each server's state.
    lost = [
        entry["server"]
        for entry in logs
        if entry["event"] == "disconnected" and entry["log_level"] == "warning"
    ]
    assert lost == list(endpoint.servers)


async def test_a_client_goes_from_one_to_the_other_without_a_snapshot(
    source: Source, transport: TransportName
) -> None:
    """It has each change once, in order."""
    ports = [(free_port(), free_port()) for _ in range(2)]
    number = transport == "connect"
    addresses = [f"127.0.0.1:{each[number]}" for each in ports]
    heard: list[int] = []
    client = AsyncFanoutClient(addresses, TABLE, transport=transport)
    assert client.server is None
    with capture_logs() as logs:
        for turn, (port, connect) in enumerate([*ports, *ports]):
            async with serving(source, port, connect=connect):
                if not turn:
                    await client.start()
                    await client.await_ready(PATIENCE_S)
                    await client.listen(lambda old, new: heard.append(new["size"]))
                source.write([(Action.UPDATE, "a", "x", "acme", 100 + turn)])
                async with asyncio.timeout(PATIENCE_S):
                    while heard[-1:] != [100 + turn]:
                        await asyncio.sleep(0.01)  # poll
                assert client.server == addresses[turn % 2]
    with pytest.raises(NotReadyInTime, match=", ".join(addresses)):
        absent = AsyncFanoutClient(addresses, TABLE, transport=transport)
        async with absent:
            await absent.await_ready(0.3)
    await client.stop()
    assert heard == [100, 101, 102, 103]
    modes = [entry["mode"] for entry in logs if entry["event"] == "connected"]
    assert modes[:4] == ["FULL_SNAPSHOT", "DELTA", "DELTA", "DELTA"]


@pytest.mark.parametrize("form", ["ipv4:{},{}", "dns:///{}"])
async def test_grpc_s_own_names(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_server, "by_transport", "grpc")
    async with playing(RESUMED) as (endpoint, _):
        dead = f"127.0.0.1:{free_port()}"
        address = form.format(*([dead] * (form.count("{}") - 1)), endpoint.server)
        found = await until_heartbeats(Subscription(Endpoint(address), OPTIONS, backoff=QUICK))
    assert found == [address]
