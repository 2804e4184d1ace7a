"""GetReplicationStatus: the status call, a table's figures and its connected clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laredo_fanout.serving.calls.request import RELAY, TABLES, decode, table_name
from laredo_fanout.serving.forms.form import timestamp
from laredo_fanout.serving.ports import ClientState
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.view import TableView
from laredo_fanout.wire import replication_pb2 as wire
from laredo_model import position

_INT32_MAX = 2**31 - 1


def parse_status(data: bytes) -> tuple[str | None, bool]:
    """The table of a GetReplicationStatusRequest, and whether it is a relay's.

    No table is named where it asks for those that are served.

    :raises BadRequest: it can't be decoded, or names no table.
    """
    asked = decode(wire.GetReplicationStatusRequest, data)
    if TABLES in asked.capabilities and not asked.schema and not asked.table:
        return None, False
    return table_name(asked.schema, asked.table), RELAY in asked.capabilities


def tables_response(tables: Iterable[str]) -> bytes:
    """The answer to who asks for the tables."""
    return wire.GetReplicationStatusResponse(tables=sorted(tables)).SerializeToString()


def server_path(reader: StoreReader, delay_us: int) -> list[wire.ServerHop]:
    """This server, and those between it and PostgreSQL."""
    here = wire.ServerHop(
        server_id=reader.server_id(),
        source_position=position.text(reader.position()[0]),
        delay_us=delay_us,
    )
    stored = reader.upstream_path()
    upstream = wire.GetReplicationStatusResponse.FromString(stored) if stored else None
    return [here, *(upstream.path if upstream is not None else ())]


def status_response(
    view: TableView | None,
    clients: list[ClientState],
    latest: wire.ReplicationSnapshotInfo | None,
    path: Sequence[wire.ServerHop] = (),
) -> Sliced[bytes]:
    """The answer; a table whose copy hasn't started has zeros. ``path`` is a relay's."""
    response = wire.GetReplicationStatusResponse(
        connected_clients=len(clients), latest_snapshot=latest, path=path
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
