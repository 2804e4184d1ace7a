"""The routes of announced relations: each relation's changes go to the incarnation of its table,
or are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from laredo_fanout.decode.change_buffer import IGNORED, Route
from laredo_fanout.tables import decoding_route

if TYPE_CHECKING:
    from laredo_fanout.catalog.leaves import AnnouncedLeaves
    from laredo_fanout.catalog.shape import Shape
    from laredo_fanout.decode.stream_relations import StreamRelations
    from laredo_fanout.postgres.pgoutput import Relation
    from laredo_fanout.tables.tracked_table import TrackedTable


class RequestSnapshot(Protocol):
    """Asks for a catalog snapshot in ``after_s``; gives the number that it will answer."""

    def __call__(self, after_s: float = 0.0) -> int: ...


class RelationRoutes:
    """Gives the decoder each relation's route. ``shown``: the partitions that the stream shows."""

    def __init__(
        self,
        tables: Mapping[str, TrackedTable],
        relations: StreamRelations,
        request_snapshot: RequestSnapshot,
        shown: AnnouncedLeaves,
    ) -> None:
        self._tables = tables
        self._relations = relations
        self._request_snapshot = request_snapshot
        self._shown = shown
        self._hinted = self._answered = 0

    def route(self, relation: Relation) -> Route:
        """Destination for the changes of a relation that was just announced."""
        tracked = self._by_oid(relation.oid)
        if tracked is None or tracked.table_id is None or tracked.closing is not None:
            return IGNORED
        if tracked.shape is None or not tracked.shape.fits(relation):
            self._must_close(tracked, "the stream announces it in another form")
            return IGNORED
        return self._decoding(tracked)

    def announced_again(self, relation: Relation) -> None:
        """Have a snapshot taken soon: a statement that rewrites values shows no more than this."""
        tracked = self._by_oid(relation.oid)
        if tracked is not None and self._hinted <= self._answered:
            self._hinted = self._request_snapshot()

    def answered(self, number: int) -> None:
        """The stream has passed the catalog snapshot that answers this number."""
        self._answered = number

    def announced_behind(self, root: int, leaf: int) -> None:
        """Changes of ``leaf`` come as those of ``root``, whose partition it is."""
        self._shown.announced(root, leaf)
        self._relations.stop()
        tracked = self._by_oid(root)
        if tracked is None or tracked.table_id is None or tracked.closing is not None:
            return
        known = tracked.source.partitions if tracked.source is not None else ()
        usual = next((each.replica_identity for each in known if each.known.oid == leaf), None)
        partition = self._relations.announced[leaf]
        if tracked.shape is not None and not tracked.shape.identifies(partition, usual):
            # The old row of an update lacks the root's key, and nothing else shows that.
            self._must_close(tracked, "a partition of it had a replica identity without its key")
            self.disconnect(tracked)

    def broken(self, route: Route, error: Exception) -> None:
        """A row of ``route`` can't be decoded: its table is closed and copied again."""
        for tracked in self._tables.values():
            if tracked.table_id is not None and tracked.table_id == route.table_id:
                self._must_close(tracked, f"a change of it can't be used: {error}")
                return

    def connect(self, tracked: TrackedTable, now: Shape) -> None:
        """Send the relation's changes to the new incarnation, if it was announced already.

        An announcement of an older form stays in force for the server until it
        sends the next; changes under it would be a surprise.
        """
        relation = self._relations.announced.get(now.oid)
        if relation is None:
            return
        fits = now.fits(relation)
        route = self._decoding(tracked) if fits else decoding_route.surprised(tracked.table_id)
        self._relations.set_route(now.oid, route)

    def disconnect(self, tracked: TrackedTable) -> None:
        """Ignore the relation's changes from here on."""
        if tracked.shape is not None:
            self._relations.set_route(tracked.shape.oid, None)

    def _by_oid(self, oid: int) -> TrackedTable | None:
        for tracked in self._tables.values():
            if tracked.shape is not None and tracked.shape.oid == oid:
                return tracked
        return None

    def _decoding(self, tracked: TrackedTable) -> Route:
        """A route that decodes the tracked table's rows."""
        relations = self._relations
        return decoding_route.of(tracked, lambda: relations.xid)

    def _must_close(self, tracked: TrackedTable, reason: str) -> None:
        """Close it where this transaction began; the decoder stops at the transaction's end."""
        tracked.closing = reason
        self._relations.forget(tracked.table_id, reason)
