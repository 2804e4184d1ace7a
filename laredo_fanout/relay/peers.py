"""The peers of a server, which share its slot: their roles, and reports to the holder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from laredo_fanout.client.errors import BadEndpoint, of_status
from laredo_fanout.client.stream.grpc_transport import STATUS_METHOD
from laredo_fanout.client.stream.translate import STANDBY_CAPABILITY
from laredo_fanout.relay.path import UpstreamUnavailable, with_cure
from laredo_fanout.wire import replication_pb2 as wire

if TYPE_CHECKING:
    from laredo_fanout.relay.path import RelayOptions

_ANSWER_S = 2.0


class PeerNotHolder(UpstreamUnavailable):
    """The peer that is followed doesn't hold the slot any more."""


class Peer:
    """A connection to a peer: ``async with`` it."""

    def __init__(self, options: RelayOptions, answer_s: float = _ANSWER_S) -> None:
        self._options = options
        self._answer_s = answer_s

    async def __aenter__(self) -> Peer:
        """:raises UpstreamUnavailable: if the token's file or a TLS file can't be used."""
        self._endpoint = self._options.endpoint()
        try:
            self._channel = self._endpoint.channel()
        except BadEndpoint as wrong:
            raise UpstreamUnavailable(str(wrong)) from wrong
        self._call = self._channel.unary_unary(
            STATUS_METHOD,
            request_serializer=wire.GetReplicationStatusRequest.SerializeToString,
            response_deserializer=bytes,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def role(
        self,
        server_id: str,
        tables: Mapping[str, tuple[int, int]] | None = None,
        *,
        take_over: str = "",
    ) -> wire.ServerRole:
        """Report what the server ``server_id`` has durably; returns the peer's role.

        ``take_over``: id of the server that is to take over the slot, which is free.

        :raises UpstreamUnavailable: if it doesn't answer, or has no standbys.
        """
        report = None
        if tables is not None:
            report = wire.StandbyReport(
                server_id=server_id,
                tables=[
                    wire.TableReport(table=name, incarnation=incarnation, position=position)
                    for name, (incarnation, position) in tables.items()
                ],
            )
        request = wire.GetReplicationStatusRequest(
            capabilities=[STANDBY_CAPABILITY], standby=report, take_over=take_over
        )
        try:
            answer = await self._call(
                request, metadata=self._endpoint.metadata(), timeout=self._answer_s
            )
            return wire.GetReplicationStatusResponse.FromString(answer).role
        except grpc.aio.AioRpcError as refused:
            error = of_status(self._options.server, refused.code(), refused.details())
            raise UpstreamUnavailable(with_cure(str(error), self._options)) from refused
        except DecodeError as wrong:
            raise UpstreamUnavailable(f"{self._options.server} sent no status") from wrong


async def role_of(peer: RelayOptions, server_id: str) -> wire.ServerRole:
    """Ask one peer for its role.

    :raises UpstreamUnavailable: if it doesn't answer, or has no standbys.
    """
    async with Peer(peer) as asked:
        return await asked.role(server_id)


class PeerRole(NamedTuple):
    """A peer that answered."""

    options: RelayOptions
    role: wire.ServerRole


class Answers(NamedTuple):
    """The peers that answered, without this server itself, and the errors of the others."""

    roles: list[PeerRole]
    failures: list[str]
    silent: bool
    """True if a peer neither answered in time nor refused the connection: it may be busy."""


def others(
    peers: Iterable[RelayOptions],
    server_id: str,
    *,
    answer_s: float = _ANSWER_S,
    take_over: str = "",
) -> Answers:
    """Ask the peers for their roles, for at most ``answer_s``.

    ``take_over``: id of the one that is to take over the slot, which is free.
    """

    async def ask(options: RelayOptions) -> PeerRole | UpstreamUnavailable:
        try:
            async with Peer(options, answer_s) as peer:
                return PeerRole(options, await peer.role(server_id, take_over=take_over))
        except UpstreamUnavailable as error:
            return error

    async def ask_all() -> list[PeerRole | UpstreamUnavailable]:
        return await asyncio.gather(*map(ask, peers))

    found = asyncio.run(ask_all())
    roles = [each for each in found if isinstance(each, PeerRole)]
    failures = [each for each in found if isinstance(each, UpstreamUnavailable)]
    return Answers(
        [each for each in roles if each.role.server_id != server_id],
        [str(each) for each in failures],
        any(map(_is_late, failures)),
    )


def _is_late(failure: UpstreamUnavailable) -> bool:
    refused = failure.__cause__
    return (
        isinstance(refused, grpc.aio.AioRpcError)
        and refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    )
