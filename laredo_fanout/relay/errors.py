"""Errors of a relay: what keeps it from following its upstream.

SourceError                    (postgres/errors.py)
├── UpstreamUnavailable        can't connect, or the call was refused: tried again
├── UpstreamTooOld             it doesn't know relays
└── RelayLoop                  this server is among those that the upstream follows
"""

from __future__ import annotations

from laredo_fanout.postgres.errors import SourceError


class UpstreamUnavailable(SourceError):
    """The upstream can't be connected to, or refuses the call; retried with growing pauses."""


class UpstreamTooOld(SourceError):
    """The upstream doesn't know relays: it is of an earlier version, or another program."""

    def __init__(self, server: str) -> None:
        super().__init__(
            f"the server {server} doesn't know relays (capability relay.v1): run this version of"
            " laredo-fanout there"
        )


class RelayLoop(SourceError):
    """This server is among those that the upstream follows: neither would ever get a change."""


class BatchAbandoned(Exception):
    """The uncommitted batch was given up: all streams restart from the store's position."""


class HistoryMoved(Exception):
    """The upstream follows another history than this store has so far."""
