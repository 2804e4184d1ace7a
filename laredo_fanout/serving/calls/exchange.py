"""One streaming call as its transport carries it: who calls, and where the messages go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from laredo_fanout.serving.calls.caller import Caller


class DirectOutput(Protocol):
    """A stream that takes bytes at once, without a task that waits: a socket's transport.

    `framing` names how `frame` writes messages, so that streams with equal framings share its
    bytes.
    """

    framing: str

    def frame(self, messages: Sequence[bytes]) -> bytes:
        """The bytes that carry these messages."""
        ...

    def write(self, frame: bytes) -> None:
        """Send the bytes, or keep them until the socket takes them; never waits."""
        ...

    @property
    def full(self) -> bool:
        """True if the buffer is so full that nothing more should be written."""
        ...

    def when_full(self, notify: Callable[[], None] | None) -> None:
        """Have `notify` called, within `write`, when the stream becomes full; None: nobody."""
        ...


class Exchange(Protocol):
    """Transport of one session: gRPC or Connect, neither of which the session knows."""

    @property
    def caller(self) -> Caller:
        """The caller."""
        ...

    @property
    def direct(self) -> DirectOutput | None:
        """Output of this stream for writes that don't wait; None where the transport has none."""
        ...

    def packed(self, messages: Sequence[bytes]) -> Iterable[bytes]:
        """Group messages into units for `send`: some share a write."""
        ...

    async def send(self, message: bytes) -> None:
        """Send a message, or what `packed` made of some; returns once there is room for more."""
        ...
