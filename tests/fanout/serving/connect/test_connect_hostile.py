"""Hostile or slow Connect clients: each costs the server little."""

import asyncio
import gzip
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from laredo_fanout.serving.endpoints import connect, connect_request
from laredo_fanout.serving.endpoints.connect import CallConnection
from laredo_fanout.serving.options import BufferPolicy, ServingTableOptions, TlsFiles
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.line import Action
from laredo_service.http import connections
from tests.support.processes import PATIENCE_S, until
from tests.support.server.connect_client import (
    SERVICE,
    STREAMING,
    ConnectClient,
    connect_listener,
    connected,
    envelope,
    sync_request,
)
from tests.support.server.serving_world import World, line, rows

UPDATE = Action.UPDATE
TLS = Path(__file__).parents[1] / "tls"
SERVER_TLS = TlsFiles(TLS / "server.pem", TLS / "server.key")
STATUS = wire.GetReplicationStatusRequest(schema="public", table="users")
WIDE = "w" * 200_000
DROP = ServingTableOptions(buffer_max_size=10, buffer_policy=BufferPolicy.DROP_DISCONNECT)


async def raw(client: ConnectClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", client.http.base_url.port)


async def answered(client: ConnectClient, sent: bytes) -> bytes:
    """All that the server says to these bytes before it closes."""
    reader, writer = await raw(client)
    writer.write(sent)
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def head(path: str = "Sync", method: str = "POST", version: str = "1.1", **fields: str) -> bytes:
    given = {"Host": "x", "Content-Type": STREAMING, **fields}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items()]
    return "\r\n".join([f"{method} {SERVICE}/{path} HTTP/{version}", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "names"),
    [
        (("POST", "/nope"), {}, 404, SERVICE),
        (("POST", f"{SERVICE}/Nope"), {}, 404, SERVICE),
        (("GET", f"{SERVICE}/Sync"), {}, 405, "POST"),
        (("OPTIONS", f"{SERVICE}/Sync"), {"Origin": "http://evil.example"}, 405, "POST"),
        (("POST", f"{SERVICE}/Sync"), {"Content-Type": "application/grpc"}, 415, "connect+proto"),
        (("POST", f"{SERVICE}/Sync"), {"Content-Type": "application/proto"}, 415, "connect+proto"),
        (("POST", f"{SERVICE}/ListSnapshots"), {"Content-Type": STREAMING}, 415, "json"),
        (
            ("POST", f"{SERVICE}/ListSnapshots"),
            {"Content-Type": "application/json", "Origin": "http://evil.example"},
            403,
            "Origin",
        ),
    ],
)
async def test_what_makes_no_call_is_an_http_status(
    tmp_path: Path, request_line: tuple[str, str], headers: dict[str, str], status: int, names: str
) -> None:
    async with connected(tmp_path) as (_, client):
        answer = await client.http.request(*request_line, headers=headers, content=b"{}")
        assert answer.status_code == status and names in answer.text
        assert answer.headers.get("allow") == ("POST" if status == 405 else None)
        assert ("accept-post" in answer.headers) == (status == 415)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        envelope(b"")[:-1] + b"\xff",
        envelope(b"", flags=2),
        envelope(b"", flags=0x80),
        envelope(sync_request().SerializeToString()) * 2,
        envelope(sync_request().SerializeToString()) + b"x",
        envelope(sync_request().SerializeToString(), flags=1),
        envelope(b"\xff\xff"),
    ],
    ids=range(9),
)
async def test_a_body_that_is_no_message(tmp_path: Path, body: bytes) -> None:
    async with connected(tmp_path) as (world, client):
        world.writer.publish(rows(0, 1))
        async with client.stream("Sync", b"", content=body) as stream:
            assert (await stream.ends())["code"] == "invalid_argument"


@pytest.mark.parametrize(
    "message",
    [
        gzip.compress(b"\0" * (1 << 22)),
        b"no gzip",
        gzip.compress(b"x" * 100)[:-4],
        gzip.compress(STATUS.SerializeToString()) + b"more",
    ],
    ids=["bomb", "none", "cut", "more"],
)
async def test_gzip_that_is_a_bomb_or_broken(tmp_path: Path, message: bytes) -> None:
    async with connected(tmp_path) as (_, client):
        answer = await client.unary("GetReplicationStatus", message, {"Content-Encoding": "gzip"})
        assert answer.status_code == 400 and answer.json()["code"] == "invalid_argument"


