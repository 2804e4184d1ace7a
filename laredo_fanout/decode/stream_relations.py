"""The relations that the replication stream has announced, and where each one's changes go.

The decoder records what the stream announces; whoever knows the tables (``RelationRoutes``) sends
relations elsewhere. Neither knows the other by this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laredo_fanout.decode.change_buffer import IGNORED, Route

if TYPE_CHECKING:
    from laredo_fanout.postgres.pgoutput import Relation


class ResyncRequired(Exception):
    """A table must be closed at the durable position, and the stream restarted from there."""

    def __init__(self, table_id: int, reason: str) -> None:
        super().__init__(reason)
        self.table_id = table_id
        self.reason = reason


class StreamRelations:
    """One session's announced relations, and the transaction that is being decoded."""

    def __init__(self) -> None:
        self.announced: dict[int, Relation] = {}
        """By oid, as it was announced last."""
        self.routes: dict[bytes, Route] = {}
        """By oid, in the messages' bytes."""
        self.touched: dict[Route, None] = {}
        """The routes that the transaction which is being decoded has changes for."""
        self.xid_bytes = b""
        self.must_stop = False
        """Decoding is to stop at the end of the transaction."""

    @property
    def xid(self) -> int:
        """The 32 bits of the (top-level) transaction that is being decoded."""
        return int.from_bytes(self.xid_bytes, "big")

    def route_of(self, oid: int) -> Route:
        """Destination for the changes of relation ``oid``."""
        return self.routes.get(oid.to_bytes(4, "big"), IGNORED)

    def set_route(self, oid: int, route: Route | None) -> None:
        """Send the changes of relation ``oid`` elsewhere; call it between transactions."""
        self.routes[oid.to_bytes(4, "big")] = route or IGNORED

    def stop(self) -> None:
        """Stop decoding at the end of the transaction that is being decoded."""
        self.must_stop = True

    def forget(self, table_id: int | None, reason: str) -> None:
        """Drop the unfinished transaction's changes of this table, and stop at its end.

        :raises ResyncRequired: if a part of them was applied already.
        """
        self.must_stop = True
        for route in self.touched:
            if route.table_id == table_id and table_id is not None:
                if route.open:
                    raise ResyncRequired(table_id, reason)
                route.discard()
