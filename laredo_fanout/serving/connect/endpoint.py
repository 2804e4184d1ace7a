"""The Connect endpoint of a serving process: its listener and its connections."""

from __future__ import annotations

import asyncio
import socket

from laredo_fanout.serving import tls
from laredo_fanout.serving.calls.descriptors import connect_connections
from laredo_fanout.serving.connect.connection import CallConnection
from laredo_fanout.serving.errors import CannotListen
from laredo_fanout.serving.options import ConnectOptions, ListenerOptions
from laredo_fanout.serving.service import ReplicationService
from laredo_service.http.connections import Acceptor, ConnectionLimit, HttpCounts, Opening

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
        """Take connections from now on."""
        self._socket.listen(_BACKLOG)
        self._acceptor.start()

    async def drain(self, grace_s: float) -> None:
        """Stop listening at once; returns when all calls have ended, or are cut after the grace."""
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
        """The connection is gone."""
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
