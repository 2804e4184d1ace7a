"""Routes for tracked tables' relations: how their rows are decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laredo_fanout.decode import row_decoder
from laredo_fanout.decode.change_buffer import Route
from laredo_fanout.postgres.errors import ReplicationStreamBroken

if TYPE_CHECKING:
    from laredo_fanout.tables.tracked_table import TrackedTable


def of(tracked: TrackedTable, xid: Callable[[], int]) -> Route:
    """A route for the incarnation that takes changes; ``xid`` is of the transaction they are in."""
    source, transaction_filter = tracked.source, tracked.transaction_filter
    assert source is not None
    route = Route(tracked.table_id)
    decoder = row_decoder.row_decoder(
        [column.name for column in source.columns],
        [column.type_info for column in source.columns],
        source.key,
        route.changes,
    )
    if transaction_filter is not None:
        route.takes = lambda: transaction_filter.takes(xid())
        route.numbered = True
        if not transaction_filter.live:
            decoder = decoder._replace(put=_only_if(route.takes, decoder.put), plain=None)
    route.decode_by(decoder)
    return route


def surprised(table_id: int | None) -> Route:
    """A route for changes that mustn't come."""

    def put(message: bytes, action: int) -> None:
        raise ReplicationStreamBroken("a change arrived in a form older than the catalog's")

    def delete(message: bytes) -> None:
        put(message, 0)

    route = Route(table_id)
    route.decode_by(row_decoder.RowDecoder(put, delete))
    return route


def _only_if(
    takes: Callable[[], bool], put: Callable[[bytes, int], None]
) -> Callable[[bytes, int], None]:
    def put_if(message: bytes, action: int) -> None:
        if takes():
            put(message, action)

    return put_if
