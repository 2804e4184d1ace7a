"""Connections of HTTP clients: accepted, counted, limited, and their requests parsed."""

import asyncio
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Protocol

import h11
from prometheus_client.core import CounterMetricFamily, Metric

from laredo_service.log import Log

# Counts of HTTP connections that were ended or refused, and the metrics that show them.


class EndReason(StrEnum):
    """Reason why this program ended a connection."""

    SLOW = "slow"
    """Its request wasn't whole, or its answer not read, in time."""
    FULL = "full"
    """Too many were open."""
    OVERSIZED = "oversized"
    """Its request had too many bytes."""


@dataclass
class HttpCounts:
    """Counters of ended connections, by reason, and of those that couldn't be accepted."""

    #: Connections that this program ended.
    ended: Counter[EndReason] = field(default_factory=Counter)
    #: Times that a connection couldn't be accepted, mostly for lack of file descriptors.
    accept_failures: int = 0


def families(counts: HttpCounts, prefix: str) -> Iterator[Metric]:
    """The counts as Prometheus metrics whose names begin with ``prefix``."""
    ended = CounterMetricFamily(
        f"{prefix}_http_connections_ended",
        "HTTP connections that this program ended: slow, beyond the limit, or of an oversized"
        " request",
        labels=["reason"],
    )
    for reason in EndReason:
        ended.add_metric([reason.value], counts.ended[reason])
    yield ended
    failures = CounterMetricFamily(
        f"{prefix}_http_accept_failures",
        "Number of times that an HTTP connection couldn't be accepted, mostly for lack of file"
        " descriptors",
    )
    failures.add_metric([], counts.accept_failures)
    yield failures


# The limit on open HTTP connections, and the choice of which one to close beyond it.

MAX_CONNECTIONS = 128
"""At once; probes, Prometheus and operators need a handful."""


class LimitedConnection(Protocol):
    """Interface of the limit to a connection."""

    def end(self, why: EndReason) -> None:
        """Close it now."""


class ConnectionLimit:
    """The open connections, at most ``limit``.

    A connection beyond the limit closes the one that has waited longest for a whole request: a
    client that opens many and sends nothing closes only its own. A probe sends its request at
    once, so it is answered.
    """

    def __init__(self, counts: HttpCounts, limit: int = MAX_CONNECTIONS) -> None:
        self.counts = counts
        self._limit = limit
        self._waiting: dict[LimitedConnection, None] = {}
        self._answering: set[LimitedConnection] = set()

    def add(
        self, connection: LimitedConnection, instead_of: LimitedConnection | None = None
    ) -> None:
        """Count a connection that was opened; it has no request yet.

        :param instead_of: its :class:`Opening`, which it replaces.
        """
        if instead_of is not None:
            self.remove(instead_of)
        if len(self._waiting) + len(self._answering) >= self._limit:
            closed = next(iter(self._waiting), connection)
            self.remove(closed)
            closed.end(EndReason.FULL)
            if closed is connection:
                return
        self._waiting[connection] = None

    def mark_waiting(self, connection: LimitedConnection) -> None:
        """Its request isn't whole yet."""
        if connection in self._answering:
            self._answering.remove(connection)
            self._waiting[connection] = None

    def mark_answering(self, connection: LimitedConnection) -> None:
        """Its request is whole."""
        if connection in self._waiting:
            del self._waiting[connection]
            self._answering.add(connection)

    def remove(self, connection: LimitedConnection) -> None:
        """It was closed; one that isn't counted is no error."""
        self._waiting.pop(connection, None)
        self._answering.discard(connection)


HANDSHAKE_S = 10.0
_AGAIN_S = 1.0
_LOG_EVERY_S = 60.0

log = Log("laredo.http")


class Opening:
    """A connection that was accepted; with TLS, its handshake is under way."""

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit
        self.task: asyncio.Task[None] | None = None

    def end(self, why: EndReason) -> None:
        """Close it now."""
        self._limit.counts.ended[why] += 1
        if self.task is not None:
            self.task.cancel()


