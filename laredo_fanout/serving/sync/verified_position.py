"""Up to where a session's client may let something end: what it was told, and what it waits for.

The boundary moves when the ingest process has looked at PostgreSQL's catalog. What a client makes
of the changes that it was just sent has to wait for such a look, so one is asked for; and the
client hears of it at once. A client that was sent rows that were put right since never hears of a
boundary beyond them.
"""

from __future__ import annotations

from laredo_fanout.serving.journal.tail import Tail
from laredo_fanout.serving.sync import repaired
from laredo_fanout.store.table import Doubt
from laredo_fanout.store.view import TableView


class Boundary:
    """One session's. For a client that didn't ask for boundaries it does nothing."""

    def __init__(self, tail: Tail, *, asked: bool) -> None:
        self._tail = tail
        self._asked = asked
        self._told = self._awaited = 0
        self._view: TableView | None = None
        self._began = self._at = 0
        self._taken: set[int] = set()
        """Where stretches ended that were sent as one."""

    def enter(self, view: TableView) -> None:
        """The session sends this incarnation of the table from here on."""
        self._view = view
        self._told = self._awaited = 0

    def begin(self, position: int) -> None:
        """The client has the rows of this position, whatever it had before."""
        self._began = self._at = position
        self._taken.clear()

    def took(self, end: int) -> None:
        """The client was sent as one what leads to the rows of ``end``."""
        self._taken.add(end)

    def sent(self, position: int) -> None:
        """The client may let something end here."""
        self._at = max(self._at, position)
        if self._asked and position > self._awaited:
            self._awaited = position
            self._tail.want_boundary(position)

    def due(self, position: int) -> bool:
        """Whether more is known than the client was told, which is at ``position``."""
        return self._asked and self._newest(position) > self._told

    def tell(self, position: int) -> int:
        """The newest, for a client that is told to be at ``position``; it counts as told."""
        self._at = max(self._at, position)
        self._told = self._newest(position)
        return self._told

    def check(self, view: TableView) -> None:
        """Whether the client's rows are right as far as anybody knows.

        :raises Doubted: it was sent rows that were put right since.
        """
        crossed = self._crossed(view, self._at)
        if self._asked and crossed:
            raise repaired.put_right(view, crossed[0])

    def _newest(self, position: int) -> int:
        view = self._tail.view
        # What is known of the next incarnation says nothing of the rows of this one.
        if view is not None and self._view is not None and view.id == self._view.id:
            self._view = view
        if self._view is None:
            return 0
        crossed = self._crossed(self._view, max(position, self._at))
        return min([self._view.boundary, *(doubt.start for doubt in crossed)])

    def _crossed(self, view: TableView, position: int) -> list[Doubt]:
        """The stretches that a client at ``position`` was sent some of as ordinary changes."""
        return [
            doubt
            for doubt in view.record.doubts
            if not doubt.goes_on
            and doubt.start < position
            and self._began < doubt.end
            and doubt.end not in self._taken
        ]
