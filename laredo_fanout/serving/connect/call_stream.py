"""The exchange of a streaming Connect call: messages in envelopes, several of them in a write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from laredo_fanout.serving.calls.caller import Caller
from laredo_fanout.serving.connect import envelope, request
from laredo_fanout.serving.connect.request import CalledMethod

PACKED_BYTES = 64 << 10
"""A write has no more, or a single message: it is what a client that takes nothing costs."""


class Output(Protocol):
    """The connection's side of the call."""

    @property
    def full(self) -> bool:
        """True if the client's side has no room now."""
        ...

    def write(self, data: bytes) -> None:
        """Write at once, whether or not there is room."""
        ...

    async def room(self) -> None:
        """Returns when the client's side, or the socket's buffer and ours, have room for more."""
        ...

    def when_full(self, notify: Callable[[], None] | None) -> None:
        """Have `notify` called when there is no more room."""
        ...


class CallStream:
    """One streaming call over a connection, in protobuf or in JSON."""

    def __init__(self, connection: Output, called: CalledMethod, caller: Caller) -> None:
        self.caller = caller
        self._connection = connection
        self._called = called

    @property
    def direct(self) -> ProtoOutput | None:
        """The stream for writes that don't wait; a message in JSON may have to be made first."""
        return None if self._called.as_json else ProtoOutput(self._connection)

    def packed(self, messages: Sequence[bytes]) -> Iterator[bytes]:
        """Chunks that carry the messages, about `PACKED_BYTES` each; in JSON the messages."""
        if self._called.as_json:
            yield from messages
            return
        together: list[bytes] = []
        size = 0
        for message in messages:
            if together and size + len(message) > PACKED_BYTES:
                yield envelope.chunk(together)
                together, size = [], 0
            together.append(message)
            size += len(message) + envelope.HEAD_BYTES
        if together:
            yield envelope.chunk(together)

    async def send(self, message: bytes) -> None:
        """Send what `packed` made."""
        if self._called.as_json:
            message = envelope.chunk([await request.encode(self._called, message)])
        await self._connection.room()
        self._connection.write(message)
        await self._connection.room()


class ProtoOutput:
    """A call's stream in protobuf, for bytes that it shares with other calls."""

    framing = "connect+proto"

    def __init__(self, connection: Output) -> None:
        self._connection = connection
        self.write = connection.write
        self.when_full = connection.when_full

    def frame(self, messages: Sequence[bytes]) -> bytes:
        """One chunk that carries the messages."""
        return envelope.chunk(messages)

    @property
    def full(self) -> bool:
        """True if the client's side has no room now."""
        return self._connection.full
