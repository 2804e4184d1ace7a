"""TLS and tokens, against the real server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

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
from laredo_fanout.serving.options import TlsFiles
from laredo_model.line import Action
from tests.fanout.client.real_server import TABLE, Source, serving
from tests.support.processes import PATIENCE_S

PEM = Path(__file__).parent.parent / "serving" / "tls"
MUTUAL = TlsFiles(PEM / "server.pem", PEM / "server.key", PEM / "ca.pem")
OURS = Tls(PEM / "ca.pem", PEM / "client.pem", PEM / "client.key")
TOKEN = "let-me-in"
QUICK = Backoff(initial=0.01, maximum=0.05)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    source = Source(tmp_path / "store")
    source.write([(Action.INSERT, "a", "x", "acme", 1)])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    async with serving(source, tls=MUTUAL, tokens=tokens, grace=0.2) as port:
        yield port
    source.store.close()


async def test_certificate_and_token_let_in(port: int) -> None:
    async with AsyncFanoutClient(f"localhost:{port}", TABLE, tls=OURS, token=TOKEN) as client:
        await client.await_ready(PATIENCE_S)
        assert len(client) == 1
    status = await table_status(Endpoint(f"localhost:{port}", OURS, TOKEN), TABLE)
    assert (status.rows, status.entries) == (1, 1)


async def test_another_token_is_refused_for_good(port: int) -> None:
    async with AsyncFanoutClient(f"localhost:{port}", TABLE, tls=OURS, token="other") as client:
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
    port: int, tls: Tls | None
) -> None:
    client = AsyncFanoutClient(f"localhost:{port}", TABLE, tls=tls, token=TOKEN, backoff=QUICK)
    last: BaseException | None = None
    async with client, asyncio.timeout(PATIENCE_S):
        while last is None:
            with pytest.raises(NotReadyInTime) as failed:
                await client.await_ready(0.1)
            last = failed.value.last
    assert isinstance(last, ServerUnavailable)


async def test_a_certificate_under_another_name(port: int) -> None:
    tls = Tls(OURS.ca, OURS.cert, OURS.key, server_name="localhost")
    async with AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, tls=tls, token=TOKEN) as client:
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
