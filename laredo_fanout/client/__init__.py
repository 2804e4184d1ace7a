"""The Python client library of laredo-fanout: follows a table of a server.

:class:`FanoutClient` and its asyncio twin :class:`AsyncFanoutClient` keep the table in memory.
:class:`Subscription` brings a table's snapshot and changes as events, across reconnects;
:func:`open_stream` is one attempt of it.
"""

from laredo_fanout.client.async_client import AsyncFanoutClient
from laredo_fanout.client.errors import (
    BadEndpoint,
    BadField,
    BadTableName,
    ClientError,
    ClientStopped,
    Crowded,
    GaveUp,
    InvalidRequest,
    LocalSnapshotUnusable,
    NotAReplicationServer,
    NotReadyInTime,
    NotUnique,
    PermissionDenied,
    ProtocolViolation,
    ServerUnavailable,
    StreamBroken,
    StreamError,
    TableNotFound,
    TableNotReady,
    Unauthenticated,
)
from laredo_fanout.client.events import (
    Changes,
    Event,
    Filter,
    GoAway,
    Handshake,
    Heartbeat,
    Mode,
    SchemaChange,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotRows,
    TransactionPart,
    equals,
    is_in,
    prefix,
)
from laredo_fanout.client.stream.endpoint import Endpoint, Tls
from laredo_fanout.client.stream.stream import Observer, Subscription, SyncOptions, open_stream
from laredo_fanout.client.sync_client import FanoutClient
from laredo_fanout.client.table.index import TableIndex
from laredo_fanout.client.table.listening import RowChange
from laredo_fanout.client.table.rows import AsyncRowIterator, RawJson, RowIterator
from laredo_fanout.client.table_client import TableStatus, table_status
from laredo_service.retry import Backoff

__all__ = [
    "AsyncFanoutClient",
    "AsyncRowIterator",
    "Backoff",
    "BadEndpoint",
    "BadField",
    "BadTableName",
    "Changes",
    "ClientError",
    "ClientStopped",
    "Crowded",
    "Endpoint",
    "Event",
    "FanoutClient",
    "Filter",
    "GaveUp",
    "GoAway",
    "Handshake",
    "Heartbeat",
    "InvalidRequest",
    "LocalSnapshotUnusable",
    "Mode",
    "NotAReplicationServer",
    "NotReadyInTime",
    "NotUnique",
    "Observer",
    "PermissionDenied",
    "ProtocolViolation",
    "RawJson",
    "RowChange",
    "RowIterator",
    "SchemaChange",
    "ServerUnavailable",
    "SnapshotBegin",
    "SnapshotEnd",
    "SnapshotRows",
    "StreamBroken",
    "StreamError",
    "Subscription",
    "SyncOptions",
    "TableIndex",
    "TableNotFound",
    "TableNotReady",
    "TableStatus",
    "Tls",
    "TransactionPart",
    "Unauthenticated",
    "equals",
    "is_in",
    "open_stream",
    "prefix",
    "table_status",
]
