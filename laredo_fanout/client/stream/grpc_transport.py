"""Calls by gRPC: all streams share one connection (HTTP/2)."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from laredo_fanout.client.errors import (
    ProtocolViolation,
    ServerUnavailable,
    StreamBroken,
    of_status,
)
from laredo_fanout.client.loop_share import LoopShare
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.wire import replication_pb2 as wire

_SERVICE = wire.DESCRIPTOR.services_by_name["LaredoReplicationService"]
_SYNC = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['Sync'].name}"
STATUS_METHOD = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['GetReplicationStatus'].name}"


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses messages in the loop's share: one of 850 KB takes a millisecond."""

    share: LoopShare

    def parsed(self, data: bytes) -> wire.SyncResponse | None:
        """The message; None if it can't be parsed (gRPC would log an exception)."""
        self.share.note_work()
        try:
            return wire.SyncResponse.FromString(data)
        except DecodeError:
            return None


@dataclass(slots=True, eq=False)
class _Connection:
    channel: grpc.aio.Channel
    streams: int = 0


class GrpcTransport:
    """One connection for all streams, as long as there are any.

    A connection that failed, or whose server sent GoAway, isn't used for new streams: gRPC would
    reconnect with pauses of its own, and to the same server.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._current: _Connection | None = None

    def check(self) -> None:
        if self._endpoint.tls is not None:
            self._endpoint.tls.credentials()

    @asynccontextmanager
    async def sync(
        self, request: wire.SyncRequest
    ) -> AsyncIterator[AsyncIterator[wire.SyncResponse]]:
        """Open a stream on the connection."""
        with self._endpoint.connecting():
            connection = self._current = self._current or _Connection(self._endpoint.channel())
        connection.streams += 1
        try:
            sync = connection.channel.unary_stream(
                _SYNC,
                request_serializer=wire.SyncRequest.SerializeToString,
                response_deserializer=_Parser(LoopShare.of_running_loop()).parsed,
            )
            call = sync(request, metadata=self._endpoint.metadata())
            messages = self._messages(call, connection)
            try:
                yield messages
            finally:
                call.cancel()
                await messages.aclose()
        finally:
            connection.streams -= 1
            if not connection.streams:
                self._retire(connection)
                await connection.channel.close(None)

    async def status(
        self, request: wire.GetReplicationStatusRequest, timeout: float
    ) -> wire.GetReplicationStatusResponse:
        """Request the status of a table on a connection of its own."""
        return await replication_status(self._endpoint, request, timeout)

    async def _messages(
        self,
        call: "grpc.aio.UnaryStreamCall[wire.SyncRequest, wire.SyncResponse | None]",
        connection: _Connection,
    ) -> AsyncGenerator[wire.SyncResponse, None]:
        try:
            async for message in call:
                if message is None:
                    raise ProtocolViolation(
                        self._endpoint.server, "the answer isn't a SyncResponse"
                    )
                if message.HasField("go_away"):
                    self._retire(connection)
                yield message
        except grpc.aio.AioRpcError as ended:
            error = of_status(self._endpoint.server, ended.code(), ended.details())
            if isinstance(error, ServerUnavailable | StreamBroken):
                self._retire(connection)
            raise error from ended

    def _retire(self, connection: _Connection) -> None:
        if self._current is connection:
            self._current = None


async def replication_status(
    endpoint: Endpoint, request: wire.GetReplicationStatusRequest, timeout: float
) -> wire.GetReplicationStatusResponse:
    """The status of a table, or the tables, on a connection of its own.

    :raises StreamError: if the server doesn't answer, refuses, or sends no status.
    """
    with endpoint.connecting():
        channel = endpoint.channel()
    try:
        call = channel.unary_unary(
            STATUS_METHOD,
            request_serializer=wire.GetReplicationStatusRequest.SerializeToString,
            # It is parsed below: gRPC logs a deserializer's exception with a traceback.
            response_deserializer=bytes,
        )
        answer = await call(request, metadata=endpoint.metadata(), timeout=timeout)
        return wire.GetReplicationStatusResponse.FromString(answer)
    except DecodeError as wrong:
        raise ProtocolViolation(endpoint.server, "the answer isn't a status") from wrong
    except grpc.aio.AioRpcError as refused:
        raise of_status(endpoint.server, refused.code(), refused.details()) from refused
    finally:
        await channel.close(None)
