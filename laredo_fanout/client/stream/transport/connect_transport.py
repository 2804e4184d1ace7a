"""Calls by the Connect protocol over HTTP/1.1: each stream has a TCP connection of its own.

The rules are those of https://connectrpc.com/docs/protocol.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import orjson
from google.protobuf.message import DecodeError, Message

from laredo_fanout.client.errors import (
    ProtocolViolation,
    ServerUnavailable,
    StreamBroken,
    StreamError,
    of_status,
)
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.transport.connect_call import ConnectCall, connected
from laredo_fanout.client.stream.transport.framing import END_STREAM, Envelope, Envelopes
from laredo_fanout.wire import replication_pb2 as wire

M = TypeVar("M", bound=Message)

_SERVICE = f"/{wire.DESCRIPTOR.services_by_name['LaredoReplicationService'].full_name}"
_STREAM = "application/connect+proto"
_UNARY = "application/proto"
_BEFORE_HEARTBEATS = 10
"""The server may fetch a large object of an archive before it sends anything."""
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
"""Codes for answers that aren't Connect's own: a proxy's, or of HTTP's own rules."""


class ConnectTransport:
    """A connection for each call, closed with it: a stream lasts for days, and ends with its
    connection; HTTP/1.1 carries one call at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def check(self) -> None:
        """:raises BadEndpoint: if the TLS files can't be used."""
        self._tls()

    @asynccontextmanager
    async def sync(
        self, request: wire.SyncRequest
    ) -> AsyncIterator[AsyncIterator[wire.SyncResponse]]:
        """Open a stream on a new connection, once its messages are asked for."""
        messages = self._messages(request)
        try:
            yield messages
        finally:
            await messages.aclose()

    async def status(
        self, request: wire.GetReplicationStatusRequest, timeout: float
    ) -> wire.GetReplicationStatusResponse:
        """Request the status of a table."""
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
            raise StreamBroken(self._endpoint.server, "the stream ended without Connect's end")

    def _message(self, envelope: Envelope) -> wire.SyncResponse:
        if envelope.flags:
            raise ProtocolViolation(
                self._endpoint.server,
                f"a message's envelope has flags {envelope.flags:#x}, and no compression was asked",
            )
        return _parsed(self._endpoint.server, wire.SyncResponse, envelope.content)

    def _raise_end(self, content: bytes) -> None:
        """:raises StreamError: if the stream ended with an error."""
        end = _json_object(content)
        if end is None:
            raise ProtocolViolation(self._endpoint.server, "the stream's end is no JSON object")
        if error := end.get("error"):
            raise self._of_json(error)

    def _refusal(self, call: ConnectCall, body: bytes) -> StreamError:
        """The error for an answer without messages."""
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
        # Made for each connection: the files may be others by then.
        return None if self._endpoint.tls is None else self._endpoint.tls.context()


class _Silence:
    """Limit of a stream's silence; the server's heartbeats break the silence of a quiet table.

    Before the first one it may last longer; and a server whose heartbeats are rarer than expected
    is given three of its own intervals.
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
        """Note the message that came."""
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
