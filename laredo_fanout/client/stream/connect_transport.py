"""Calls by the Connect protocol over HTTP/1.1: each stream has a TCP connection of its own.

The rules are those of https://connectrpc.com/docs/protocol.
"""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import aiohappyeyeballs
import grpc
import h11
import orjson
from google.protobuf.message import DecodeError, Message

from laredo_fanout.client.errors import (
    BadEndpoint,
    NotAReplicationServer,
    ProtocolViolation,
    ServerUnavailable,
    StreamBroken,
    StreamError,
    of_status,
)
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.wire import replication_pb2 as wire

# The framing of a Connect stream: HTTP/1.1's chunks, and the envelopes of messages within them.
#
# Both take bytes as they come from the socket, however they are cut: many messages at a time, or a
# part of one.

HEAD_BYTES = 5
COMPRESSED = 1
END_STREAM = 2

_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}\Z")
_LONGEST_LINE = 1024


class BadFraming(Exception):
    """The body isn't chunked correctly, or its messages aren't enveloped."""


class Envelope(NamedTuple):
    """A message, or the end of the stream, with its flags."""

    flags: int
    content: bytes


class ChunkedBody:
    """Decoder of a chunked body (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        #: Whether the last chunk has come; what follows it is ignored.
        self.ended = False
        self._rest = b""
        self._left = 0
        self._closing = False

    def feed(self, data: bytes) -> bytes:
        """Return the body's bytes among ``data``, the next bytes from the socket.

        :raises BadFraming: if it isn't a chunked body.
        """
        data = self._rest + data if self._rest else data
        start, found = 0, []
        while not self.ended:
            if self._left:
                piece = data[start : start + self._left]
                start += len(piece)
                self._left -= len(piece)
                found.append(piece)
                if self._left:
                    break
                self._closing = True
            if self._closing:
                if len(data) < start + 2:
                    break
                if not data.startswith(b"\r\n", start):
                    raise BadFraming("a chunk is longer than its header declares")
                start += 2
                self._closing = False
            end = data.find(b"\r\n", start)
            if end < 0:
                if len(data) - start > _LONGEST_LINE:
                    raise BadFraming("a chunk doesn't begin with its size")
                break
            self._left = self._size(data[start:end])
            self.ended = not self._left
            start = end + 2
        self._rest = data[start:]
        return b"".join(found)

    def _size(self, line: bytes) -> int:
        size = line.partition(b";")[0].strip()
        if _SIZE.match(size) is None:
            raise BadFraming(f"a chunk's size is {line[:40]!r}")
        return int(size, 16)


class Envelopes:
    """Decoder of a stream's messages; https://connectrpc.com/docs/protocol#enveloped-message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Envelope]:
        """Return the envelopes that are whole with ``data``, the stream's next bytes."""
        buffer, found, start = self._buffer, [], 0
        buffer += data
        with memoryview(buffer) as view:
            while len(view) >= start + HEAD_BYTES:
                stop = start + HEAD_BYTES + int.from_bytes(view[start + 1 : start + 5], "big")
                if stop > len(view):
                    break
                found.append(Envelope(view[start], view[start + HEAD_BYTES : stop].tobytes()))
                start = stop
        del buffer[:start]
        return found

    @property
    def is_empty(self) -> bool:
        """True if no part of an unfinished message is left."""
        return not self._buffer


# A call of the Connect protocol: one request and its answer, on a TCP connection of its own.

_ANSWER_S = 20.0
"""Limit of the connection's opening, then of the wait for the answer's head, in seconds."""
_READ_BYTES = 256 << 10
_HTTP = b"HTTP/1."
_KEEPALIVE_PROBES = 3


