"""The verified position of a session, the heartbeats that send it, and suspect ranges.

Within a suspect range (``store.table.SuspectRange``) the rows may have differed from PostgreSQL's,
as partitions had moved rows without changes; the range's end repaired them. Its entries turn the
rows at its start into those at its end, and no position in between is a valid state. So a client is
sent the range as one transaction at its end, whose `since` is its start, even if no entry of it is
left. A client that is cut off within the range is sent all of it again.

A client that was sent entries of the range as ordinary changes, before the range was known, may
keep wrong rows: its call ends, and it resumes by the last verified position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from laredo_fanout.serving.errors import PositionSuspect
from laredo_fanout.serving.forms import Form
from laredo_fanout.serving.journal import READ_BYTES, Tail
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.store import journal as journal_
from laredo_fanout.store.journal import Record
from laredo_fanout.store.reader import StoreReader, TableView
from laredo_fanout.store.table import SuspectRange
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model import position as position_

# The heartbeats of a session: messages that send the client its position without changes.


class Heartbeats:
    """The heartbeat timer of one session. `notify` wakes the session when a heartbeat is due."""

    def __init__(self, interval_s: float, notify: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._position_moved = False
        self._sent_position = 0
        self.due = False
        """True if the interval is over."""

    def start(self) -> None:
        """Start the timer."""
        self._timer = self._loop.call_later(self._interval_s, self._elapsed)

    def stop(self) -> None:
        """Cancel the timer: the session is over."""
        if self._timer is not None:
            self._timer.cancel()

    def position_moved(self) -> None:
        """Want a heartbeat with the new position, though nothing else is sent."""
        self._position_moved = True
        self._notify()

    def has_position(self, position: int) -> None:
        """Note that another message sent the client this position."""
        self._sent_position = position

    def adopt(self, other: Heartbeats) -> None:
        """Note that the client was sent the positions that `other` sent."""
        self._sent_position = max(self._sent_position, other._sent_position)
        self._position_moved = other._position_moved

    def wanted(self, position: int) -> bool:
        """True if a heartbeat with this position is to be sent now."""
        return self.due or (self._position_moved and position > self._sent_position)

    def sent(self, position: int) -> None:
        """Note that a heartbeat with this position was made."""
        self.due = self._position_moved = False
        self._sent_position = position

    def _elapsed(self) -> None:
        self.due = True
        self.start()
        self._notify()


class Part(NamedTuple):
    """The messages of some journal entries."""

    messages: list[bytes]
    last_sequence: int
    #: The client's position after the last.
    ends_at: int | None


class SuspectRangeReader:
    """Reads the suspect ranges for one session, whose client asked for boundary.v1."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._within = 0
        """The end of the range that is being sent."""

    @staticmethod
    def ahead(view: TableView, cursor: int, position: int) -> SuspectRange | None:
        """The next suspect range for a client that has the entries up to ``cursor`` and the rows
        of ``position``."""
        for each in view.record.suspect_ranges:
            empty = each.last < each.first == cursor + 1 and position < each.end
            if not each.goes_on and (each.last > cursor or empty):
                return each
        return None

    def parts(
        self, suspect_range: SuspectRange, view: TableView, cursor: int, form: Form
    ) -> Sliced[list[Part]]:
        """The next entries of the range, or of a journal record that reaches into it; [] if whole
        records come before it.

        :raises PositionSuspect: the client has some of the range as ordinary changes.
        :raises JournalPruned: the journal no longer reaches back to there.
        :raises TableUnknown: the table is gone.
        """
        if cursor + 1 < suspect_range.first:
            return (yield from self._before(suspect_range, view, cursor, form))
        if cursor + 1 > suspect_range.first and self._within != suspect_range.end:
            raise repaired_since(view, suspect_range)
        self._within = suspect_range.end
        if suspect_range.last < suspect_range.first:
            # Of the range no entry is left: the transaction is empty.
            empty = ChangeBatch(first_sequence=suspect_range.first)
            messages = yield from form.changes(_in_one_transaction(empty, suspect_range))
            return [Part(messages, cursor, suspect_range.end)]
        return (yield from self._of(suspect_range, view, cursor, form))

    def _before(
        self, suspect_range: SuspectRange, view: TableView, cursor: int, form: Form
    ) -> Sliced[list[Part]]:
        """The entries before the range of a record that reaches into it, if one does."""
        records = self._reader.journal(view.id, cursor, 1, with_old=form.wants_old)
        first = suspect_range.first
        if not records or not records[0].first_sequence < first <= records[0].last_sequence:
            return []
        whole = journal_.cut_after(records[0], first - 1)
        messages = yield from form.changes(whole)
        return [Part(messages, whole.last_sequence, whole.last_position)]

    def _of(
        self, suspect_range: SuspectRange, view: TableView, cursor: int, form: Form
    ) -> Sliced[list[Part]]:
        """The next entries of the range."""
        records = self._reader.journal(view.id, cursor, READ_BYTES, with_old=form.wants_old)
        found = []
        for record in records:
            if record.last_sequence > suspect_range.last:
                break
            batch = ChangeBatch.FromString(record.body)
            within = _in_one_transaction(batch, suspect_range, record.old_body)
            messages = yield from form.changes(within)
            ends_at = suspect_range.end if record.last_sequence == suspect_range.last else None
            found.append(Part(messages, record.last_sequence, ends_at))
            yield
        return found


def repaired_since(view: TableView, suspect_range: SuspectRange) -> PositionSuspect:
    """The error of a client that was sent rows of the range before their repair."""
    return PositionSuspect(
        f"rows of table {view.name} were repaired at {position_.text(suspect_range.end)}"
        f" ({suspect_range.because}): rows sent after {position_.text(suspect_range.start)}"
        " aren't verified; resume by a verified position"
    )


def _in_one_transaction(
    batch: ChangeBatch, suspect_range: SuspectRange, old_body: bytes = b""
) -> Record:
    """The record of these entries, within the range's one transaction."""
    first_sequence = batch.first_sequence
    last_sequence = first_sequence + len(batch.actions) - 1
    goes_on = last_sequence < suspect_range.last
    body = ChangeBatch(
        first_sequence=first_sequence,
        actions=batch.actions,
        counts=[len(batch.actions)],
        positions=[suspect_range.end],
        times_us=[suspect_range.end_time_us],
        open=goes_on,
        keys=batch.keys,
        lines=batch.lines,
        since_position=suspect_range.start,
    )
    return Record(
        first_sequence=first_sequence,
        last_sequence=last_sequence,
        first_position=suspect_range.end,
        last_position=suspect_range.end,
        last_time_us=suspect_range.end_time_us,
        open=goes_on,
        continues=first_sequence > suspect_range.first,
        body=body.SerializeToString(),
        old_body=old_body,
    )


# The verified position of a session: the position up to which its client may end an artifact.
#
# It advances when the ingest has checked PostgreSQL's catalog. A client that was just sent changes
# can't end an artifact after them before such a check: so the session requests one, and sends the
# new position at once. A client that was sent suspect rows before their repair never gets a
# verified position beyond them.


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
        """The newest verified position, for a message that has ``position``; it counts as sent."""
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
            raise repaired_since(view, crossed[0])

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
