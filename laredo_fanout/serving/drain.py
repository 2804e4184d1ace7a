"""The drain of a serving process: the deadline and reason that all sessions announce."""

from __future__ import annotations


class Drain:
    """The drain's deadline and reason.

    `deadline_ms` is 0 until the server drains, then the Unix time in milliseconds by which clients
    must leave.
    """

    def __init__(self) -> None:
        self.deadline_ms = 0
        self.reason = ""

    def begin(self, reason: str, deadline_ms: int) -> None:
        """Refuse new sessions from now on and notify the open ones to leave."""
        self.reason = reason
        self.deadline_ms = deadline_ms
