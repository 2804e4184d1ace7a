"""The tables that a server serves, asked for once."""

from __future__ import annotations

import grpc

from laredo_fanout.client.errors import of_status
from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import split_table
from laredo_fanout.wire import replication_pb2 as wire
from laredo_fanout.wire import replication_pb2_grpc
from laredo_model.settings.table_pattern import TableName

_CAPABILITY = "tables.v1"
_ANSWER_S = 10.0


async def served_tables(endpoint: Endpoint) -> frozenset[TableName]:
    """The tables that the server serves now, and that the endpoint's token may read.

    :raises StreamError: if it doesn't answer, or refuses; BadRequest of one that is too old.
    """
    channel = endpoint.channel()
    try:
        stub = replication_pb2_grpc.LaredoReplicationServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = await stub.GetReplicationStatus(
            wire.GetReplicationStatusRequest(capabilities=[_CAPABILITY]),
            metadata=endpoint.metadata(),
            timeout=_ANSWER_S,
        )
    except grpc.aio.AioRpcError as failed:
        raise of_status(endpoint.server, failed.code(), failed.details()) from failed
    finally:
        await channel.close(None)
    return frozenset(TableName(*split_table(name)) for name in answer.tables)
