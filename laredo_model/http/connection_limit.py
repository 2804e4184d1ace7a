"""How many HTTP connections there may be, and which one goes when another comes."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

MAX_CONNECTIONS = 128
"""At once; probes, Prometheus and operators need a handful."""


class Ended(StrEnum):
    """Why a connection was ended by us."""

    SLOW = "slow"
    """Its request wasn't whole, or its answer not taken, in time."""
    FULL = "full"
    """Too many were open."""
    OVERSIZED = "oversized"
    """Its request had too many bytes."""


@dataclass
class HttpCounts:
    """What became of connections, for the metrics."""

    ended: Counter[Ended] = field(default_factory=Counter)
    accept_failures: int = 0
    """Times that a connection couldn't be accepted, mostly for want of file descriptors."""


class Guest(Protocol):
    """A connection, as the room knows it."""

    def end(self, why: Ended) -> None:
        """Close it now."""


class Room:
    """The open connections, at most ``limit``.

    Beyond that the connection goes that has waited for a whole request for the longest: whoever
    opens many and sends nothing closes only their own, and a probe, which sends its request at
    once, is answered.
    """

    def __init__(self, counts: HttpCounts, limit: int = MAX_CONNECTIONS) -> None:
        self.counts = counts
        self._limit = limit
        self._waiting: dict[Guest, None] = {}
        self._answering: set[Guest] = set()

    def enter(self, guest: Guest) -> None:
        """A connection was opened."""
        if len(self._waiting) + len(self._answering) >= self._limit:
            going = next(iter(self._waiting), guest)
            self.leave(going)
            going.end(Ended.FULL)
            if going is guest:
                return
        self._waiting[guest] = None

    def waits(self, guest: Guest) -> None:
        """It has no whole request."""
        if guest in self._answering:
            self._answering.remove(guest)
            self._waiting[guest] = None

    def is_answered(self, guest: Guest) -> None:
        """Its request is whole."""
        if guest in self._waiting:
            del self._waiting[guest]
            self._answering.add(guest)

    def leave(self, guest: Guest) -> None:
        """It is closed; one that isn't here is no error."""
        self._waiting.pop(guest, None)
        self._answering.discard(guest)
