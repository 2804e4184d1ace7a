"""The Connect endpoint: the same calls as by gRPC, over HTTP/1.1."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import h11
import orjson
import structlog

from laredo_fanout.serving.call import Caller, caller_from
from laredo_fanout.serving.endpoints import connect_request, tls
from laredo_fanout.serving.endpoints.connect_request import (
    CalledMethod,
    CallStream,
    DeadlinePassed,
    HttpRefused,
)
from laredo_fanout.serving.errors import CannotListen, Refused, SessionFailed
from laredo_fanout.serving.options import ConnectOptions, ListenerOptions
from laredo_fanout.serving.service import ReplicationService
from laredo_fanout.serving.shared import connect_connections
from laredo_service.http.connections import (
    MAX_HEAD,
    Acceptor,
    ConnectionLimit,
    EndReason,
    HttpCounts,
    Opening,
    RequestParser,
)

log = structlog.get_logger(__name__)

REQUEST_S = 10.0
"""Longest time from a request's first byte to its last, in seconds."""
IDLE_S = 60.0
"""Longest wait for the next request, in seconds."""
ANSWER_S = 30.0
"""Time for a client to take an answer, before its next request is read, in seconds."""
STUCK_S = 5.0
"""Time for a client to take the end of its call, before the connection is cut, in seconds."""
_DEFECT = "the call failed by a defect: see the server's log"
_MAX_RECEIVED = MAX_HEAD + 2 * connect_request.MAX_BODY
"""Most bytes of a request with its chunks' framing, and of data that follows during the call."""
_KEEPALIVE_IDLE_S = 30
_KEEPALIVE_INTERVAL_S = 10
_KEEPALIVE_PROBES = 2


