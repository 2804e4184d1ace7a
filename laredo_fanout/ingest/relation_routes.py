"""Where the stream's changes go: each announced relation has a route, to the incarnation of its
table that takes them, or to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from laredo_fanout.decode.change_buffer import IGNORED, Route
from laredo_fanout.tables import decoding_route

if TYPE_CHECKING:
    from laredo_fanout.catalog.leaves import Shown
    from laredo_fanout.catalog.shape import Shape
    from laredo_fanout.decode.stream_decoder import StreamDecoder
    from laredo_fanout.postgres.pgoutput import Relation
    from laredo_fanout.tables.tracked_table import TrackedTable
    from laredo_fanout.tables.write_batch import WriteBatch


class RequestSnapshot(Protocol):
    """Asks for a catalog snapshot in ``after_s``; gives the number that it will answer."""

    def __call__(self, after_s: float = 0.0) -> int: ...


class RelationRoutes:
    """It is what the decoder asks for routes. ``shown``: the partitions that the stream shows."""

    def __init__(
        self,
        tables: Mapping[str, TrackedTable],
        batch: WriteBatch,
        request_snapshot: RequestSnapshot,
        shown: Shown,
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._request_snapshot = request_snapshot
        self._shown = shown
        self._decoder: StreamDecoder | None = None
        self._hinted = self._answered = 0

    def follow(self, decoder: StreamDecoder) -> None:
        """From now on ``decoder`` asks, and is told."""
        self._decoder = decoder

    def route(self, relation: Relation) -> Route:
        """Where the changes of a relation that was just announced go."""
        tracked = self._by_oid(relation.oid)
        if tracked is None or tracked.table_id is None or tracked.closing is not None:
            return IGNORED
        if tracked.shape is None or not tracked.shape.fits(relation):
            self._must_close(tracked, "the stream announces it in another form")
            return IGNORED
        return self._decoding(tracked)

    def announced_again(self, relation: Relation) -> None:
        """Have a snapshot taken soon: a statement that rewrites values says no more than this."""
        tracked = self._by_oid(relation.oid)
        if tracked is not None and self._hinted <= self._answered:
            self._hinted = self._request_snapshot()

    def answered(self, number: int) -> None:
        """The stream has passed the catalog snapshot that answers this number."""
        self._answered = number

    def announced_behind(self, root: int, leaf: int) -> None:
        """A relation was announced right behind another one: it may be a partition of that."""
        if self._by_oid(leaf) is None:
            assert self._decoder is not None
            self._shown.announced(root, leaf)
            self._decoder.stop()

    def truncated(self, oids: Sequence[int]) -> None:
        """Those of one TRUNCATE are announced one behind the other."""
        self._shown.truncated(oids)

    def broken(self, route: Route, error: Exception) -> None:
        """A row of ``route`` can't be decoded: its table is closed and copied anew."""
        for tracked in self._tables.values():
            if tracked.table_id is not None and tracked.table_id == route.table_id:
                self._must_close(tracked, f"a change of it can't be used: {error}")
                return

    def apply(self, routes: list[Route]) -> None:
        """Take a part of a giant transaction."""
        self._batch.apply(routes)

    def connect(self, tracked: TrackedTable, now: Shape) -> None:
        """Send the relation's changes to the new incarnation, if it was announced already.

        An announcement of an older form stays in force for the server until it
        sends the next; changes under it would be a surprise.
        """
        assert self._decoder is not None
        relation = self._decoder.relations.get(now.oid)
        if relation is None:
            return
        fits = now.fits(relation)
        route = self._decoding(tracked) if fits else decoding_route.surprised(tracked.table_id)
        self._decoder.set_route(now.oid, route)

    def disconnect(self, tracked: TrackedTable) -> None:
        """Ignore the relation's changes from here on."""
        if self._decoder is not None and tracked.shape is not None:
            self._decoder.set_route(tracked.shape.oid, None)

    def _by_oid(self, oid: int) -> TrackedTable | None:
        for tracked in self._tables.values():
            if tracked.shape is not None and tracked.shape.oid == oid:
                return tracked
        return None

    def _decoding(self, tracked: TrackedTable) -> Route:
        """A route that decodes the tracked table's rows."""
        stream = self._decoder
        assert stream is not None
        return decoding_route.of(tracked, lambda: stream.xid)

    def _must_close(self, tracked: TrackedTable, reason: str) -> None:
        """Close it where this transaction began; the decoder stops at the transaction's end."""
        assert self._decoder is not None
        tracked.closing = reason
        self._decoder.forget(tracked.table_id, reason)
