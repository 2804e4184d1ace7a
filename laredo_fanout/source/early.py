"""Changes that come before their turn: where they go, and which must wait for it.

Only whole rows' changes of live tables with a key are taken early. What has to do with a table's
form, its copy or its re-copy waits for its turn, and with it all that comes after it in its part
of the stream. Looks needn't wait: one that was passed over early isn't met again, and a later one
is, when everything that was early has had its turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from laredo_fanout.source import message as message_

if TYPE_CHECKING:
    from laredo_fanout.source.message import Relation
    from laredo_fanout.source.route import Route
    from laredo_fanout.source.stream_decoder import StreamDecoder
    from laredo_fanout.source.tracking import Tracking
    from laredo_fanout.source.watermark import Awaited


class EarlyTables(Protocol):
    """The tables, as whoever brings changes early sees them."""

    def route(self, relation: Relation) -> Route | None:
        """Where such a relation's changes go; None: they must wait."""

    def version(self) -> Hashable:
        """Another one: routes that were given before aren't right any more."""

    def waits(self, message: bytes) -> bool:
        """Whether this message (neither a row nor a relation) must wait for its turn."""

    def announced_again(self, relation: Relation) -> None:
        """As the decoder's ``Tables``."""

    def knows(self, root: int, leaf: int) -> bool:
        """Whether rows of this partition may be taken: the catalog was seen with it."""

    def arrived(self, position: int) -> None:
        """What came early has had its turn: nothing is missing up to there."""


class Early:
    """The tables of one life of the stream."""

    def __init__(self, tracking: Tracking, decoder: StreamDecoder, awaited: Awaited) -> None:
        self._tracking = tracking
        self._decoder = decoder
        self._awaited = awaited

    def route(self, relation: Relation) -> Route | None:
        """Where such a relation's changes go; None: they must wait."""
        return self._tracking.early_route(relation)

    def version(self) -> Hashable:
        """Another one: routes that were given before aren't right any more."""
        return tuple(
            (tracked.table_id, tracked.recopy_id, tracked.closing)
            for tracked in self._tracking.tables.values()
        )

    def waits(self, message: bytes) -> bool:
        """Whether this message (neither a row nor a relation) must wait for its turn."""
        match message[message_.ENVELOPE]:
            case message_.TRUNCATE:
                return any(map(self._tracking.follows, message_.truncate(message).oids))
            case message_.MESSAGE:
                return self._awaited.is_barrier(message_.emitted(message))
        return False

    def announced_again(self, relation: Relation) -> None:
        """As the decoder's ``Tables``."""
        self._tracking.announced_again(relation)

    def knows(self, root: int, leaf: int) -> bool:
        """Whether rows of this partition may be taken: the catalog was seen with it."""
        return self._tracking.knows(root, leaf)

    def arrived(self, position: int) -> None:
        """What came early has had its turn: nothing is missing up to there."""
        self._decoder.arrived(position)


class RoutesOfPart:
    """A decoder's ``Tables``, for one part of the stream whose turn hasn't come.

    ``must_wait``: something came that must wait for its turn; drop all that was decoded with it.
    """

    def __init__(self, tables: EarlyTables, ignored: Route) -> None:
        self._tables = tables
        self._ignored = ignored
        self.must_wait = False

    def route(self, relation: Relation) -> Route:
        """Where the changes of a relation that was just announced go."""
        found = self._tables.route(relation)
        self.must_wait = self.must_wait or found is None
        return self._ignored if found is None else found

    def announced_again(self, relation: Relation) -> None:
        """A relation was announced as it was before."""
        self._tables.announced_again(relation)

    def announced_behind(self, root: int, leaf: int) -> None:
        """A partition that isn't known waits: its rows are kept together with its oid."""
        self.must_wait = self.must_wait or not self._tables.knows(root, leaf)

    def truncated(self, oids: Sequence[int]) -> None:
        """What concerns a table of ours waits already."""
        del oids

    def broken(self, route: Route, error: Exception) -> None:
        """In its turn it closes the table."""
        del route, error
        self.must_wait = True

    def apply(self, routes: Iterable[Route]) -> None:
        """A giant transaction's part."""
        del routes
        self.must_wait = True