class CallConnection(asyncio.Protocol):
    """Reads a request, has its call served in a task, then reads the next one.

    A connection that the client closes cancels its call. `h11` parses requests and keeps the
    protocol's state; the messages of a stream are written past it, as it adds nothing to them.
    """

    _transport: asyncio.Transport

    def __init__(self, endpoint: ConnectEndpoint, opening: Opening) -> None:
        self._endpoint = endpoint
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self._http = RequestParser()
        self._request: h11.Request | None = None
        self._wants_body = True
        self._body = bytearray()
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None
        self._call: asyncio.Task[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._when_full: Callable[[], None] | None = None

    # ------------------------------------------------------------ as asyncio calls it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._endpoint.enter(self, self._opening)
        _find_dead_peers(transport.get_extra_info("socket"), self._endpoint.stall_timeout_s)
        self._end_in(IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint.leave(self)
        self._stop_timer()
        # asyncio doesn't: a call that has ended may still write its end, and wait for room.
        self.resume_writing()
        if self._call is not None:
            self._call.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._received += len(data)
        if self._received > _MAX_RECEIVED:
            self._transport.abort()
            return
        if self._call is None and self._http.their_state is h11.IDLE and self._request is None:
            self._end_in(REQUEST_S)
        self._advance(data)

    def eof_received(self) -> None:
        # The transport closes itself: a client that sends no more doesn't read either.
        return None

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        if self._when_full is not None:
            self._when_full()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    # ------------------------------------------------------------ from the endpoint

    def close(self) -> None:
        """Close once what was written is taken, or STUCK_S later."""
        self._transport.close()
        self._stop_timer()
        self._timer = self._loop.call_later(STUCK_S, self._transport.abort)

    def close_if_idle(self) -> None:
        """Close unless a call is under way."""
        if self._call is None:
            self.close()

    def abort(self) -> None:
        """Cut the connection now."""
        self._transport.abort()

    def end(self, why: EndReason) -> None:
        """Cut the connection, to make room for another one."""
        self._endpoint.limit.counts.ended[why] += 1
        self.abort()

    # ------------------------------------------------------------ requests

    def _advance(self, data: bytes | None = None) -> None:
        """Continue the request; data that isn't HTTP gets a status, and ends the connection."""
        try:
            if data is not None:
                self._http.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            self._refuse_http(error.error_status_hint, str(error), {})
            self.close()

    def _read(self) -> None:
        """Take the request's data; begin its call when it is whole.

        :raises h11.RemoteProtocolError: it isn't HTTP/1.1.
        """
        while self._call is None:
            event = self._http.next_event()
            match event:
                case h11.Request():
                    self._request, self._wants_body = event, event.method != b"HEAD"
                    if event.http_version != b"1.1":
                        raise h11.RemoteProtocolError("use HTTP/1.1", error_status_hint=505)
                    if self._http.they_are_waiting_for_100_continue:
                        going_on = h11.InformationalResponse(status_code=100, headers=[])
                        self._transport.write(self._http.send(going_on) or b"")
                case h11.Data():
                    self._body += event.data
                    if len(self._body) > connect_request.MAX_BODY:
                        hint = f"a request is no longer than {connect_request.MAX_BODY} bytes"
                        raise h11.RemoteProtocolError(hint, error_status_hint=413)
                case h11.EndOfMessage():
                    self._begin_call()
                case h11.ConnectionClosed():
                    self._transport.close()
                    return
                case _:
                    return

    def _begin_call(self) -> None:
        asked, body = self._request, bytes(self._body)
        assert asked is not None
        self._request, self._body = None, bytearray()
        self._stop_timer()
        self._endpoint.limit.mark_answering(self)
        self._call = self._loop.create_task(self._serve(asked, body))
        self._call.add_done_callback(self._call_ended)

    def _call_ended(self, call: asyncio.Task[None]) -> None:
        self._call = None
        if not call.cancelled() and (defect := call.exception()) is not None:
            log.error("call over Connect crashed", exc_info=defect)
        both = self._http.our_state, self._http.their_state
        if self._transport.is_closing() or both != (h11.DONE, h11.DONE) or self._endpoint.draining:
            self.close()
            return
        self._http.start_next_cycle()
        self._endpoint.limit.mark_waiting(self)
        self._received = len(self._http.trailing_data[0])
        self._end_in(REQUEST_S if self._received else IDLE_S)
        self._advance()

    # ------------------------------------------------------------ calls

    async def _serve(self, asked: h11.Request, body: bytes) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in asked.headers}
        target = asked.target.decode("latin-1")
        try:
            called = connect_request.route(asked.method.decode("latin-1"), target, headers)
        except HttpRefused as refused:
            self._refuse_http(refused.status, str(refused), refused.headers)
            await self._answer_taken()
            return
        tls = self._transport.get_extra_info("ssl_object")
        caller = caller_from(
            self._transport.get_extra_info("peername")[:2],
            headers.get("authorization", ""),
            None if tls is None else tls.getpeercert(binary_form=True),
        )
        serve = self._serve_stream if called.streaming else self._serve_unary
        await serve(called, caller, headers, body)
        await self._answer_taken()

    async def _serve_unary(
        self, called: CalledMethod, caller: Caller, headers: Mapping[str, str], body: bytes
    ) -> None:
        service = self._endpoint.service
        answer = service.status if called.name == "GetReplicationStatus" else service.list_snapshots
        try:
            service.authenticate(caller)
            asked = connect_request.terms(called, headers)
            async with _deadline(asked.timeout_s):
                message = await answer(await connect_request.decode(called, asked, body), caller)
                encoded = await connect_request.encode(called, message)
        except Refused as refused:
            self._respond_error(refused)
            return
        except Exception:
            self._respond_error(SessionFailed(_DEFECT))
            raise
        self._respond(200, {"Content-Type": called.content_type}, encoded)

    async def _serve_stream(
        self, called: CalledMethod, caller: Caller, headers: Mapping[str, str], body: bytes
    ) -> None:
        service = self._endpoint.service
        call = service.sync if called.name == "Sync" else service.fetch_snapshot
        # Sent at once: a client waits for it before it reads the stream.
        self._send_head(200, {"Content-Type": called.content_type})
        refusal: Refused | None = None
        try:
            service.authenticate(caller)
            asked = connect_request.terms(called, headers)
            async with _deadline(asked.timeout_s):
                message = await connect_request.decode(called, asked, body)
                await call(message, CallStream(self, called, caller))
        except Refused as refused:
            refusal = refused
        except Exception:
            self._end_stream(SessionFailed(_DEFECT))
            raise
        self._end_stream(refusal)

    @property
    def full(self) -> bool:
        return self._writable is not None

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def room(self) -> None:
        if self._writable is not None:
            await self._writable

    def when_full(self, notify: Callable[[], None] | None) -> None:
        self._when_full = notify

    def _end_stream(self, refusal: Refused | None) -> None:
        self._transport.write(connect_request.last_chunk(refusal))
        self._transport.write(self._http.send(h11.EndOfMessage()) or b"")
        if self._writable is not None:
            # A client that takes nothing gets a moment for the end.
            self.close()

    def _refuse_http(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            plain = {"Content-Type": "text/plain; charset=utf-8", **headers}
            self._respond(status, plain, f"{reason}\n".encode())

    def _respond_error(self, refused: Refused) -> None:
        body = orjson.dumps(connect_request.error_json(refused))
        status = connect_request.http_status(refused)
        self._respond(status, {"Content-Type": "application/json"}, body)

    def _respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._send_head(status, {**headers, "Content-Length": str(len(body))})
        if self._wants_body:
            self._transport.write(self._http.send(h11.Data(data=body)) or b"")
        self._transport.write(self._http.send(h11.EndOfMessage()) or b"")

    async def _answer_taken(self) -> None:
        """Wait until a slow client has taken most of the answer."""
        if self.full:
            if self._timer is None:
                self._end_in(ANSWER_S)
            await self.room()

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        closing = {"Connection": "close"} if self._endpoint.draining else {}
        fields = list({**headers, **closing}.items())
        head = h11.Response(status_code=status, headers=fields)
        self._transport.write(self._http.send(head) or b"")

    # ------------------------------------------------------------ time

    def _end_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(seconds, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@asynccontextmanager
async def _deadline(timeout_s: float | None) -> AsyncIterator[None]:
    """Limit a block to the caller's timeout.

    :raises DeadlinePassed: it took longer.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as passed:
        message = f"the call took longer than its {timeout_s:g} s (Connect-Timeout-Ms)"
        raise DeadlinePassed(message) from passed


def _find_dead_peers(end: socket.socket, stall_timeout_s: float) -> None:
    """Set TCP keepalive: the kernel then ends a connection whose peer is gone.

    TCP_USER_TIMEOUT also cuts a live peer that takes nothing (tcp(7)), so it is the stall timeout.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * stall_timeout_s))


# The Connect endpoint of a serving process: its listener and its connections.

_BACKLOG = 1024


class ConnectEndpoint:
    """Serves the calls of a :class:`ReplicationService` by the Connect protocol."""

    def __init__(
        self, service: ReplicationService, listener: ListenerOptions, options: ConnectOptions
    ) -> None:
        """Bind the port.

        :raises CannotListen: the address is taken, or the TLS files can't be used.
        """
        self.service = service
        self.stall_timeout_s = listener.stall_timeout_s
        self.draining = False
        self.limit = ConnectionLimit(HttpCounts(), connect_connections())
        context = None if listener.tls is None else tls.server_context(listener.tls)
        self._socket = _bound(options)
        self.port: int = self._socket.getsockname()[1]
        self._acceptor = Acceptor(
            self._socket,
            self.limit,
            lambda opening: CallConnection(self, opening),
            "no Connect connection can be accepted; tried again until one can",
            context,
        )
        self._connections: set[CallConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self) -> None:
        self._socket.listen(_BACKLOG)
        self._acceptor.start()

    async def drain(self, grace_s: float) -> None:
        self.draining = True
        await self._acceptor.stop()
        self._socket.close()
        for connection in list(self._connections):
            connection.close_if_idle()
        try:
            await asyncio.wait_for(self._empty.wait(), grace_s)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def enter(self, connection: CallConnection, opening: Opening) -> None:
        """Count the connection, which is open now."""
        self._connections.add(connection)
        self._empty.clear()
        self.limit.add(connection, opening)

    def leave(self, connection: CallConnection) -> None:
        """Note that the connection is gone."""
        self._connections.discard(connection)
        self.limit.remove(connection)
        if not self._connections:
            self._empty.set()


def _bound(options: ConnectOptions) -> socket.socket:
    """A socket on the port, which other serving processes share (SO_REUSEPORT)."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        end = socket.socket(family, kind, protocol)
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            end.bind(address)
        except OSError:
            end.close()
            raise
    except OSError as error:
        raise CannotListen(
            f"can't listen on {options.host}:{options.port} (fanout.connect.host, port): {error}"
        ) from error
    return end