async def test_a_body_that_is_too_long(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        answer = await client.unary("GetReplicationStatus", b"x" * (connect_request.MAX_BODY + 1))
        assert answer.status_code == 413
        # Its length alone says so, or it never ends: the connection is cut.
        endless = head(Content_Length=str(1 << 40)) + b"x" * (1 << 20)
        assert len(await answered(client, endless)) < 500


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01 no http\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"431"),
        (head(version="1.0", Content_Length="0"), b"505"),
        (head(Content_Length="-1"), b"400"),
        (head(Transfer_Encoding="chunked") + b"zz\r\n", b"400"),
        (head(Transfer_Encoding="gzip"), b"501"),
        (head(Transfer_Encoding="chunked", Content_Length="3") + b"0\r\n\r\n", b"400"),
        (head(Transfer_Encoding="chunked") + b"1\r\nx\r\n" * 1000, b"400"),
        (head(Transfer_Encoding="chunked") + b"0\r\n" + b"a:\r\n" * 1000 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 1000 + b"\r\n", b"431"),
    ],
    ids=[
        *("noise", "headers", "version", "length", "chunk", "encoding"),
        *("lengths", "chunks", "trailers", "lines"),
    ],
)
async def test_what_is_no_http(tmp_path: Path, sent: bytes, status: bytes) -> None:
    async with connected(tmp_path) as (_, client):
        assert (await answered(client, sent)).split()[1] == status
        assert (await client.unary("GetReplicationStatus", STATUS)).status_code == 200


async def test_a_request_that_isnt_whole_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "REQUEST_S", 0.2)
    async with connected(tmp_path) as (_, client):
        assert await answered(client, head(Content_Length="100") + b"begun") == b""


async def test_a_connection_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "IDLE_S", 0.2)
    async with connected(tmp_path) as (_, client):
        assert await answered(client, b"") == b""


async def test_a_body_of_many_chunks(tmp_path: Path) -> None:
    chunks = b"1\r\n\0\r\n" * connections.MAX_CHUNKS + b"0\r\na: b\r\n\r\n"
    asked = head("Sync", Transfer_Encoding="chunked", Connection="close") + chunks
    async with connected(tmp_path) as (_, client):
        assert b"invalid_argument" in await answered(client, asked)


async def test_an_answer_to_head_has_no_body(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = head(method="HEAD") + head(method="HEAD", Connection="close")
    async with connected(tmp_path) as (_, client):
        first, second, rest = (await answered(client, asked)).split(b"\r\n\r\n")
    assert first.split()[1] == second.split()[1] == b"405" and rest == b""
    assert b"Content-Length: 0" not in first and caplog.records == []


class WatchedConnection(CallConnection):
    """Counts the bytes that it received, and the calls that it began; the kernel keeps little."""

    received = calls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        end = transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)

    def _begin_call(self) -> None:
        self.calls += 1
        super()._begin_call()

    @property
    def answering(self) -> bool:
        return self._call is not None


async def test_requests_wait_while_no_answer_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[WatchedConnection] = []

    def watched(*given: Any) -> WatchedConnection:
        opened.append(WatchedConnection(*given))
        return opened[-1]

    monkeypatch.setattr("laredo_fanout.serving.endpoints.connect.CallConnection", watched)
    monkeypatch.setattr(connect, "ANSWER_S", 1.0)
    monkeypatch.setattr(connect, "STUCK_S", 0.1)
    asked = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 300
    async with connected(tmp_path) as (_, client):
        with socket.socket() as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            end.connect(("127.0.0.1", client.http.base_url.port))
            sent = more = 0
            while more < 3:
                end.sendall(asked)
                sent += len(asked)
                await until(
                    lambda sent=sent: (
                        opened
                        and opened[0].received == sent
                        and (opened[0].full or not opened[0].answering)
                    )
                )
                more += opened[0].full
            await until(lambda: not opened[0].answering)
        await until(lambda: not opened[0].full)
        assert opened[0].calls * len(asked) // 300 < sent - 2 * len(asked)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_beyond_the_limit_the_connection_that_is_idle_longest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    monkeypatch.setattr("laredo_fanout.serving.endpoints.connect.connect_connections", lambda: 3)
    listener = connect_listener(tls=SERVER_TLS if encrypted else None)
    async with connected(tmp_path, listener=listener, users=1) as (_, plain):
        context = ssl.create_default_context(cafile=TLS / "ca.pem")
        trust = {"verify": context} if encrypted else {}
        client = ConnectClient(plain.http.base_url.port or 0, **trust)
        async with client.http, client.sync() as stream:
            await stream.next("handshake")
            begun = [await raw(client) for _ in range(20)]
            for _, writer in begun:
                writer.write(b"\x16" if encrypted else b"POST ")
            for reader, writer in begun[:18]:
                with suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
                writer.close()
            assert (await client.unary("GetReplicationStatus", STATUS)).status_code == 200
            assert not begun[19][0].at_eof()
            await stream.next()
            for _, writer in begun[18:]:
                writer.close()


