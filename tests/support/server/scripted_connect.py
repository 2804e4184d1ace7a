"""Plays the scripts of a scripted server by the Connect protocol, over HTTP/1.1."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import orjson

from laredo_fanout.wire import replication_pb2 as wire

Play = Callable[[wire.SyncRequest, dict[str, str]], AsyncIterator[wire.SyncResponse]]


class Aborted(Exception):
    """The stream ends with this status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def chunk(content: bytes, flags: int = 0) -> bytes:
    """A message in its envelope, as a chunk."""
    size = len(content)
    return b"%x\r\n%b%b%b\r\n" % (size + 5, bytes([flags]), size.to_bytes(4, "big"), content)


def end(error: Aborted | None) -> bytes:
    """The end of a stream, and of the body."""
    found = {}
    if error is not None:
        name = "canceled" if error.code is grpc.StatusCode.CANCELLED else error.code.name.lower()
        found = {"error": {"code": name, "message": str(error)}}
    return chunk(orjson.dumps(found), 2) + b"0\r\n\r\n"


@asynccontextmanager
async def playing_connect(play: Play) -> AsyncIterator[int]:
    """A server on loopback; gives its port."""
    calls: set[asyncio.Task[None]] = set()

    async def answer(
        request: wire.SyncRequest, headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        writer.write(HEAD)
        error: Aborted | None = None
        try:
            async for message in play(request, headers):
                writer.write(chunk(message.SerializeToString()))
                await writer.drain()
        except Aborted as aborted:
            error = aborted
        writer.write(end(error))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.create_task(answer(*await _request(reader), writer))
        calls.add(call)
        leaving = asyncio.create_task(_left(reader, call))
        with suppress(asyncio.CancelledError, OSError):
            await call
        leaving.cancel()
        calls.discard(call)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for call in list(calls):
            call.cancel()
        while calls:
            await asyncio.sleep(0.001)


async def _request(reader: asyncio.StreamReader) -> tuple[wire.SyncRequest, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    assert head[0] == "POST /laredo.replication.v1.LaredoReplicationService/Sync HTTP/1.1"
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    assert headers["content-type"] == "application/connect+proto"
    assert headers["connect-protocol-version"] == "1"
    body = await reader.readexactly(int(headers["content-length"]))
    assert body[0] == 0 and int.from_bytes(body[1:5], "big") == len(body) - 5
    return wire.SyncRequest.FromString(body[5:]), headers


async def _left(reader: asyncio.StreamReader, call: "asyncio.Task[None]") -> None:
    """A connection that the client closes cancels its call."""
    with suppress(OSError):
        await reader.read(1)
    call.cancel()
