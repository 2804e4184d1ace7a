"""Going away: said once, known to every session."""

from __future__ import annotations


class Drain:
    """`deadline_ms` is 0 until the server drains, then Unix milliseconds by when clients leave."""

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.reason = ""

    def begin(self, reason: str, deadline_ms: int) -> None:
        """From now on new sessions are refused and old ones told to leave."""
        self.reason = reason
        self.deadline_ms = deadline_ms
