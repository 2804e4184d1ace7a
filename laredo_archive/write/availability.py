"""How each destination stands with one writer: in reach, or away, since when and why."""

import threading
from datetime import UTC, datetime
from typing import NamedTuple


class Standing(NamedTuple):
    """One destination. ``since``: by our clock, when it went away or was found in reach."""

    since: datetime
    problem: str | None
    """What it last said; None if it is in reach."""


class Standings:
    """By place; of one that wasn't asked yet nothing is known. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Standing] = {}

    def of(self, place: str) -> Standing | None:
        """What is known of ``place``."""
        with self._lock:
            return self._found.get(place)

    def failed(self, place: str, problem: str) -> None:
        """It didn't do what it was asked."""
        with self._lock:
            before = self._found.get(place)
            away = before is not None and before.problem is not None
            since = before.since if before is not None and away else datetime.now(UTC)
            self._found[place] = Standing(since, problem)

    def worked(self, place: str) -> None:
        """It took a manifest."""
        with self._lock:
            before = self._found.get(place)
            if before is None or before.problem is not None:
                self._found[place] = Standing(datetime.now(UTC), None)
