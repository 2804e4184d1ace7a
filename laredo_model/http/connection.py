"""One HTTP connection: uvicorn's, with limits on what it may send and for how long."""

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from laredo_model.http.connection_limit import Ended, Room
from laredo_model.http.guard import MAX_BODY

REQUEST_S = 10.0
"""For a request to be whole, headers and body, from the connection or the answer before it."""
TAKEN_S = 30.0
"""For a client to take what waits for it."""
_MAX_HEADERS = 16 << 10
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """Ended when its request isn't whole in time or has too many bytes, or when nobody reads."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        room: Room,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)
        self._room = room
        self._received = 0
        self._request_timer: asyncio.TimerHandle | None = None
        self._taken_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The transport then tells of anything that the client hasn't taken, not of 64 KB only.
        transport.set_write_buffer_limits(high=0)
        self._request_timer = self.loop.call_later(REQUEST_S, self.end, Ended.SLOW)
        self._room.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.leave(self)
        self._stop_request_timer()
        self._stop_taken_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        if self._received > _MAX_HEADERS + MAX_BODY:
            self.end(Ended.OVERSIZED)
            return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._look_at_request()

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
        self._look_at_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken_timer = self.loop.call_later(TAKEN_S, self.end, Ended.SLOW)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_taken_timer()

    def end(self, why: Ended) -> None:
        """Close it now, whatever it still has to send or to take."""
        self._room.counts.ended[why] += 1
        self._room.leave(self)
        self.transport.abort()

    def _look_at_request(self) -> None:
        if self.conn.their_state in _INCOMPLETE:
            self._room.waits(self)
            if self._request_timer is None:
                self._request_timer = self.loop.call_later(REQUEST_S, self.end, Ended.SLOW)
        else:
            self._room.is_answered(self)
            self._received = 0
            self._stop_request_timer()

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_taken_timer(self) -> None:
        if self._taken_timer is not None:
            self._taken_timer.cancel()
            self._taken_timer = None
