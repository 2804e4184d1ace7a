"""Catalog snapshots that were requested, and those whose message the stream hasn't brought yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laredo_fanout.catalog.side_connection import CheckRequest

if TYPE_CHECKING:
    from laredo_fanout.catalog.snapshot import CatalogSnapshot


class CatalogChecks:
    """The catalog snapshots that are under way. Numbers of requests are ours, numbers of snapshots
    are the side connection's."""

    def __init__(self, request: Callable[[CheckRequest], None]) -> None:
        self._request = request
        self._requests = 0
        self._coming: dict[bytes, CatalogSnapshot] = {}

    def ask(self, after_s: float = 0.0) -> int:
        """Request a catalog snapshot; the number of the request, which it will answer."""
        self._requests += 1
        self._request(CheckRequest(self._requests, after_s))
        return self._requests

    def keep(self, snapshot: CatalogSnapshot) -> None:
        """The side connection took this snapshot; its message will come in the stream."""
        self._coming[snapshot.message.encode()] = snapshot

    def passed(self, content: bytes) -> CatalogSnapshot | None:
        """The stream has passed this message; None: it isn't a snapshot's.

        Earlier ones, whose messages didn't come, don't count any more.
        """
        snapshot = self._coming.pop(content, None)
        if snapshot is not None:
            self._coming = {
                known: each for known, each in self._coming.items() if each.number > snapshot.number
            }
        return snapshot
