"""A call of the Connect protocol: one request and its answer, on a TCP connection of its own."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import h11

from laredo_fanout.client.errors import (
    BadEndpoint,
    NotAReplicationServer,
    ProtocolViolation,
    ServerUnavailable,
)
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.transport.framing import BadFraming, ChunkedBody

_ANSWER_S = 20.0
"""For the connection, and then for the head of the answer."""
_READ_BYTES = 256 << 10
_KEEPALIVE_PROBES = 3


class ConnectCall:
    """The answer to a request: its head, and its body as it comes."""

    def __init__(
        self, server: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._chunks: ChunkedBody | None = None
        self._left: int | None = None
        self._ahead = b""
        self.status = 0
        self.content_type = ""

    async def request(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send the request, and read the head of the answer.

        :raises BadEndpoint: if the token can't be sent.
        :raises StreamError: if there is no answer, or none in HTTP/1.1.
        """
        fields = {**headers, "Content-Length": str(len(body))}
        try:
            head = self._http.send(
                h11.Request(method="POST", target=path, headers=list(fields.items()))
            )
        except h11.LocalProtocolError as wrong:
            raise BadEndpoint(f"the token can't be sent in a header: {wrong}") from wrong
        self._writer.write((head or b"") + (self._http.send(h11.Data(data=body)) or b""))
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._head()
        except TimeoutError as passed:
            raise ServerUnavailable(
                self._server, f"no answer within {_ANSWER_S:g} s of the request"
            ) from passed
        fields = {name.decode(): value.decode("latin-1") for name, value in answer.headers}
        self._ahead, _ = self._http.trailing_data
        self.status = answer.status_code
        self.content_type = fields.get("content-type", "").partition(";")[0].strip().lower()
        if fields.get("transfer-encoding", "").lower() == "chunked":
            self._chunks = ChunkedBody()
        elif "content-length" in fields:
            self._left = int(fields["content-length"])

    async def read(self) -> bytes | None:
        """Read as much of the body as has arrived; None at its end.

        :raises StreamError: if the connection is lost, or the data isn't a valid body.
        """
        if (self._chunks is not None and self._chunks.ended) or self._left == 0:
            return None
        ahead, self._ahead = self._ahead, b""
        data = ahead or await self._receive()
        if not data:
            if self._chunks is None and self._left is None:
                return None
            raise ServerUnavailable(self._server, "the connection was lost")
        if self._chunks is not None:
            try:
                return self._chunks.feed(data)
            except BadFraming as wrong:
                raise ProtocolViolation(self._server, str(wrong)) from wrong
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        return data

    async def read_all(self, most: int) -> bytes:
        """The body, or its first ``most`` bytes.

        :raises StreamError: as :meth:`read`.
        """
        found = bytearray()
        try:
            async with asyncio.timeout(_ANSWER_S):
                while len(found) < most and (data := await self.read()) is not None:
                    found += data
        except TimeoutError as passed:
            raise ServerUnavailable(self._server, f"half an answer in {_ANSWER_S:g} s") from passed
        return bytes(found[:most])

    async def _head(self) -> h11.Response:
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    data = await self._receive()
                    if not data and not self._http.trailing_data[0]:
                        raise ServerUnavailable(self._server, "the connection was closed")
                    self._http.receive_data(data)
            except h11.RemoteProtocolError as wrong:
                raise NotAReplicationServer(
                    self._server,
                    f"the port doesn't speak HTTP/1.1 ({wrong}); the Connect protocol has"
                    " a port of its own, fanout.connect.port (4003)",
                ) from wrong
            if isinstance(event, h11.Response):
                return event

    async def _receive(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except OSError as lost:
            raise ServerUnavailable(self._server, f"the connection was lost: {lost}") from lost


@asynccontextmanager
async def connected(
    endpoint: Endpoint, context: ssl.SSLContext | None
) -> AsyncIterator[ConnectCall]:
    """A call on a new connection; leaving the block closes it, which cancels the call.

    :raises ServerUnavailable: if there is no connection.
    """
    server = endpoint.server
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await _open(endpoint, context)
    except TimeoutError as passed:
        raise ServerUnavailable(server, f"no connection within {_ANSWER_S:g} s") from passed
    except OSError as refused:
        raise ServerUnavailable(server, f"no connection: {refused}") from refused
    try:
        _find_dead_peers(writer.get_extra_info("socket"), endpoint)
        yield ConnectCall(server, reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _open(
    endpoint: Endpoint, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = None if endpoint.tls is None else endpoint.tls.server_name
    if endpoint.server.startswith("unix:"):
        path = endpoint.server.removeprefix("unix:")
        hostname = (name or "localhost") if context else None
        return await asyncio.open_unix_connection(
            path, limit=_READ_BYTES, ssl=context, server_hostname=hostname
        )
    host, _, port = endpoint.server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    return await asyncio.open_connection(
        host,
        int(port),
        limit=_READ_BYTES,
        ssl=context,
        server_hostname=(name or host) if context else None,
        happy_eyeballs_delay=0.25,
    )


def _find_dead_peers(end: socket.socket, endpoint: Endpoint) -> None:
    """Have the kernel notice a server's machine that vanished without a word."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if end.family == socket.AF_UNIX or not hasattr(socket, "TCP_KEEPIDLE"):
        return
    every = max(1, int(endpoint.keepalive_timeout_s / _KEEPALIVE_PROBES))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(endpoint.keepalive_s)))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