class Acceptor:
    """Accepts connections; waits while the system is out of descriptors or memory.

    asyncio's own server would try 2,048 times a second when descriptors run out, each with a
    traceback in the log, and shows a connection only once its TLS handshake is done.
    """

    def __init__(
        self,
        listener: socket.socket,
        limit: ConnectionLimit,
        protocol: Callable[[Opening], asyncio.Protocol],
        failure: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        :param protocol: makes the protocol of a connection, which replaces the
            :class:`Opening` in the limit.
        :param failure: the log's line while none can be accepted.
        """
        self._listener = listener
        self._limit = limit
        self._protocol = protocol
        self._failure = failure
        self._tls = tls
        self._accepting: asyncio.Task[None] | None = None
        self._openings: set[asyncio.Task[None]] = set()
        self._log_after = 0.0

    def start(self) -> None:
        """Accept connections from now on."""
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def stop(self) -> None:
        """Accept none any more, and end the handshakes under way."""
        tasks = [*self._openings, *filter(None, [self._accepting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as failure:
                self._log_failure(failure)
                await asyncio.sleep(_AGAIN_S * random.uniform(0.5, 1.0))
                continue
            opening = Opening(self._limit)
            opening.task = asyncio.create_task(self._open(accepted, opening))
            self._openings.add(opening.task)
            opening.task.add_done_callback(partial(self._opened, opening, accepted))
            self._limit.add(opening)
            # Others have their turn, however many connect at once.
            await asyncio.sleep(0)

    async def _open(self, accepted: socket.socket, opening: Opening) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(opening),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
            )
        except (ssl.SSLError, ConnectionError):
            # The client left, has other certificates, or took too long.
            accepted.close()
        except OSError as failure:
            accepted.close()
            self._log_failure(failure)

    def _opened(self, opening: Opening, accepted: socket.socket, task: asyncio.Task[None]) -> None:
        self._openings.discard(task)
        self._limit.remove(opening)
        if task.cancelled():
            accepted.close()

    def _log_failure(self, failure: OSError) -> None:
        self._limit.counts.accept_failures += 1
        if time.monotonic() >= self._log_after:
            self._log_after = time.monotonic() + _LOG_EVERY_S
            log.error(
                self._failure,
                error=str(failure),
                failures=self._limit.counts.accept_failures,
                cure="raise the limit of open files (ulimit -n, LimitNOFILE)",
            )


# h11's parser of requests with bounds on the work that they can cause.

MAX_LINES = 100
"""Most lines of a request's head, or after its last chunk."""
MAX_CHUNKS = 256
"""Most chunks of one request's body."""
MAX_HEAD = 16 << 10
"""Most bytes of a head, or of a chunk's size line."""
_PIECE = 4 << 10
_END = b"\r\n\r\n"


class RequestParser(h11.Connection):
    """The server's side of a connection.

    h11 takes 5 µs or more for a line or a chunk, and all those of one read are parsed without a
    pause: a client that sends them a byte long would hold the event loop for 0.1 s each time.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        #: Received bytes that aren't given to h11 yet: it gets them in small pieces.
        self._received = bytearray()
        self._lines = 0
        self._chunks = 0
        #: Whether a chunk's line comes next.
        self._between_chunks = False

    def receive_data(self, data: bytes) -> None:
        """Take what the client sent."""
        self._received += data

    @property
    def trailing_data(self) -> tuple[bytes, bool]:
        """Received bytes that aren't parsed yet, and True if the client has closed."""
        ahead, closed = super().trailing_data
        return ahead + self._received, closed

    def start_next_cycle(self) -> None:
        """Go on with the next request."""
        super().start_next_cycle()
        self._lines = super().trailing_data[0].count(b"\n")

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Parse the next event of the request, as h11 does.

        :raises h11.RemoteProtocolError: it isn't HTTP, or has too many lines or chunks, or two
            lengths: a proxy might have taken the other one for true (RFC 9112, 6.3).
        """
        self._check_lines()
        event = super().next_event()
        while event is h11.NEED_DATA and self._received:
            piece = bytes(self._received[:_PIECE])
            del self._received[:_PIECE]
            self._lines += piece.count(b"\n")
            super().receive_data(piece)
            self._check_lines()
            event = super().next_event()
        if isinstance(event, h11.Request):
            names = [name for name, _ in event.headers]
            self._chunks, self._between_chunks = 0, b"transfer-encoding" in names
            if self._between_chunks and b"content-length" in names:
                raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding at once")
        elif isinstance(event, h11.Data):
            self._chunks, self._between_chunks = self._chunks + event.chunk_start, event.chunk_end
            if self._chunks > MAX_CHUNKS:
                raise h11.RemoteProtocolError(f"a body has {MAX_CHUNKS} chunks at most")
        return event

    def _check_lines(self) -> None:
        """Count the lines that h11 would parse at once, if there can be too many."""
        if self._lines <= MAX_LINES:
            return
        ahead = super().trailing_data[0]
        if self.their_state is h11.IDLE or (self._between_chunks and ahead.startswith(b"0")):
            end = ahead.find(_END)
            if ahead.count(b"\n", 0, len(ahead) if end < 0 else end) > MAX_LINES:
                problem = f"a request has {MAX_LINES} lines at most"
                raise h11.RemoteProtocolError(problem, error_status_hint=431)
