"""Counters of changes and bytes that a serving process has sent to its clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SentCounts:
    """Messages of streams, and their bytes.

    Bytes are those that are given to gRPC, without its framing, or to a connection of Connect,
    with its envelopes and chunks; a message that is sent as JSON counts as the protobuf it was.
    """

    bytes: int = 0
    messages: int = 0

    def add(self, size: int, messages: int) -> None:
        """Count a write."""
        self.bytes += size
        self.messages += messages

    def take(self) -> tuple[int, int]:
        """Bytes and messages since it was last asked."""
        taken = self.bytes, self.messages
        self.bytes = self.messages = 0
        return taken
