"""Clients by the Connect protocol: framing, the real server, and answers that aren't its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laredo_fanout.client import (
    AsyncFanoutClient,
    Backoff,
    BadEndpoint,
    Endpoint,
    FanoutClient,
    NotAReplicationServer,
    NotReadyInTime,
    ProtocolViolation,
    ServerUnavailable,
    StreamBroken,
    StreamError,
    SyncOptions,
    TableNotFound,
    Tls,
    Unauthenticated,
    open_stream,
    table_status,
)
from laredo_fanout.client.stream.connect_transport import BadFraming, ChunkedBody, Envelopes
from tests.fanout.client.real_server import TABLE, Source, serving
from tests.support.processes import PATIENCE_S, free_port
from tests.support.server.scripted_connect import HEAD, chunk, end
from tests.support.server.scripted_server import handshake, heartbeat

OPTIONS = SyncOptions(TABLE, "test")
QUICK = Backoff(initial=0.01, maximum=0.05)


# ------------------------------------------------------------------ the framing


@given(
    messages=st.lists(st.binary(max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    chunks=st.lists(st.integers(1, 60), max_size=8),
)
def test_messages_arrive_however_their_bytes_are_cut(
    messages: list[bytes], cuts: list[int], chunks: list[int]
) -> None:
    """Neither the reads nor a proxy's chunks need to agree with the messages."""
    body = b"".join(b"\0" + len(one).to_bytes(4, "big") + one for one in messages)
    wire_, start = b"", 0
    for size in [*chunks, len(body) + 1]:
        if piece := body[start : start + size]:
            wire_ += b"%X;ext=1\r\n%b\r\n" % (len(piece), piece)
        start += size
    wire_ += b"0\r\nTrailer: x\r\n\r\n"
    chunked, envelopes, found = ChunkedBody(), Envelopes(), []
    edges = sorted({0, len(wire_), *(cut for cut in cuts if cut < len(wire_))})
    for begin, stop in pairwise(edges):
        found += envelopes.feed(chunked.feed(wire_[begin:stop]))
    assert [one.content for one in found] == messages
    assert chunked.ended


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n",
        b"-1\r\nab",
        b"+2\r\nab\r\n",
        b"0x2\r\nab\r\n",
        b"2\r\nabc\r\n",
        b"\r\n",
        b"f" * 2000,
    ],
)
def test_what_is_not_chunked_is_refused(body: bytes) -> None:
    with pytest.raises(BadFraming):
        ChunkedBody().feed(body)


# ------------------------------------------------------------------ the real server


@pytest.fixture
async def connect_port(source: Source) -> AsyncIterator[int]:
    port = free_port()
    async with serving(source, connect=port):
        yield port


async def test_the_status_by_connect(connect_port: int) -> None:
    endpoint = Endpoint(f"127.0.0.1:{connect_port}", transport="connect")
    status = await table_status(endpoint, TABLE)
    assert (status.rows, status.entries) == (3, 3)
    with pytest.raises(TableNotFound, match=r"public\.missing"):
        await table_status(endpoint, "public.missing")
    with pytest.raises(TableNotFound, match=r"public\.missing"):
        async with open_stream(endpoint, SyncOptions("public.missing", "test")) as events:
            await anext(events)


async def test_files_and_tokens_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    client = AsyncFanoutClient(
        "localhost:4003", TABLE, tls=Tls(tmp_path / "broken.pem"), transport="connect"
    )
    with pytest.raises(BadEndpoint, match="tls"):
        await client.start()
    with pytest.raises(BadEndpoint, match="transport"):
        FanoutClient("localhost:4003", TABLE, transport="http")  # type: ignore[arg-type]


# ------------------------------------------------------------------ others' answers


@asynccontextmanager
async def answering(*parts: bytes | float) -> AsyncIterator[Endpoint]:
    """A server that answers whatever is asked by these bytes, then closes; a 0 keeps it open."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                if isinstance(part, bytes):
                    writer.write(part)
                    await writer.drain()
                else:
                    await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Endpoint(f"127.0.0.1:{port}", transport="connect", silence_s=0.02)


async def reading(endpoint: Endpoint) -> Sequence[object]:
    async with asyncio.timeout(PATIENCE_S), open_stream(endpoint, OPTIONS) as events:
        return [event async for event in events]


GREETING = chunk(handshake("DELTA").SerializeToString())
BEAT = chunk(heartbeat(5, "0/50").SerializeToString())


def plain(status: int, body: bytes, kind: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (plain(404, b"there is no such call"), NotAReplicationServer, "there is no such call"),
        (plain(502, b"bad gateway"), ServerUnavailable, "HTTP status 502"),
        # An answer without a length ends with its connection.
        (b"HTTP/1.1 502 X\r\n\r\nbad gateway", ServerUnavailable, "bad gateway"),
        (plain(200, b"<html>", "text/html"), NotAReplicationServer, "text/html"),
        (plain(401, b""), Unauthenticated, "401"),
        (
            plain(403, b'{"code":"unauthenticated","message":"who?"}', "application/json"),
            Unauthenticated,
            "who",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", NotAReplicationServer, "4003"),
        (b"", ServerUnavailable, "closed"),
        (b"HT", ServerUnavailable, "lost"),
        (HEAD[:30], ServerUnavailable, "lost"),
        (HEAD + GREETING, ServerUnavailable, "lost"),
        (HEAD + GREETING + b"0\r\n\r\n", StreamBroken, "end"),
        (HEAD + GREETING + chunk(b"{", 2), ProtocolViolation, "JSON"),
        (HEAD + GREETING + chunk(b"\xff\xff"), ProtocolViolation, "SyncResponse"),
        (HEAD + GREETING + chunk(b"", 1), ProtocolViolation, "0x1"),
        (HEAD + b"what\r\n", ProtocolViolation, "chunk"),
        (HEAD + chunk(b'{"error":{"code":"new_code"}}', 2), StreamBroken, "UNKNOWN"),
        (HEAD + chunk(b'{"error":"so"}', 2), StreamBroken, "UNKNOWN"),
    ],
)
async def test_each_answer_is_an_error_that_says_what_came(
    answer: bytes, kind: type[StreamError], words: str
) -> None:
    async with answering(answer) as endpoint:
        with pytest.raises(kind, match=words) as raised:
            await reading(endpoint)
    assert type(raised.value) is kind


async def test_a_body_without_chunks_is_read_too() -> None:
    """An HTTP/1.1 proxy may send a stream on until it closes."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\n\r\n"
    body = ChunkedBody().feed(GREETING + BEAT + end(None))
    async with answering(head, body[:30], body[30:]) as endpoint:
        assert len(await reading(endpoint)) == 2


async def test_a_server_that_stands_still_is_noticed_by_its_missing_heartbeats() -> None:
    async with answering(HEAD + GREETING + BEAT, 0) as endpoint:
        with pytest.raises(ServerUnavailable, match="heartbeat"):
            await reading(endpoint)


async def test_a_client_gives_up_on_no_port_of_connect(port: int) -> None:
    """gRPC's port is named wrongly: the error says so, and where Connect's is."""
    client = AsyncFanoutClient(f"127.0.0.1:{port}", TABLE, transport="connect", backoff=QUICK)
    async with client:
        with pytest.raises((NotAReplicationServer, NotReadyInTime)) as failed:
            await client.await_ready(PATIENCE_S)
    assert "4003" in str(failed.value)