class ConnectCall:
    """One request on its own connection; then the answer's head, and its body as it arrives."""

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
            raise ServerUnavailable(
                self._server, f"the answer's body wasn't complete within {_ANSWER_S:g} s"
            ) from passed
        return bytes(found[:most])

    async def _head(self) -> h11.Response:
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    data = await self._receive()
                    begun, _ = self._http.trailing_data
                    # Another protocol's first bytes are no part of a head.
                    if not data and _HTTP.startswith(begun[: len(_HTTP)]):
                        how = "lost within the answer's head" if begun else "closed"
                        raise ServerUnavailable(self._server, f"the connection was {how}")
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
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, int(port), type=socket.SOCK_STREAM
    )
    # asyncio's own race leaks the socket of an attempt that is cancelled as it connects.
    winner = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=0.25)
    return await asyncio.open_connection(
        sock=winner,
        limit=_READ_BYTES,
        ssl=context,
        server_hostname=(name or host) if context else None,
    )


def _find_dead_peers(end: socket.socket, endpoint: Endpoint) -> None:
    """Set TCP keepalive: the kernel then ends a connection whose server's machine is gone."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if end.family == socket.AF_UNIX or not hasattr(socket, "TCP_KEEPIDLE"):
        return
    every = max(1, int(endpoint.keepalive_timeout_s / _KEEPALIVE_PROBES))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(endpoint.keepalive_s)))
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


M = TypeVar("M", bound=Message)

_SERVICE = f"/{wire.DESCRIPTOR.services_by_name['LaredoReplicationService'].full_name}"
_STREAM = "application/connect+proto"
_UNARY = "application/proto"
_BEFORE_HEARTBEATS = 10
"""Factor of the first silence: the server may fetch a large object before it sends anything."""
_HEARTBEATS_MISSED = 3
_LONGEST_ERROR = 64 << 10
_LONGEST_STATUS = 1 << 20
_OF_HTTP = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    405: grpc.StatusCode.UNIMPLEMENTED,
    415: grpc.StatusCode.UNIMPLEMENTED,
    429: grpc.StatusCode.UNAVAILABLE,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.UNAVAILABLE,
}
"""Codes for HTTP statuses without an error of Connect's, such as a proxy's."""


class ConnectTransport:
    """Calls with a connection each, as HTTP/1.1 carries one call at a time; it is closed with the
    call."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def check(self) -> None:
        if self._endpoint.tls is not None:
            self._endpoint.tls.context()

    @asynccontextmanager
    async def sync(
        self, request: wire.SyncRequest
    ) -> AsyncIterator[AsyncIterator[wire.SyncResponse]]:
        """Open a stream; it connects when the first message is asked for."""
        messages = self._messages(request)
        try:
            yield messages
        finally:
            await messages.aclose()

    async def status(
        self, request: wire.GetReplicationStatusRequest, timeout: float
    ) -> wire.GetReplicationStatusResponse:
        server = self._endpoint.server
        try:
            async with asyncio.timeout(timeout), connected(self._endpoint, self._tls()) as call:
                await call.request(
                    f"{_SERVICE}/GetReplicationStatus",
                    self._headers(_UNARY),
                    request.SerializeToString(),
                )
                body = await call.read_all(_LONGEST_STATUS)
        except TimeoutError as passed:
            raise StreamBroken(server, f"no answer within {timeout:g} s") from passed
        if call.status != 200 or call.content_type != _UNARY:
            raise self._refusal(call, body)
        return _parsed(server, wire.GetReplicationStatusResponse, body)

    async def _messages(self, request: wire.SyncRequest) -> AsyncGenerator[wire.SyncResponse, None]:
        body = request.SerializeToString()
        async with connected(self._endpoint, self._tls()) as call:
            await call.request(
                f"{_SERVICE}/Sync",
                self._headers(_STREAM),
                b"\0" + len(body).to_bytes(4, "big") + body,
            )
            if call.status != 200 or call.content_type != _STREAM:
                raise self._refusal(call, await call.read_all(_LONGEST_ERROR))
            envelopes, silence = Envelopes(), _Silence(self._endpoint)
            share = LoopShare.of_running_loop()
            while (data := await silence.bounded(call)) is not None:
                share.note_work()
                for envelope in envelopes.feed(data):
                    if envelope.flags & END_STREAM:
                        self._raise_end(envelope.content)
                        return
                    message = self._message(envelope)
                    silence.broken_by(message)
                    yield message
            raise StreamBroken(
                self._endpoint.server, "the stream ended without its EndStreamResponse"
            )

    def _message(self, envelope: Envelope) -> wire.SyncResponse:
        if envelope.flags:
            raise ProtocolViolation(
                self._endpoint.server,
                f"a message has the envelope flags {envelope.flags:#x}, and this client offers no"
                " compression (flag 1); see if a proxy on the way compresses streams",
            )
        return _parsed(self._endpoint.server, wire.SyncResponse, envelope.content)

    def _raise_end(self, content: bytes) -> None:
        """:raises StreamError: if the stream ended with an error."""
        end = _json_object(content)
        if end is None:
            raise ProtocolViolation(
                self._endpoint.server, "the EndStreamResponse isn't a JSON object"
            )
        if error := end.get("error"):
            raise self._of_json(error)

    def _refusal(self, call: ConnectCall, body: bytes) -> StreamError:
        """The error for an answer that isn't a stream or a status: a refusal, a proxy's page."""
        error = _json_object(body) if call.content_type == "application/json" else None
        if call.status != 200 and error is not None and "code" in error:
            return self._of_json(error)
        code = _OF_HTTP.get(call.status, grpc.StatusCode.UNKNOWN)
        if call.status == 200:
            code = grpc.StatusCode.UNIMPLEMENTED
        text = body[:200].decode(errors="replace").strip()
        details = f"HTTP status {call.status}, {call.content_type or 'no content type'}: {text}"
        return of_status(self._endpoint.server, code, details)

    def _of_json(self, error: Any) -> StreamError:
        given = error if isinstance(error, dict) else {}
        code, message = given.get("code"), given.get("message")
        name = "CANCELLED" if code == "canceled" else str(code).upper()
        status = grpc.StatusCode.__members__.get(name, grpc.StatusCode.UNKNOWN)
        return of_status(self._endpoint.server, status, None if message is None else str(message))

    def _headers(self, content_type: str) -> Mapping[str, str]:
        endpoint = self._endpoint
        named = {name.title(): value for name, value in endpoint.metadata()}
        host = "localhost" if endpoint.server.startswith("unix:") else endpoint.server
        return {
            "Host": host,
            "Content-Type": content_type,
            "Connect-Protocol-Version": "1",
            "User-Agent": "laredo-fanout-client",
            "Connection": "close",
            **named,
        }

    def _tls(self) -> ssl.SSLContext | None:
        # Made for each connection: the files may have changed.
        with self._endpoint.connecting():
            return None if self._endpoint.tls is None else self._endpoint.tls.context()


