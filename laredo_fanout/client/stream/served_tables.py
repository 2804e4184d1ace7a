"""The tables that a server serves, asked for once."""

from __future__ import annotations

from laredo_fanout.client.errors import BadTableName, ProtocolViolation
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import split_table
from laredo_fanout.client.stream.transport.grpc_transport import replication_status
from laredo_fanout.wire import replication_pb2 as wire
from laredo_service.table_pattern import TableName

_CAPABILITY = "tables.v1"
_ANSWER_S = 10.0


async def served_tables(endpoint: Endpoint) -> frozenset[TableName]:
    """The tables that the server serves now, and that the endpoint's token may read.

    :raises StreamError: if it doesn't answer, or refuses; BadRequest of one that is too old.
    """
    request = wire.GetReplicationStatusRequest(capabilities=[_CAPABILITY])
    answer = await replication_status(endpoint, request, _ANSWER_S)
    try:
        return frozenset(TableName(*split_table(name)) for name in answer.tables)
    except BadTableName as wrong:
        raise ProtocolViolation(
            endpoint.server, f"serves a table that has no name: {wrong}"
        ) from wrong
