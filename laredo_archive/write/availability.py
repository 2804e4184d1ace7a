"""Keeps, for one writer, whether each destination is available, since when, and why not."""

import threading
from datetime import UTC, datetime
from typing import NamedTuple


class Availability(NamedTuple):
    """The availability of one destination."""

    #: When it became available or unavailable, by our clock.
    since: datetime
    #: Why it is unavailable; None if it is available.
    problem: str | None
    """Its last error; None if it is available."""


class Availabilities:
    """Each destination's availability, by its location; unknown until asked. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Availability] = {}

    def of(self, location: str) -> Availability | None:
        """The availability of the destination at ``location``; None if unknown."""
        with self._lock:
            return self._found.get(location)

    def failed(self, location: str, problem: str) -> None:
        """A request to it failed."""
        with self._lock:
            before = self._found.get(location)
            unavailable = before is not None and before.problem is not None
            since = before.since if before is not None and unavailable else datetime.now(UTC)
            self._found[location] = Availability(since, problem)

    def worked(self, location: str) -> None:
        """It stored a manifest."""
        with self._lock:
            before = self._found.get(location)
            if before is None or before.problem is not None:
                self._found[location] = Availability(datetime.now(UTC), None)
