"""The base of the clients for threads and for asyncio: their parameters, and a table's status.

Clients of one connection are siblings: :meth:`follow` of one makes another.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from laredo_fanout.client.errors import BadTableName
from laredo_fanout.client.events import Filter
from laredo_fanout.client.stream.endpoint import Endpoint, Tls, TransportName, endpoint_of
from laredo_fanout.client.stream.servers import Servers, transport_to
from laredo_fanout.client.stream.stream import SyncOptions, split_table
from laredo_fanout.client.table.follower import Deliver, Follower
from laredo_fanout.client.table.index import TableIndex
from laredo_fanout.client.table.listening import Listeners
from laredo_fanout.client.table.local_snapshot import SnapshotFile
from laredo_fanout.client.table.replica import Replica
from laredo_fanout.client.table.rows import Row, RowMap, RowView, parse
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model.column import Column
from laredo_model.position import Position
from laredo_service.retry import Backoff


class TableClient:
    """A table of a server, kept up to date; see FanoutClient for the parameters."""

    def __init__(
        self: Self,
        server: str | Sequence[str],
        table: str,
        *,
        client_id: str | None = None,
        local_snapshot_path: str | os.PathLike[str] | None = None,
        lookup_fields: Sequence[str] | None = None,
        indexes: Mapping[str, Sequence[str] | TableIndex] | None = None,
        filters: Iterable[Filter] = (),
        tls: Tls | None = None,
        token: str | None = None,
        save_interval: float = 60.0,
        backoff: Backoff | None = None,
        transport: TransportName = "grpc",
    ) -> None:
        split_table(table)
        self.table = table
        self.client_id = client_id or f"{socket.gethostname()}-{os.getpid()}"
        self._endpoint = endpoint_of(server, tls, token, transport)
        self._servers = Servers(self._endpoint)
        self._owner: Self = self
        self._siblings: dict[str, Self] = {table: self}
        self._started = False
        self._filters = tuple(filters)
        self._local_snapshot_path = local_snapshot_path
        self._save_interval = save_interval
        self._backoff = backoff
        self._replica = Replica(lookup_fields, indexes or {}, table)
        self._follower: Follower | None = None
        self._guard = threading.Lock()
        self._listeners = Listeners(table)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._replica)

    @property
    def position(self) -> Position | None:
        """The position up to which every transaction is in the rows; None before the first
        snapshot."""
        return self._replica.reached.position

    @property
    def sequence(self) -> int | None:
        """The journal sequence of the last whole transaction that is in the rows."""
        return self._replica.reached.sequence

    @property
    def columns(self) -> tuple[Column, ...]:
        """The table's columns; empty before the first snapshot."""
        return self._replica.columns

    @property
    def server(self) -> str | None:
        """The server that the table comes from, or that is tried; None before the start."""
        return None if self._follower is None else self._follower.server

    @property
    def disconnects(self) -> int:
        """Number of lost streams and failed attempts since the start."""
        return 0 if self._follower is None else self._follower.disconnects

    @property
    def listener_errors(self) -> int:
        """The number of listeners' calls that raised; the first of each kind is logged."""
        return self._listeners.errors

    @property
    def error(self) -> BaseException | None:
        """The error that ended the client for good; None while it follows the table."""
        return None if self._follower is None else self._follower.error

    @property
    def tables(self) -> Mapping[str, Self]:
        """The clients of this connection, this one too, by their tables."""
        return MappingProxyType(self._siblings)

    def _another(
        self,
        table: str,
        local_snapshot_path: str | os.PathLike[str] | None,
        lookup_fields: Sequence[str] | None,
        indexes: Mapping[str, Sequence[str] | TableIndex] | None,
        filters: Iterable[Filter],
    ) -> Self:
        endpoint = self._endpoint
        client = type(self)(
            endpoint.servers,
            table,
            client_id=self.client_id,
            local_snapshot_path=local_snapshot_path,
            lookup_fields=lookup_fields,
            indexes=indexes,
            filters=filters,
            tls=endpoint.tls,
            token=endpoint.token,
            save_interval=self._save_interval,
            backoff=self._backoff,
            transport=endpoint.transport,
        )
        client._servers, client._owner = self._servers, self._owner
        client._siblings = self._siblings
        if self._siblings.setdefault(table, client) is not client:
            raise BadTableName(table, "this client follows it already: see its `tables`")
        return client

    def _with_siblings(self) -> "list[Self]":
        """The clients that start and stop with this one."""
        return list(self._siblings.values()) if self._owner is self else [self]

    def _make_follower(
        self,
        *,
        wanted: Callable[[], bool],
        deliver: Deliver,
        at_once: int,
        ended: Callable[[BaseException], None],
    ) -> Follower:
        path = self._local_snapshot_path
        return Follower(
            self._endpoint,
            SyncOptions(self.table, self.client_id, filters=self._filters),
            self._replica,
            servers=self._servers,
            file=None if path is None else SnapshotFile(Path(path), self.table, self._filters),
            save_interval=self._save_interval,
            backoff=self._backoff,
            wanted=wanted,
            deliver=deliver,
            at_once=at_once,
            ended=ended,
            former=self._follower,
        )

    async def _view(self, timeout: float | None, *, by_listener: bool = False) -> RowView:
        if self._follower is not None:
            return await self._follower.view(timeout, by_listener=by_listener)
        return self._replica.view() or RowView(RowMap().parts, None, None)

    def _find(self, values: Sequence[object]) -> Row | None:
        line = self._replica.lookup(values)
        return None if line is None else parse(line)

    def _find_all(self, name: str, values: Sequence[object]) -> list[Row]:
        return [parse(line) for line in self._replica.lookup_index(name, values)]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The figures of one table: its journal's entries, its rows and its clients."""

    #: The newest entry of the journal.
    current_sequence: int
    #: The oldest entry of the journal.
    oldest_sequence: int
    entries: int
    rows: int
    clients: int


async def table_status(endpoint: Endpoint, table: str, timeout: float = 10.0) -> TableStatus:
    """Request the status once; ``table`` is schema.table, ``timeout`` in seconds.

    :raises BadTableName: if ``table`` isn't schema.table.
    :raises BadEndpoint: if the TLS files can't be used.
    :raises StreamError: if the server doesn't answer, or refuses.
    """
    schema, name = split_table(table)
    request = wire.GetReplicationStatusRequest(schema=schema, table=name)
    answer = await transport_to(endpoint).status(request, timeout)
    return TableStatus(
        answer.current_sequence,
        answer.journal_oldest_sequence,
        answer.journal_entry_count,
        answer.row_count,
        answer.connected_clients,
    )
