"""A Connect client of the tests, over httpx: each byte of a call can be another one."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
from google.protobuf.message import Message

from laredo_fanout.serving.options import ConnectOptions, ListenerOptions
from laredo_fanout.wire import replication_pb2 as wire
from tests.support.processes import PATIENCE_S, free_port
from tests.support.server.serving_world import World, running

SERVICE = "/laredo.replication.v1.LaredoReplicationService"
STREAMING = "application/connect+proto"
UNARY = "application/proto"


def envelope(message: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(message).to_bytes(4, "big") + message


def sync_request(**asked: Any) -> wire.SyncRequest:
    """Schema, table and client_id have defaults, ``batch`` asks for the extension."""
    if asked.pop("batch", False):
        asked["capabilities"] = ["batch/json.v1"]
    return wire.SyncRequest(**{"schema": "public", "table": "users", "client_id": "test", **asked})


def connect_listener(**options: Any) -> ListenerOptions:
    """gRPC on any port, Connect on a free one."""
    connect = ConnectOptions("127.0.0.1", free_port())
    given = {"drain_grace_s": 0.5, **options}
    return ListenerOptions("127.0.0.1", 0, connect=connect, **given)


@asynccontextmanager
async def connected(path: Path, **options: Any) -> AsyncIterator[tuple[World, ConnectClient]]:
    """A server with both ports, and a client of the second one; no table is live yet."""
    listener = options.pop("listener", None) or connect_listener()
    async with running(path, listener=listener, **options) as world:
        client = ConnectClient(listener.connect.port)
        try:
            yield world, client
        finally:
            await client.http.aclose()


class ConnectClient:
    """One HTTP client; it keeps its connections for the next call."""

    def __init__(self, port: int, **http: Any) -> None:
        scheme = "https" if "verify" in http else "http"
        self.http = httpx.AsyncClient(
            base_url=f"{scheme}://localhost:{port}", timeout=PATIENCE_S, **http
        )

    async def unary(
        self, name: str, request: Message | bytes, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        body = request if isinstance(request, bytes) else request.SerializeToString()
        return await self.http.post(
            f"{SERVICE}/{name}",
            content=body,
            headers={"Content-Type": UNARY, "Connect-Protocol-Version": "1", **(headers or {})},
        )

    @asynccontextmanager
    async def stream(
        self,
        name: str,
        request: Message | bytes,
        headers: Mapping[str, str] | None = None,
        *,
        content: Any = None,
    ) -> AsyncIterator[ConnectStream]:
        """A call; ``content`` replaces the whole body."""
        body = request if isinstance(request, bytes) else request.SerializeToString()
        async with self.http.stream(
            "POST",
            f"{SERVICE}/{name}",
            content=envelope(body) if content is None else content,
            headers={"Content-Type": STREAMING, "Connect-Protocol-Version": "1", **(headers or {})},
        ) as response:
            yield ConnectStream(response)

    def sync(self, **asked: Any) -> Any:
        return self.stream("Sync", sync_request(**asked))


class ConnectStream:
    """The answer of a streaming call."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.end: dict[str, Any] | None = None
        self._chunks = response.aiter_raw()
        self._buffer = b""

    async def raw(self) -> bytes | None:
        """The next message; None at the end, which ``end`` then has."""
        head = await self._take(5)
        content = await self._take(int.from_bytes(head[1:5], "big"))
        if head[0] == 2:
            self.end = orjson.loads(content)
            assert [chunk async for chunk in self._chunks] == [] and not self._buffer
            return None
        assert head[0] == 0
        return content

    async def next(self, kind: str | None = None) -> Any:
        """The next message, unwrapped; it must be of this kind. Heartbeats are passed over."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                content = await self.raw()
            assert content is not None, f"the stream ended: {self.end}"
            response = wire.SyncResponse.FromString(content)
            found = response.WhichOneof("message")
            if found == "heartbeat" and kind != "heartbeat":
                continue
            assert kind in (None, found), response
            return getattr(response, str(found))

    async def ends(self) -> dict[str, Any]:
        """Read to the end; its error, empty if there is none."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.raw() is not None:
                pass
        assert self.end is not None
        return self.end.get("error", {})

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._buffer += await anext(self._chunks)
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


def packed(message: Message) -> bytes:
    """The request as gzip."""
    return gzip.compress(message.SerializeToString())
