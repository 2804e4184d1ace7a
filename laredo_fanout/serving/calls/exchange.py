"""One streaming call as its transport carries it: who calls, and where the messages go."""

from __future__ import annotations

from typing import Protocol

from laredo_fanout.serving.calls.caller import Caller


class Exchange(Protocol):
    """What a session needs of gRPC, or of Connect: it knows neither."""

    @property
    def caller(self) -> Caller:
        """Who makes the call."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message; returns once the transport has room for another one."""
        ...
