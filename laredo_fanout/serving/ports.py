"""The interfaces of a serving process to its parent: wake-ups, and the registry of clients.

The serving side reads the store by itself; these are the few things that must be shared between
processes: wake-ups after a durable commit, the registry of connected clients (max_clients is the
total) and journal pins. The process app implements them over its control socket; tests implement
them in memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from laredo_fanout.serving.errors import ServingError


class TooManyClients(ServingError):
    """max_clients is reached over all serving processes, or this caller's share of it.

    The message names the limit's configuration path.
    """


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The client that opens a stream."""

    client_id: str
    table: str
    peer: str
    batch: bool
    filtered: bool
    #: Microseconds since 1970.
    connected_at_us: int
    #: The token, certificate or address that the client counts for, named without showing it; ""
    #: where there is none to count for.
    owner: str = ""
    #: The address without the port.
    host: str = ""


@dataclass(frozen=True, slots=True)
class ClientState:
    """A connected client as every process sees it."""

    info: ClientInfo
    #: The last entry that was sent.
    sequence: int
    #: Number of changes from the client's cursor to the journal's end; max_size counts the
    #: transactions among them.
    depth: int
    #: One of STATES.
    state: str


STATES = ("connecting", "snapshot", "replaying", "catching_up", "live", "waiting", "draining")


class Wakeups(Protocol):
    """Wake-ups: notify that the main process has committed something durably.

    Take the future before reading the store, else a commit in between is lost. The future is
    shared: never await it in a way that cancels it (use asyncio.wait or asyncio.shield).
    """

    def current(self) -> asyncio.Future[None]:
        """The future that the next durable commit resolves (then there is a new one)."""
        ...


class Lease(Protocol):
    """A session's entry in the registry of clients; ends with the connection to the main process.

    The synchronous calls only note the newest values; the implementation sends them on at its own
    pace (about once a second) and must never raise or block.
    """

    def update(self, *, sequence: int, depth: int, state: str) -> None:
        """Note the session's newest figures."""
        ...

    async def pin(self, table_id: int, after_sequence: int) -> None:
        """Keep the entries after this sequence in the journal; a lease has one pin at a time.

        Returns once the main process holds the pin (or can't be asked: pins are best effort,
        the session checks again anyway).
        """
        ...

    def unpin(self) -> None:
        """Release the pin."""
        ...

    def close(self, reason: str) -> None:
        """End the entry; the reason (REASONS) is counted in disconnects_total."""
        ...


REASONS = (
    "client",  # the client left
    "done",  # FetchSnapshot: all of it was sent
    "buffer",  # client_buffer.max_size, policy drop_disconnect
    "stalled",  # the client took no message for stall_timeout_s
    "drain",  # the server drains
    "behind",  # the client is ahead of this server
    "refused",  # bad request, unknown table, not ready
    "error",  # a defect, or damaged files
)


class Registry(Protocol):
    """The registry of all connected clients, whatever process serves them."""

    async def register(self, info: ClientInfo) -> Lease:
        """Register a stream. If the call is cancelled meanwhile, nothing of it stays.

        Raises:
            TooManyClients: max_clients is reached, or this caller's share of it.
        """
        ...

    async def clients(self, table: str) -> list[ClientState]:
        """The clients connected to the table now ("schema.name"), in order of connection."""
        ...
