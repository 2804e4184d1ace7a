"""An HTTP server for an ASGI application, within the running event loop and within limits."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Iterator

import structlog
import uvicorn
from starlette.types import ASGIApp

from laredo_model.http.connection import Connection
from laredo_model.http.connection_limit import ConnectionLimit
from laredo_model.http.counts import HttpCounts
from laredo_model.http.guard import Guard
from laredo_model.http.settings import HttpSettings

_GOODBYE_S = 2
_ACCEPT_AGAIN_S = 1.0
_LOG_EVERY_S = 60.0

log = structlog.get_logger("laredo.http")


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
        self._counts = counts
        self._listener = listener
        self._limit = ConnectionLimit(counts)
        self._accepting: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._log_after = 0.0

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
        # uvicorn would have asyncio accept, which tries 2,048 times a second when descriptors run
        # out, each with a traceback in the log.
        await super().startup(sockets=[])
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        await super().shutdown(sockets=[self._listener])

    async def _accept(self) -> None:
        """Accept connections; wait while the system is out of descriptors or memory."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as failure:
                self._log_failure(failure)
                await asyncio.sleep(_ACCEPT_AGAIN_S * random.uniform(0.5, 1.0))
                continue
            try:
                await loop.connect_accepted_socket(self._connection, accepted)
            except OSError as failure:
                accepted.close()
                self._log_failure(failure)

    def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        state = self.lifespan.state
        return Connection(self.config, self.server_state, state, loop, self._limit)

    def _log_failure(self, failure: OSError) -> None:
        self._counts.accept_failures += 1
        if time.monotonic() >= self._log_after:
            self._log_after = time.monotonic() + _LOG_EVERY_S
            log.error(
                "no HTTP connection can be accepted; tried again until one can",
                error=str(failure),
                failures=self._counts.accept_failures,
                cure="raise the limit of open files (ulimit -n, LimitNOFILE)",
            )
