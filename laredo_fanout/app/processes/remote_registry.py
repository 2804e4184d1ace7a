"""A serving process's registry of clients: calls the main one over the control socket."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from laredo_fanout.app.processes.control_wire import Control, Message, info_to_json, state_from_json
from laredo_fanout.serving import slices
from laredo_fanout.serving.ports import ClientInfo, ClientState, TooManyClients
from laredo_fanout.serving.slices import Slice, Sliced

_FLUSH_INTERVAL = 1.0


class RemoteRegistry:
    """The ``Registry`` of ``serving.ports`` over a control socket."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._calls = count(1)
        self._leases = count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._changed: dict[int, tuple[int, int, str]] = {}
        self._flusher: asyncio.TimerHandle | None = None

    async def register(self, info: ClientInfo) -> RemoteLease:
        """Register a stream.

        :raises TooManyClients: if a limit is reached, over all processes or for this caller.
        """
        lease = RemoteLease(self, next(self._leases))
        info_json = info_to_json(info)
        try:
            answer = await self.call({"op": "register", "lease": lease.number, "info": info_json})
        except asyncio.CancelledError:
            # The main process registers it all the same; what it reads next removes it again.
            lease.close("client")
            raise
        if "full" in answer:
            raise TooManyClients(answer["full"])
        return lease

    async def clients(self, table: str) -> list[ClientState]:
        """The clients connected to the table, in order of connection."""
        await self.flush()
        answer = await self.call({"op": "clients", "table": table})
        return await slices.run(_states(answer["clients"]))

    async def call(self, message: Message) -> Message:
        """Send a message that the main process answers, and wait for it."""
        number = next(self._calls)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self._control.send({**message, "call": number})
            return await future
        finally:
            del self._waiting[number]

    def answered(self, message: Message) -> None:
        """Hand an answer to the call that waits for it."""
        future = self._waiting.get(message["call"])
        if future is not None and not future.done():
            future.set_result(message)

    def send(self, message: Message) -> None:
        self._control.send(message)

    def note(self, lease: int, figures: tuple[int, int, str]) -> None:
        """Note a session's newest figures, which are sent within a second."""
        self._changed[lease] = figures
        if self._flusher is None:
            loop = asyncio.get_running_loop()
            self._flusher = loop.call_later(_FLUSH_INTERVAL, self._send_changed)

    def forget(self, lease: int) -> None:
        self._changed.pop(lease, None)

    async def flush(self) -> None:
        """Send the noted figures now."""
        if self._flusher is not None:
            self._flusher.cancel()
        self._send_changed()

    def _send_changed(self) -> None:
        self._flusher = None
        changed, self._changed = self._changed, {}
        if changed:
            leases: list[list[Any]] = [[lease, *figures] for lease, figures in changed.items()]
            self._control.send({"op": "update", "leases": leases})


def _states(clients: list[Message]) -> Sliced[list[ClientState]]:
    slice_, states = Slice(), []
    for client in clients:
        states.append(state_from_json(client))
        if slice_.done_with(0):
            yield
    return states


class RemoteLease:
    """The ``Lease`` of ``serving.ports`` over a control socket."""

    def __init__(self, registry: RemoteRegistry, number: int) -> None:
        self._registry = registry
        self.number = number
        self._open = True

    def update(self, *, sequence: int, depth: int, state: str) -> None:
        if self._open:
            self._registry.note(self.number, (sequence, depth, state))

    async def pin(self, table_id: int, after_sequence: int) -> None:
        if self._open:
            await self._registry.call(
                {"op": "pin", "lease": self.number, "table": table_id, "after": after_sequence}
            )

    def unpin(self) -> None:
        if self._open:
            self._registry.send({"op": "unpin", "lease": self.number})

    def close(self, reason: str) -> None:
        if self._open:
            self._open = False
            self._registry.forget(self.number)
            self._registry.send({"op": "close", "lease": self.number, "reason": reason})
