"""Up to where a session's client may let something end: what it was told, and what it waits for.

The boundary moves when the ingest process has looked at PostgreSQL's catalog. What a client makes
of the changes that it was just sent has to wait for such a look, so one is asked for; and the
client hears of it at once.
"""

from __future__ import annotations

from laredo_fanout.serving.tail import Tail
from laredo_fanout.store.view import TableView


class Boundary:
    """One session's. For a client that didn't ask for boundaries it does nothing."""

    def __init__(self, tail: Tail, *, asked: bool) -> None:
        self._tail = tail
        self._asked = asked
        self._known = self._told = self._awaited = 0
        self._table_id = 0

    def enter(self, view: TableView) -> None:
        """The session sends this incarnation of the table from here on."""
        self._table_id, self._known = view.id, view.boundary
        self._told = self._awaited = 0

    def sent(self, position: int) -> None:
        """The client may let something end here."""
        if self._asked and position > self._awaited:
            self._awaited = position
            self._tail.want_boundary(position)

    @property
    def due(self) -> bool:
        """Whether more is known than the client was told."""
        return self._asked and self._newest() > self._told

    def tell(self) -> int:
        """The newest; it counts as told."""
        self._told = self._newest()
        return self._told

    def _newest(self) -> int:
        view = self._tail.view
        # What is known of the next incarnation says nothing of the rows of this one.
        if view is not None and view.id == self._table_id:
            self._known = view.boundary
        return self._known