async def test_bytes_during_a_stream_are_bounded(tmp_path: Path) -> None:
    async with connected(tmp_path, users=1) as (world, client):
        body = envelope(sync_request().SerializeToString())
        reader, writer = await raw(client)
        writer.write(head(Content_Length=str(len(body))) + body)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        await until(lambda: world.registry.leases)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    writer.write(b"y" * 65536)
                    await writer.drain()
        await until(lambda: world.registry.closed == [("test", "client")])


async def flood(world: World) -> None:
    """Wide transactions, until a client that doesn't read is stuck."""
    number = 0
    while not world.registry.closed:
        number += 1
        world.writer.commit((UPDATE, line(1, WIDE + str(number))))
        await asyncio.sleep(0.005)


async def test_a_client_that_reads_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "STUCK_S", 0.2)
    async with connected(tmp_path, table=DROP, users=3) as (world, client):
        body = envelope(sync_request(batch=True, client_id="slow").SerializeToString())
        reader, writer = await raw(client)
        writer.write(head(Content_Length=str(len(body))) + body)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        await until(lambda: any(each.state.state == "live" for each in world.registry.leases))
        async with client.sync(batch=True, client_id="quick") as quick:

            async def read_on() -> None:
                while True:
                    await quick.next()

            reading = asyncio.create_task(read_on())
            await asyncio.wait_for(flood(world), PATIENCE_S)
            assert world.registry.closed == [("slow", "buffer")]
            assert not reading.done()
            reading.cancel()
        assert await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()


async def test_a_slow_client_is_told_why_it_was_let_go(tmp_path: Path) -> None:
    async with connected(tmp_path, table=DROP) as (world, client):
        world.writer.publish(rows(0, 3))
        async with client.sync(batch=True, client_id="slow") as stream:
            while not isinstance(await stream.next(), wire.SnapshotEnd):
                pass
            await until(lambda: any(each.state.state == "live" for each in world.registry.leases))
            await asyncio.wait_for(flood(world), PATIENCE_S)
            error = await stream.ends()
        assert error["code"] == "resource_exhausted" and "'slow'" in error["message"]


async def test_many_messages_to_a_client_that_pauses_arrive_whole(tmp_path: Path) -> None:
    async with connected(tmp_path) as (world, client):
        world.writer.publish(rows(0, 20_000))
        async with client.sync() as stream:
            await stream.next("handshake")
            await stream.next("snapshot_begin")
            seen = []
            while isinstance(message := await stream.next(), wire.SnapshotRow):
                seen.append(int(message.row["id"]))
                if len(seen) % 4_000 == 0:
                    await asyncio.sleep(0.05)
            assert sorted(seen) == list(range(20_000)) and message.rows_sent == 20_000


async def test_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("good\nother public.nothing\n")
    listener = connect_listener(tokens_file=tokens)
    async with connected(tmp_path / "s", listener=listener, users=1) as (_, client):

        async def asked(authorization: str) -> tuple[int, str]:
            headers = {"Authorization": authorization} if authorization else {}
            answer = await client.unary("GetReplicationStatus", STATUS, headers)
            async with client.stream("Sync", sync_request(), headers) as stream:
                if answer.status_code == 200:
                    await stream.next("handshake")
                    return 200, ""
                code: str = (await stream.ends())["code"]
                assert answer.json()["code"] == code
                return answer.status_code, code

        assert await asked("Bearer good") == (200, "")
        assert await asked("") == (401, "unauthenticated")
        assert await asked("Bearer wrong") == (401, "unauthenticated")
        assert await asked("Bearer other") == (403, "permission_denied")
        # Whoever may not call has nothing unpacked or parsed.
        nothing = await client.unary("GetReplicationStatus", b"x", {"Content-Encoding": "br"})
        assert nothing.status_code == 401
        good = {"Authorization": "Bearer good"}
        async with client.stream("Sync", sync_request(), good) as stream:
            await stream.next("handshake")
            tokens.write_text("another\n")
            assert (await stream.ends())["code"] == "unauthenticated"
