"""An HTTP server for an ASGI application, within the running event loop and within limits."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from laredo_model.http.acceptor import Acceptor, Opening
from laredo_model.http.connection import Connection
from laredo_model.http.connection_limit import ConnectionLimit
from laredo_model.http.counts import HttpCounts
from laredo_model.http.guard import Guard
from laredo_model.http.settings import HttpSettings

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
