"""For clients that keep what the rows were at some position: stretches that were put right.

Within such a stretch (``store.table.Doubt``) the rows weren't known to be the source's, and only
its end has put them right. So these clients are sent it as one transaction at its end, like a
backlog that was released out of order. One that was sent some of it already, as ordinary changes
before anybody knew, may keep rows that were wrong: its call ends, and it asks again for what came
behind the last position that was verified.
"""

from __future__ import annotations

from laredo_fanout.serving import in_order
from laredo_fanout.serving.errors import Doubted
from laredo_fanout.serving.forms import Form
from laredo_fanout.serving.in_order import Part
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import Doubt
from laredo_fanout.store.view import TableView
from laredo_model import position as position_


class Stretches:
    """One session's, whose client asked for boundaries."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._within = 0
        """Where the stretch ends that is being sent."""

    @staticmethod
    def ahead(view: TableView, cursor: int, position: int) -> Doubt | None:
        """The next one for a client that has the entries up to ``cursor`` and the rows of
        ``position``."""
        for each in view.record.doubts:
            empty = each.last < each.first == cursor + 1 and position < each.end
            if not each.goes_on and (each.last > cursor or empty):
                return each
        return None

    def parts(self, doubt: Doubt, view: TableView, cursor: int, form: Form) -> Sliced[list[Part]]:
        """What comes next: of the stretch, or of a journal record that goes on within it; [] if
        whole records come before it.

        :raises Doubted: the client has some of the stretch as ordinary changes.
        :raises JournalPruned: the journal no longer reaches back to there.
        :raises TableUnknown: the table is gone.
        """
        if cursor + 1 < doubt.first:
            before = yield from in_order.part_before(doubt, self._reader, view, cursor, form)
            return [] if before is None else [before]
        if cursor + 1 > doubt.first and self._within != doubt.end:
            raise put_right(view, doubt)
        self._within = doubt.end
        if doubt.last < doubt.first:
            return [in_order.nothing_of(doubt, cursor, form)]
        return (yield from in_order.parts_of(doubt, self._reader, view, cursor, form))


def put_right(view: TableView, doubt: Doubt) -> Doubted:
    """Why the call ends."""
    return Doubted(
        f"rows of table {view.name} were put right at {position_.text(doubt.end)}"
        f" ({doubt.because}): what was sent beyond {position_.text(doubt.start)} isn't verified;"
        " resume by a position that was"
    )