class _Silence:
    """Timeout of reads from a stream; on a quiet table the server's heartbeats arrive within it.

    Until the first heartbeat the timeout is longer. A server whose heartbeats are rarer than
    expected is given three of its own intervals.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._server = endpoint.server
        self._usual = endpoint.silence_s
        self._most = _BEFORE_HEARTBEATS * endpoint.silence_s
        self._lasted = 0.0

    async def bounded(self, call: ConnectCall) -> bytes | None:
        """Read the next data.

        :raises ServerUnavailable: if nothing comes for too long.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._most):
                return await call.read()
        except TimeoutError as passed:
            raise ServerUnavailable(
                self._server, f"nothing came for {self._most:g} s, not even a heartbeat"
            ) from passed
        finally:
            self._lasted = time.monotonic() - began

    def broken_by(self, message: wire.SyncResponse) -> None:
        """Adjust the timeout if ``message`` is a heartbeat."""
        if message.HasField("heartbeat"):
            self._usual = max(self._usual, _HEARTBEATS_MISSED * self._lasted)
            self._most = self._usual


def _parsed(server: str, kind: type[M], content: bytes) -> M:
    try:
        return kind.FromString(content)
    except DecodeError as wrong:
        raise ProtocolViolation(server, f"the answer isn't a {kind.DESCRIPTOR.name}") from wrong


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
