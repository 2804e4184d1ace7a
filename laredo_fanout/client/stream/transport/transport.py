"""The transport: what a stream and a status need of gRPC or of the Connect protocol."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from laredo_fanout.wire import replication_pb2 as wire


class Transport(Protocol):
    """The calls to one server. Several streams may be open at once, on one event loop.

    Whatever ends a call is raised as a :class:`~laredo_fanout.client.errors.StreamError`.
    """

    def check(self) -> None:
        """:raises BadEndpoint: if the TLS files can't be used."""
        ...

    def sync(
        self, request: wire.SyncRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[wire.SyncResponse]]:
        """Open a stream; leaving the block ends it.

        Messages that aren't taken stay with the server, but for a bounded buffer.
        """
        ...

    async def status(
        self, request: wire.GetReplicationStatusRequest, timeout: float
    ) -> wire.GetReplicationStatusResponse:
        """Request the status of a table, once, within ``timeout`` seconds."""
        ...
