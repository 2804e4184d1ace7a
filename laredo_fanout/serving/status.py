"""GetReplicationStatus: the status call, a table's figures and its connected clients."""

from __future__ import annotations

from laredo_fanout.serving.forms.form import timestamp
from laredo_fanout.serving.ports import ClientState
from laredo_fanout.serving.request import decode, table_name
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.store.view import TableView
from laredo_fanout.wire import replication_pb2 as wire

_INT32_MAX = 2**31 - 1


def parse_status(data: bytes) -> str:
    """The table of a GetReplicationStatusRequest.

    :raises BadRequest: it can't be decoded, or names no table.
    """
    asked = decode(wire.GetReplicationStatusRequest, data)
    return table_name(asked.schema, asked.table)


def status_response(
    view: TableView | None,
    clients: list[ClientState],
    latest: wire.ReplicationSnapshotInfo | None,
) -> Sliced[bytes]:
    """The answer; a table whose copy hasn't started has zeros."""
    response = wire.GetReplicationStatusResponse(
        connected_clients=len(clients), latest_snapshot=latest
    )
    slice_ = Slice()
    for client in clients:
        response.clients.append(_client(client, view.sequence if view else 0))
        if slice_.done_with(0):
            yield
    if view is not None:
        response.current_sequence = view.sequence
        response.journal_oldest_sequence = view.oldest_sequence
        response.journal_entry_count = view.entries
        response.row_count = view.rows
    return response.SerializeToString()


def _client(client: ClientState, newest: int) -> wire.ConnectedClient:
    behind = max(newest - client.sequence, 0) if client.sequence else 0
    return wire.ConnectedClient(
        client_id=client.info.client_id,
        current_sequence=client.sequence,
        behind_count=behind,
        buffer_depth=min(client.depth, _INT32_MAX),
        connected_at=timestamp(client.info.connected_at_us),
        state=client.state,
    )
