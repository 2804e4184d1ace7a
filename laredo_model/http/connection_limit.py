"""The limit on open HTTP connections, and the choice of which one to close beyond it."""

from typing import Protocol

from laredo_model.http.counts import EndReason, HttpCounts

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

        :param instead_of: what it was while it was being opened.
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
