"""Accepts connections of a listening socket within a limit that counts them from the beginning."""

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial

import structlog

from laredo_model.http.connection_limit import ConnectionLimit
from laredo_model.http.counts import EndReason

HANDSHAKE_S = 10.0
_AGAIN_S = 1.0
_LOG_EVERY_S = 60.0

log = structlog.get_logger("laredo.http")


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
