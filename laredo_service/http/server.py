"""An HTTP server within the running event loop and within limits, and its endpoints."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import h11
import uvicorn
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from laredo_service.http.connections import (
    MAX_HEAD,
    Acceptor,
    ConnectionLimit,
    EndReason,
    HttpCounts,
    LimitedConnection,
    Opening,
    RequestParser,
)
from laredo_service.http.guard import MAX_BODY, Guard
from laredo_service.http.settings import HttpSettings

REQUEST_S = 10.0
"""Seconds for a request to be whole, headers and body, from the connection or the last answer."""
WRITE_S = 30.0
"""Seconds for a client to read what waits for it."""
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """A connection that ends when a request is late or too large, or its answer isn't read."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        *,
        limit: ConnectionLimit,
        opening: LimitedConnection,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self.conn = RequestParser()
        self._limit = limit
        self._opening = opening
        self._received = 0
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The transport then reports any unread byte, not only 64 KB of them.
        transport.set_write_buffer_limits(high=0)
        self._request_timer = self.loop.call_later(REQUEST_S, self.end, EndReason.SLOW)
        self._limit.add(self, self._opening)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.remove(self)
        self._stop_request_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        if self._received > MAX_HEAD + MAX_BODY:
            self.end(EndReason.OVERSIZED)
            return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._check_request()

    def send_400_response(self, msg: str) -> None:
        # uvicorn would go on answering a request whose body turned out to be none, and log a
        # traceback for each.
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._check_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_S, self.end, EndReason.SLOW)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def end(self, why: EndReason) -> None:
        """Close it now, with whatever is still unsent or unread."""
        self._limit.counts.ended[why] += 1
        self._limit.remove(self)
        self.transport.abort()

    def _check_request(self) -> None:
        if self.conn.their_state in _INCOMPLETE:
            self._limit.mark_waiting(self)
            if self._request_timer is None:
                self._request_timer = self.loop.call_later(REQUEST_S, self.end, EndReason.SLOW)
        else:
            self._limit.mark_answering(self)
            self._received = 0
            self._stop_request_timer()

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


_GOODBYE_S = 2


class HttpServer(uvicorn.Server):
    """uvicorn's server, started and stopped by the program, which handles signals itself."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        listener: socket.socket,
        counts: HttpCounts,
    ) -> None:
        """``listener`` is a listening socket, which ``stop`` closes; ``counts`` is updated."""
        self._guard = Guard(app, settings)
        config = uvicorn.Config(
            self._guard,
            log_config=None,
            # A client that sends something else than HTTP must not fill the log.
            log_level="error",
            access_log=False,
            server_header=False,
            # No proxy is trusted to name the client.
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=_GOODBYE_S,
            loop="none",
            http="h11",
            ws="none",
        )
        super().__init__(config)
        self._listener = listener
        self._limit = ConnectionLimit(counts)
        self._acceptor = Acceptor(
            listener,
            self._limit,
            self._connection,
            "no HTTP connection can be accepted; tried again until one can",
        )
        self._serving: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def change(self, settings: HttpSettings) -> None:
        """Take another token and other names from now on; where it listens stays."""
        self._guard.change(settings)

    def start(self) -> None:
        """Serve in the running event loop; returns at once."""
        self._serving = asyncio.create_task(self.serve())

    async def stop(self) -> None:
        """Let running requests end, for two seconds at most, then close."""
        self.should_exit = True
        if self._serving is not None:
            await self._serving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would have asyncio accept.
        await super().startup(sockets=[])
        self._acceptor.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._acceptor.stop()
        await super().shutdown(sockets=[self._listener])

    def _connection(self, opening: Opening) -> Connection:
        loop = asyncio.get_running_loop()
        state = self.lifespan.state
        return Connection(
            self.config, self.server_state, state, loop, limit=self._limit, opening=opening
        )


Endpoint = Callable[[Request], Awaitable[Response]]

_FLAG = TypeAdapter(bool)


class Endpoints(Starlette):
    """An ASGI application of endpoints that are added one by one.

    Nothing describes the endpoints to strangers, and no redirect repeats a Host.
    """

    def __init__(self) -> None:
        super().__init__(exception_handlers={HTTPException: _refused})
        self.router.redirect_slashes = False

    def get(self, path: str, endpoint: Endpoint) -> None:
        """Answer GET requests for ``path``."""
        self._add(path, endpoint, "GET")

    def post(self, path: str, endpoint: Endpoint) -> None:
        """Answer POST requests for ``path``."""
        self._add(path, endpoint, "POST")

    def _add(self, path: str, endpoint: Endpoint, method: str) -> None:
        route = Route(path, endpoint)
        # Starlette adds HEAD to GET by itself; these endpoints have one method each.
        route.methods = {method}
        self.router.routes.append(route)


class BadQuery(HTTPException):
    """A query parameter has a value of another type; answered with 422."""


def flag(request: Request, name: str) -> bool:
    """A boolean query parameter; False if it is absent.

    :raises BadQuery: if the value is no boolean.
    """
    try:
        return _FLAG.validate_python(request.query_params.get(name, False))
    except ValidationError as wrong:
        (found,) = wrong.errors(include_url=False, include_context=False)
        raise BadQuery(422, [{**found, "loc": ["query", name]}]) from None  # type: ignore[arg-type]


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, HTTPException)
    return JSONResponse({"detail": refusal.detail}, refusal.status_code, refusal.headers)
