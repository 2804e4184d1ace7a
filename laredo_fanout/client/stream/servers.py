"""The servers that a stream may come from: a transport to each, and their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from time import monotonic

from laredo_fanout.client.errors import ServerUnavailable, SnapshotOffered, StreamError
from laredo_fanout.client.events import Handshake
from laredo_fanout.client.stream.connect_transport import ConnectTransport
from laredo_fanout.client.stream.endpoint import Endpoint, Transport
from laredo_fanout.client.stream.grpc_transport import GrpcTransport
from laredo_service.retry import Outage


def transport_to(endpoint: Endpoint) -> Transport:
    """A transport to the endpoint; it connects when it is called."""
    return (
        ConnectTransport(endpoint) if endpoint.transport == "connect" else GrpcTransport(endpoint)
    )


class Servers:
    """The servers of an endpoint, in order, and a transport to each.

    Streams that share it share its connections; they begin with the server that answered last.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoints = endpoint.each()
        self.answered = self.endpoints[0]
        """The last server that a stream came from; the first of the list before."""
        self._transports: dict[Endpoint, Transport] = {}

    def check(self) -> None:
        """:raises BadEndpoint: if the TLS files can't be used."""
        self.transport(self.answered).check()

    def transport(self, endpoint: Endpoint) -> Transport:
        """The transport to one of the servers."""
        if endpoint not in self._transports:
            self._transports[endpoint] = transport_to(endpoint)
        return self._transports[endpoint]

    def __str__(self) -> str:
        return ", ".join(each.server for each in self.endpoints)


_ANSWER_S = 5.0
"""Longest wait for a handshake if there are other servers; it grows from round to round."""
_RESUME_S = 10.0
"""Time after the loss of a stream for which a server that can resume is preferred."""


class Turns:
    """The order in which one subscription tries the servers: each has one turn in a round.

    A round begins with the server that answered last, then follows the order of the list. A server
    that serves keeps its turn.
    """

    def __init__(self, servers: Servers, clock: Callable[[], float] = monotonic) -> None:
        self.servers = servers
        self.now = servers.answered
        """The server whose turn it is."""
        self.rounds = 0
        """Rounds in a row in which no server served."""
        self._clock = clock
        self._lost_at = clock()
        self._had_turn: dict[Endpoint, StreamError | None] = {}
        self._without_resume: set[Endpoint] = set()
        self._outages: dict[Endpoint, Outage] = defaultdict(Outage)

    @property
    def answer_limit(self) -> float | None:
        """Longest wait for the server's handshake, in seconds; None: no limit."""
        return _ANSWER_S * (1 + self.rounds) if len(self.servers.endpoints) > 1 else None

    def too_slow(self) -> ServerUnavailable:
        """The error of a server that took longer than ``answer_limit``."""
        limit = self.answer_limit or 0
        return ServerUnavailable(self.now.server, f"no answer within {limit:g} s of the request")

    def check(self, handshake: Handshake, *, resumes: bool) -> None:
        """Prefer a server that can resume to one that would send a snapshot, for a while.

        :raises SnapshotOffered: if another server is to be tried first.
        """
        if resumes and handshake.snapshot_follows:
            self._without_resume.add(self.now)
            all_asked = self._without_resume.issuperset(self.servers.endpoints)
            if not all_asked and self._clock() < self._lost_at + _RESUME_S:
                raise SnapshotOffered(
                    self.now.server, "it would send a snapshot; the other servers are tried first"
                )
        self.servers.answered = self.now

    def served(self) -> None:
        """Note that the server's stream has brought an event after the handshake."""
        self.rounds = 0
        self._had_turn.clear()
        self._without_resume.clear()
        self._outages[self.now].end()
        self._lost_at = self._clock()

    def is_news(self, error: StreamError) -> bool:
        """True if the server's failure is worth a line in the log."""
        return self._outages[self.now].is_news(type(error).__name__)

    def pass_on(self, error: StreamError | None) -> bool:
        """Turn to the next server; True if the round ended with this one.

        :raises StreamError: if none of the servers can serve, however often it is asked.
        """
        self._had_turn[self.now] = error
        if error is not None and not error.retryable:
            self._without_resume.add(self.now)
        each = self.servers.endpoints
        place = each.index(self.now)
        order = (self.servers.answered, *each[place + 1 :], *each[:place])
        self.now = next((other for other in order if other not in self._had_turn), self.now)
        if self.now not in self._had_turn:
            return False
        refused = [found for found in self._had_turn.values() if found and not found.retryable]
        if len(refused) == len(each):
            raise refused[-1]
        self.rounds += any(self._had_turn.values())
        self._had_turn.clear()
        self.now = self.servers.answered
        return True
