"""TLS and tokens, against the real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    BadEndpoint,
    Endpoint,
    NotReadyInTime,
    ServerUnavailable,
    Tls,
    Unauthenticated,
    table_status,
)
from laredo_fanout.client.stream.endpoint import TransportName
from laredo_fanout.serving.options import TlsFiles
from laredo_model.line import Action
from tests.fanout.client.real_server import TABLE, Source, serving
from tests.support.processes import PATIENCE_S, free_port

PEM = Path(__file__).parent.parent / "serving" / "tls"
MUTUAL = TlsFiles(PEM / "server.pem", PEM / "server.key", PEM / "ca.pem")
OURS = Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "client.key")
TOKEN = "let-me-in"
QUICK = Backoff(initial=0.01, maximum=0.05)


@pytest.fixture
async def port(tmp_path: Path, transport: TransportName) -> AsyncIterator[int]:
    source = Source(tmp_path / "store")
    source.write([(Action.INSERT, "a", "x", "acme", 1)])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    connect = free_port()
    async with serving(source, tls=MUTUAL, tokens=tokens, connect=connect, grace=0.2) as grpc:
        yield connect if transport == "connect" else grpc
    source.store.close()


Reach = Callable[..., AsyncFanoutClient]


@pytest.fixture
def reach(port: int, transport: TransportName) -> Reach:
    """Make a client of the server, by default with the right certificates and token."""

    def client(host: str = "localhost", **given: Any) -> AsyncFanoutClient:
        given = {"tls": OURS, "token": TOKEN, "backoff": QUICK, **given}
        return AsyncFanoutClient(f"{host}:{port}", TABLE, transport=transport, **given)

    return client


async def test_certificate_and_token_let_in(
    reach: Reach, port: int, transport: TransportName
) -> None:
    async with reach() as client:
        await client.await_ready(PATIENCE_S)
        assert len(client) == 1
    endpoint = Endpoint(f"localhost:{port}", OURS, TOKEN, transport=transport)
    status = await table_status(endpoint, TABLE)
    assert (status.rows, status.entries) == (1, 1)


async def test_another_token_is_refused_for_good(reach: Reach) -> None:
    async with reach(token="other") as client:
        with pytest.raises(Unauthenticated):
            await client.await_ready(PATIENCE_S)


@pytest.mark.parametrize(
    "tls",
    [
        None,
        Tls(PEM / "ca.pem"),
        Tls(PEM / "ca.pem", PEM / "stranger.pem", PEM / "stranger.key"),
        Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "client.key", server_name="elsewhere"),
    ],
)
async def test_without_the_right_certificates_there_is_no_way_in(
    reach: Reach, tls: Tls | None
) -> None:
    client = reach(tls=tls)
    last: BaseException | None = None
    async with client, asyncio.timeout(PATIENCE_S):
        while last is None:
            with pytest.raises(NotReadyInTime) as failed:
                await client.await_ready(0.1)
            last = failed.value.last
    assert isinstance(last, ServerUnavailable)


async def test_a_certificate_under_another_name(reach: Reach) -> None:
    tls = Tls(OURS.ca, OURS.cert, OURS.key, server_name="localhost")
    async with reach("127.0.0.1", tls=tls) as client:
        await client.await_ready(PATIENCE_S)


@pytest.mark.parametrize(
    ("tls", "names"),
    [
        (Tls(PEM / "none.pem"), r"ca .*none\.pem"),
        (Tls(PEM / "README.md"), r"README\.md is not a PEM file"),
        (Tls(PEM / "ca.pem", cert=PEM / "client.pem"), "cert and key belong together"),
    ],
)
async def test_files_that_cannot_be_used_are_told_at_the_start(tls: Tls, names: str) -> None:
    with pytest.raises(BadEndpoint, match=names):
        await AsyncFanoutClient("localhost:1", TABLE, tls=tls).start()


async def test_a_file_that_vanishes_later_is_waited_for(
    tmp_path: Path, transport: TransportName
) -> None:
    """As in a rotation that isn't atomic."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes((PEM / "ca.pem").read_bytes())
    given: dict[str, Any] = {"tls": Tls(ca), "transport": transport}
    last: BaseException | None = None
    async with AsyncFanoutClient("localhost:1", TABLE, backoff=QUICK, **given) as client:
        ca.unlink()
        async with asyncio.timeout(PATIENCE_S):
            while "can't read ca" not in str(last):
                with pytest.raises(NotReadyInTime) as failed:
                    await client.await_ready(0.1)
                last = failed.value.last
    assert isinstance(last, ServerUnavailable)
    with pytest.raises(ServerUnavailable, match="can't read ca"):
        await table_status(Endpoint("localhost:1", **given), TABLE)
