"""The verified position of a session: the position up to which its client may end an artifact.

It advances when the ingest has checked PostgreSQL's catalog. A client that was just sent
changes can't end an artifact behind them before such a check: so the session requests one, and
sends the new position at once. A client that was sent suspect rows, which were repaired since,
never gets a verified position beyond them.
"""

from __future__ import annotations

from laredo_fanout.serving.journal.tail import Tail
from laredo_fanout.serving.sync import suspect_ranges
from laredo_fanout.store.table import SuspectRange
from laredo_fanout.store.view import TableView


class SessionVerifiedPosition:
    """The verified position of one session: what its client was sent, and what it waits for.

    It does nothing for a client that didn't ask for boundary.v1.
    """

    def __init__(self, tail: Tail, *, asked: bool) -> None:
        self._tail = tail
        self._asked = asked
        self._sent = self._awaited = 0
        self._view: TableView | None = None
        self._began = self._at = 0
        self._taken: set[int] = set()
        """The ends of the suspect ranges that were sent as one transaction."""

    def enter(self, view: TableView) -> None:
        """Follow this incarnation of the table from here on."""
        self._view = view
        self._sent = self._awaited = 0

    def begin(self, position: int) -> None:
        """Note that the client has the rows of this position, whatever it had before."""
        self._began = self._at = position
        self._taken.clear()

    def took(self, end: int) -> None:
        """Note that the suspect range that ends at ``end`` was sent as one transaction."""
        self._taken.add(end)

    def sent(self, position: int) -> None:
        """Request a catalog check, as the client may want to end an artifact at this position."""
        self._at = max(self._at, position)
        if self._asked and position > self._awaited:
            self._awaited = position
            self._tail.want_verified(position)

    def due(self, position: int) -> bool:
        """True if the client, at ``position``, hasn't been sent the newest verified position."""
        return self._asked and self._newest(position) > self._sent

    def take(self, position: int) -> int:
        """The newest one, for the message that has ``position``; it counts as sent."""
        self._at = max(self._at, position)
        self._sent = self._newest(position)
        return self._sent

    def adopt(self, other: SessionVerifiedPosition) -> None:
        """Note that the client was sent, and waits for, what `other` was."""
        self._sent = max(self._sent, other._sent)
        self._awaited = max(self._awaited, other._awaited)
        self._at = max(self._at, other._at)

    def check(self, view: TableView) -> None:
        """Check that the client wasn't sent suspect rows.

        :raises PositionSuspect: it was sent suspect rows that were repaired since.
        """
        crossed = self._crossed(view, self._at)
        if self._asked and crossed:
            raise suspect_ranges.repaired_since(view, crossed[0])

    def _newest(self, position: int) -> int:
        view = self._tail.view
        # The next incarnation's position doesn't hold for the rows of this one.
        if view is not None and self._view is not None and view.id == self._view.id:
            self._view = view
        if self._view is None:
            return 0
        crossed = self._crossed(self._view, max(position, self._at))
        return min([self._view.boundary, *(suspect_range.start for suspect_range in crossed)])

    def _crossed(self, view: TableView, position: int) -> list[SuspectRange]:
        """The suspect ranges of which a client at ``position`` got ordinary changes."""
        return [
            suspect_range
            for suspect_range in view.record.suspect_ranges
            if not suspect_range.goes_on
            and suspect_range.start < position
            and self._began < suspect_range.end
            and suspect_range.end not in self._taken
        ]
