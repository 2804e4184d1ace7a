"""The gRPC endpoint of a serving process: its listener, and the calls that come over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Never

import grpc
import structlog

from laredo_fanout.serving.call import MAX_PEER_REQUEST_BYTES, Caller, caller_of
from laredo_fanout.serving.endpoints import tls
from laredo_fanout.serving.endpoints.probes import HEALTH, REFLECTION, Health, Readiness, Reflection
from laredo_fanout.serving.errors import (
    MAX_DETAILS,
    BadRequest,
    CannotListen,
    Refused,
    RequestLate,
)
from laredo_fanout.serving.options import ListenerOptions
from laredo_fanout.serving.service import SERVICE, ReplicationService
from laredo_fanout.serving.shared import grpc_connections
from laredo_service.http.connections import ConnectionLimit, EndReason, HttpCounts

log = structlog.get_logger(__name__)

STUCK_S = 5.0
REQUEST_S = 10.0
"""Longest time from a call's first frame until its request is whole, in seconds."""
MOST_UNREAD = 1_000
"""Most calls at once whose request isn't whole; another one ends the oldest."""
_MOST_STREAMS = 10_000
"""Calls at once on a connection. A client waits for room without an error, and the streams of a
relay share one connection: no honest one has so many."""
_CHANNEL_OPTIONS = (
    ("grpc.max_concurrent_streams", _MOST_STREAMS),
    ("grpc.so_reuseport", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_PEER_REQUEST_BYTES),
    # A peer that vanished without a word is noticed, its session ended.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client that connects and sends nothing holds a descriptor no longer than this.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A client that makes no call holds a connection no longer than this.
    ("grpc.max_connection_idle_ms", 60_000),
)
_GRPC_LOG = logging.getLogger("grpc._cython.cygrpc")


class GrpcEndpoint:
    """Serves a :class:`ReplicationService`, health and reflection by gRPC; messages are bytes."""

    def __init__(
        self, service: ReplicationService, listener: ListenerOptions, readiness: Readiness
    ) -> None:
        """Bind the port.

        :raises CannotListen: the address is taken, or the TLS files can't be used.
        """
        self._service = service
        self._unread = ConnectionLimit(HttpCounts(), MOST_UNREAD)
        self._health = Health(readiness, SERVICE)
        self._reflection = Reflection(readiness, (SERVICE, HEALTH))
        most = grpc_connections(alone=listener.connect is None)
        connections = ("grpc.max_allowed_incoming_connections", most)
        self._server = grpc.aio.server(options=(*_CHANNEL_OPTIONS, connections))
        self._server.add_generic_rpc_handlers(tuple(self._handlers()))
        self.port = _listen(self._server, listener)
        _GRPC_LOG.addFilter(_is_no_departure)

    async def start(self) -> None:
        await self._server.start()

    async def drain(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def _handlers(self) -> Iterator[grpc.GenericRpcHandler[bytes, bytes]]:
        """The handlers of all services, without serializers: bytes pass as they are.

        Each handler reads its request by itself: for a handler that takes the request as an
        argument gRPC waits without end.
        """
        service, health = self._service, self._health
        yield grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Sync": self._streaming(service.sync),
                "ListSnapshots": self._answered(service.list_snapshots),
                "FetchSnapshot": self._streaming(service.fetch_snapshot),
                "GetReplicationStatus": self._answered(service.status),
            },
        )
        yield grpc.method_handlers_generic_handler(
            HEALTH,
            {
                "Check": self._answered(health.check),
                "Watch": self._streaming(health.watch),
            },
        )
        for name in REFLECTION:
            method = grpc.stream_stream_rpc_method_handler(self._reflect)
            yield grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})

    def _streaming(
        self, call: Callable[[bytes, _GrpcExchange], Awaitable[None]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def serve(_: object, context: Any) -> None:
            try:
                await call(await self._request(context), _GrpcExchange(context))
            except Refused as refused:
                await _abort(context, refused)

        return grpc.stream_stream_rpc_method_handler(serve)

    def _answered(
        self, call: Callable[[bytes, Caller], Awaitable[bytes]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def serve(_: object, context: Any) -> bytes:
            try:
                return await call(await self._request(context), caller_of(context))
            except Refused as refused:
                await _abort(context, refused)

        return grpc.stream_unary_rpc_method_handler(serve)

    async def _request(self, context: Any) -> bytes:
        """The call's request.

        :raises RequestLate: it isn't whole in time, or too many calls wait for theirs.
        :raises BadRequest: the call has none.
        """
        try:
            async with asyncio.timeout(REQUEST_S) as patience:
                unread = _PartialCall(patience)
                self._unread.add(unread)
                try:
                    request = await context.read()
                finally:
                    self._unread.remove(unread)
        except TimeoutError as late:
            raise RequestLate(
                f"the request wasn't whole within {REQUEST_S:g} s,"
                f" or while {MOST_UNREAD} other calls began: send it with the call"
            ) from late
        if request is grpc.aio.EOF:  # type: ignore[attr-defined]
            raise BadRequest("the call ended before its request")
        return bytes(request)

    async def _reflect(self, requests: object, context: Any) -> None:
        try:
            self._service.authenticate(caller_of(context))
            await self._reflection.answer(context)
        except Refused as refused:
            await _abort(context, refused)


class _PartialCall:
    """A call whose request isn't whole."""

    def __init__(self, patience: asyncio.Timeout) -> None:
        self._patience = patience

    def end(self, why: EndReason) -> None:
        """Stop waiting for the request."""
        # In the turn in which the time is over, the call is still counted.
        if not self._patience.expired():
            self._patience.reschedule(0)


class _GrpcExchange:
    """A streaming gRPC call."""

    direct = None
    """grpc.aio has no write that doesn't wait."""

    def __init__(self, context: Any) -> None:
        self.caller = caller_of(context)
        self._write = context.write

    async def send(self, message: bytes) -> None:
        """Send the message; returns when gRPC has taken it.

        :raises CancelledError: the client is gone.
        """
        try:
            await self._write(message)
        except grpc.aio.InternalError as gone:
            # A write that waits may fail before the call's cancellation arrives.
            raise asyncio.CancelledError from gone

    def packed(self, messages: Sequence[bytes]) -> Sequence[bytes]:
        """Each message by itself: that is what gRPC sends."""
        return messages


async def _abort(context: Any, refused: Refused) -> Never:
    """End the call with the refusal's status.

    The status is sent after the messages that the client hasn't taken yet. If the client takes none
    for STUCK_S, the call is dropped, which resets the stream.
    """
    try:
        async with asyncio.timeout(STUCK_S):
            await context.abort(refused.code, str(refused)[:MAX_DETAILS])
    except TimeoutError:
        raise asyncio.CancelledError from refused
    raise AssertionError("abort returned")


def _is_no_departure(record: logging.LogRecord) -> bool:
    """False if the record only reports an answer whose client had left: an error to gRPC."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)


def _listen(server: grpc.aio.Server, listener: ListenerOptions) -> int:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    address = f"{host}:{listener.port}"
    try:
        if listener.tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, tls.grpc_credentials(listener.tls)))
    except RuntimeError as error:
        raise CannotListen(
            f"can't listen on {address} (fanout.grpc.host, port): {error}"
        ) from error
