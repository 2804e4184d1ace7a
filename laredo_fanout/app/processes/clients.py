"""The registry of the clients of all serving processes, and each serving process's view of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from typing import Any

from laredo_fanout.app.processes.control_wire import Control, Message, state_from_json
from laredo_fanout.serving import slices
from laredo_fanout.serving.ports import REASONS, ClientInfo, ClientState, TooManyClients
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.wire import replication_pb2 as wire

LeaseKey = tuple[int, int]
"""The serving process's number, and the number that it gave the lease."""

PROCESS_DIED = "process"


@dataclass
class _Client:
    info: ClientInfo
    sequence: int = 0
    depth: int = 0
    state: str = "connecting"
    pin: tuple[int, int] | None = None


@dataclass
class Clients:
    """The registry of clients, in the main process. Every method locks, as the ingest thread reads
    the pins."""

    max_clients: int
    max_clients_per_identity: int | None = None
    max_clients_per_client_id: int | None = None
    _clients: dict[LeaseKey, _Client] = field(default_factory=dict)
    _left: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys((*REASONS, PROCESS_DIED), 0))
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def limit(self, all_of_them: int, per_identity: int | None, per_client_id: int | None) -> None:
        """Apply other limits; connected clients stay."""
        with self._lock:
            self.max_clients = all_of_them
            self.max_clients_per_identity = per_identity
            self.max_clients_per_client_id = per_client_id

    def register(self, key: LeaseKey, info: ClientInfo) -> None:
        """Register a client.

        :raises TooManyClients: if ``max_clients`` are connected, over all processes, or if this
            token, certificate, address or client id has its share of them.
        """
        with self._lock:
            self._check_room(info)
            self._clients[key] = _Client(info)

    def _check_room(self, new: ClientInfo) -> None:
        if len(self._clients) >= self.max_clients:
            raise TooManyClients(
                f"the server already has its {self.max_clients} clients"
                " (fanout.grpc.max_clients); try again later, or raise the limit"
            )
        infos = [client.info for client in self._clients.values()]
        share = self.max_clients_per_identity
        owned = sum(info.owner == new.owner for info in infos) if new.owner else 0
        if share is not None and owned >= share:
            raise TooManyClients(
                f"{new.owner} already has its {share} clients of {self.max_clients}"
                " (fanout.grpc.max_clients_per_identity); close some, or raise the limit"
            )
        share = self.max_clients_per_client_id
        if share is not None and sum(_same_client(info, new) for info in infos) >= share:
            raise TooManyClients(
                f"client id {new.client_id!r} already has its {share} streams"
                " (fanout.grpc.max_clients_per_client_id): give every reader an id of its own,"
                " or raise the limit"
            )

    def update(self, key: LeaseKey, sequence: int, depth: int, state: str) -> None:
        """Update a client's figures; those of one that has left are dropped."""
        with self._lock:
            client = self._clients.get(key)
            if client is not None:
                client.sequence, client.depth, client.state = sequence, depth, state

    def pin(self, key: LeaseKey, table_id: int, after_sequence: int) -> None:
        """Keep the table's journal after this sequence for the client."""
        with self._lock:
            if key in self._clients:
                self._clients[key].pin = (table_id, after_sequence)

    def unpin(self, key: LeaseKey) -> None:
        """Release the client's pin."""
        with self._lock:
            if key in self._clients:
                self._clients[key].pin = None

    def leave(self, key: LeaseKey, reason: str) -> None:
        """Remove the client, with its pin, and count the reason."""
        with self._lock:
            if self._clients.pop(key, None) is not None:
                self._left[reason] += 1

    def leave_all(self, process: int) -> int:
        """Remove all clients of a serving process that ended; returns how many there were."""
        with self._lock:
            gone = [key for key in self._clients if key[0] == process]
            for key in gone:
                del self._clients[key]
            self._left[PROCESS_DIED] += len(gone)
        return len(gone)

    def pinned(self) -> dict[int, int]:
        """The lowest sequence after which a client needs a table's journal, by the table's id."""
        with self._lock:
            pins = [client.pin for client in self._clients.values() if client.pin is not None]
        lowest: dict[int, int] = {}
        for table_id, after in pins:
            lowest[table_id] = min(after, lowest.get(table_id, after))
        return lowest

    def of(self, table: str | None = None) -> list[ClientState]:
        """The clients connected to the table (or to any), in order of connection."""
        with self._lock:
            found = [
                ClientState(client.info, client.sequence, client.depth, client.state)
                for client in self._clients.values()
                if table is None or client.info.table == table
            ]
        return sorted(found, key=lambda client: client.info.connected_at_us)

    def left(self) -> dict[str, int]:
        """Number of clients that left since the start, by reason."""
        with self._lock:
            return dict(self._left)

    def __len__(self) -> int:
        with self._lock:
            return len(self._clients)


def _same_client(one: ClientInfo, other: ClientInfo) -> bool:
    """True if client id, owner and host match, so that no stranger uses up another's share."""
    return (one.client_id, one.owner, one.host) == (other.client_id, other.owner, other.host)


# A serving process's registry of clients: calls the main one over the control socket.

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
        lease = RemoteLease(self, next(self._leases))
        asked = {"op": "register", "lease": lease.number, "info": asdict(info)}
        try:
            answer = await self.call(asked)
        except asyncio.CancelledError:
            # The main process registers it all the same, and removes it by the next message.
            lease.close("client")
            raise
        if "full" in answer:
            raise TooManyClients(answer["full"])
        return lease

    async def clients(self, table: str) -> list[ClientState]:
        await self.flush()
        answer = await self.call({"op": "clients", "table": table})
        return await slices.run(_states(answer["clients"]))

    async def report_standby(
        self, server_id: str, tables: Mapping[str, tuple[int, int]], take_over: str
    ) -> wire.ServerRole | None:
        """Pass on a standby's report; returns this server's role, if it shares its slot."""
        asked = {"op": "standby", "server": server_id, "tables": tables, "take_over": take_over}
        answer = await self.call(asked)
        return wire.ServerRole(**answer["role"]) if answer["role"] else None

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
