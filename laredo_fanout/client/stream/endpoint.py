"""The endpoint of a server: address, TLS, token, and the interface of its transport."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import grpc

from laredo_fanout.client.errors import BadEndpoint, ServerUnavailable
from laredo_fanout.wire import replication_pb2 as wire

# A row may have a gigabyte; the server bounds the rows in one message.
_UNLIMITED = -1

TransportName = Literal["grpc", "connect"]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS for a client: paths of PEM files."""

    #: The authority that signed the server's certificate; None: the system's roots.
    ca: Path | None = None
    #: This client's own certificate.
    cert: Path | None = None
    #: The private key of ``cert``.
    key: Path | None = None
    #: The name that the server's certificate must have, if not the address.
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """The files for gRPC.

        :raises BadEndpoint: if a file can't be read, or only one of cert and key is given.
        """
        ca, cert, key = self._files()
        return grpc.ssl_channel_credentials(
            root_certificates=ca, private_key=key, certificate_chain=cert
        )

    def context(self) -> ssl.SSLContext:
        """The files for HTTP/1.1.

        :raises BadEndpoint: as :meth:`credentials`, and if a file's content can't be used.
        """
        self._files()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as wrong:
            raise BadEndpoint(f"tls: the files can't be used: {wrong}") from wrong
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        if (self.cert is None) != (self.key is None):
            raise BadEndpoint("tls: cert and key belong together; give both or neither")
        return _read("ca", self.ca), _read("cert", self.cert), _read("key", self.key)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a server, or of several, with TLS, token and timeouts."""

    #: ``host:port``, or ``unix:/path``.
    server: str
    tls: Tls | None = None
    #: The token that the server asks for.
    token: str | None = field(default=None, repr=False)
    #: Interval of pings, which detect a connection that is lost without being closed.
    keepalive_s: float = 30.0
    #: Longest wait for a ping's answer.
    keepalive_timeout_s: float = 10.0
    #: ``connect``: the Connect protocol over HTTP/1.1, on the server's port for it (4003).
    transport: TransportName = "grpc"
    #: By Connect: the longest that a stream may be silent. The server's heartbeats (each 10 s by
    #: default, ``heartbeat_interval``) break the silence of a quiet table.
    silence_s: float = 60.0
    #: Other servers with the same data, such as relays, for when ``server`` doesn't serve.
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.transport not in ("grpc", "connect"):
            raise BadEndpoint(f"transport is {self.transport!r}; expected grpc or connect")
        for number, server in enumerate(self.servers):
            _check_address(server)
            if server in self.servers[:number]:
                raise BadEndpoint(f"the server {server} is listed twice")

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of all servers, in the order in which they are tried."""
        return (self.server, *self.others)

    def each(self) -> tuple[Endpoint, ...]:
        """An endpoint for each of the servers alone."""
        return tuple(replace(self, server=server, others=()) for server in self.servers)

    def channel(self) -> grpc.aio.Channel:
        """Open a connection by gRPC (not shared with other channels of this process).

        :raises BadEndpoint: if the TLS files can't be used.
        """
        options: list[tuple[str, object]] = [
            ("grpc.max_receive_message_length", _UNLIMITED),
            ("grpc.max_send_message_length", _UNLIMITED),
            ("grpc.keepalive_time_ms", int(self.keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.keepalive_timeout_s * 1000)),
            # Without it an unanswered ping counts only after a minute, whatever the options above.
            ("grpc.http2.ping_timeout_ms", int(self.keepalive_timeout_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            # A shared connection would share one TCP window and one back-off between clients.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        if self.tls is None:
            return grpc.aio.insecure_channel(self.server, options=options)
        if self.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return grpc.aio.secure_channel(self.server, self.tls.credentials(), options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of every call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Make TLS files that can't be used while a connection is made a failure that is retried.

        They may be in the middle of a rotation; at the start they were used.

        :raises ServerUnavailable: instead of BadEndpoint.
        """
        try:
            yield
        except BadEndpoint as wrong:
            raise ServerUnavailable(self.server, str(wrong)) from wrong


def endpoint_of(
    server: str | Sequence[str],
    tls: Tls | None = None,
    token: str | None = None,
    transport: TransportName = "grpc",
) -> Endpoint:
    """The endpoint of a server, or of a list of servers.

    :raises BadEndpoint: if an address isn't one, or the list is empty or names one twice.
    """
    servers = (server,) if isinstance(server, str) else tuple(server)
    if not servers:
        raise BadEndpoint("the list of servers is empty; give one host:port at least")
    return Endpoint(servers[0], tls, token, transport=transport, others=servers[1:])


def _check_address(server: str) -> None:
    if server.startswith("unix:"):
        return
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadEndpoint(f"{server!r} is not a server's address; expected host:port or unix:/path")


def _read(what: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        pem = Path(path).read_bytes()
    except OSError as refused:
        raise BadEndpoint(f"tls: can't read {what} {path}: {refused.strerror}") from refused
    if b"-----BEGIN" not in pem:
        raise BadEndpoint(f"tls: {what} {path} is not a PEM file")
    return pem


class Transport(Protocol):
    """The calls to one server. Several streams may be open at once, on one event loop.

    An error that ends a call is a :class:`~laredo_fanout.client.errors.StreamError`.
    """

    def check(self) -> None:
        """:raises BadEndpoint: if the TLS files can't be used."""
        ...

    def sync(
        self, request: wire.SyncRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[wire.SyncResponse]]:
        """Open a stream; leaving the block ends it.

        Messages that aren't taken stay with the server, apart from a bounded buffer.
        """
        ...

    async def status(
        self, request: wire.GetReplicationStatusRequest, timeout: float
    ) -> wire.GetReplicationStatusResponse:
        """Request the status of a table, once, within ``timeout`` seconds."""
        ...
