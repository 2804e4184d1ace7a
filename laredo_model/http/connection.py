"""uvicorn's HTTP connection with time limits and a limit on the bytes of a request."""

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from laredo_model.http.connection_limit import ConnectionLimit, LimitedConnection
from laredo_model.http.counts import EndReason
from laredo_model.http.guard import MAX_BODY
from laredo_model.http.request_parser import MAX_HEAD, RequestParser

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
