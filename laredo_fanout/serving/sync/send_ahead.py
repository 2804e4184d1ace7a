"""A send buffer of one large message, which is sent while the next one is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

_WORTHWHILE = 64 << 10


class SendAhead:
    """Keeps at most one large message on its way while its maker works on the next.

    gRPC's own threads send without the interpreter's lock, so a snapshot gains a fifth. Small
    messages aren't worth a task; they are sent at once. Errors of a send come out of the next
    one, or of the block's end.
    """

    def __init__(self, send: Callable[[list[bytes]], Awaitable[None]]) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None

    async def send(self, messages: list[bytes]) -> None:
        """Send the messages; returns when they are sent, or a large one is on its way."""
        small = max(map(len, messages)) < _WORTHWHILE
        for some in [messages] if small else ([message] for message in messages):
            await self.drain()
            if len(some[0]) < _WORTHWHILE:
                await self._send(some)
                continue
            self._sending = asyncio.create_task(self._write(some))
            # One turn of the loop starts the write.
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Wait until nothing is on its way."""
        if self._sending is not None:
            sending, self._sending = self._sending, None
            try:
                await sending
            except asyncio.CancelledError:
                sending.cancel()
                raise

    async def _write(self, messages: list[bytes]) -> None:
        await self._send(messages)

    async def __aenter__(self) -> SendAhead:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.drain()
        elif self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
