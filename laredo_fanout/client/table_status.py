"""The status of one table on the server: rows, journal, clients."""

from dataclasses import dataclass

from laredo_fanout.client.stream.endpoint import Endpoint
from laredo_fanout.client.stream.stream import split_table
from laredo_fanout.client.stream.transport.opening import transport_to
from laredo_fanout.wire import replication_pb2 as wire


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
