"""Suspect ranges of the journal, sent as one transaction to clients that keep old positions.

Within a suspect range (``store.table.SuspectRange``) the rows may have differed from PostgreSQL's,
as partitions had moved rows without changes; its end repaired them. Its entries turn the rows of
the position before it into those of its end; between the two there is no position that such a
client could have reached. So it is sent the whole range as one transaction at its end, whose
`since` is the range's beginning, also where no entry is left of it. A client that is cut off within
gets it again from its beginning.

A client that was sent some of it already, as ordinary changes before the range was known, may keep
rows that were wrong: its call ends, and it resumes by the last verified position.
"""

from __future__ import annotations

from typing import NamedTuple

from laredo_fanout.serving import slices
from laredo_fanout.serving.errors import PositionSuspect
from laredo_fanout.serving.forms.form import Form
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.store.journal import record as record_
from laredo_fanout.store.journal.record import Record
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.table import SuspectRange
from laredo_fanout.store.view import TableView
from laredo_fanout.wire.replication_pb2 import ChangeBatch
from laredo_model import position as position_

READ_BYTES = 256 << 10


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
            return [_nothing_of(suspect_range, cursor, form)]
        return (yield from self._of(suspect_range, view, cursor, form))

    def _before(
        self, suspect_range: SuspectRange, view: TableView, cursor: int, form: Form
    ) -> Sliced[list[Part]]:
        """The entries before the range of a record that reaches into it, if one does."""
        records = self._reader.journal(view.id, cursor, 1, with_old=form.wants_old)
        if (
            not records
            or not records[0].first_sequence < suspect_range.first <= records[0].last_sequence
        ):
            return []
        whole = record_.cut_behind(records[0], suspect_range.first - 1)
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
            messages = yield from form.changes(_in_one_transaction(record, suspect_range))
            ends_at = suspect_range.end if record.last_sequence == suspect_range.last else None
            found.append(Part(messages, record.last_sequence, ends_at))
            yield
        return found


def repaired_since(view: TableView, suspect_range: SuspectRange) -> PositionSuspect:
    """The error that ends the call."""
    return PositionSuspect(
        f"rows of table {view.name} were repaired at {position_.text(suspect_range.end)}"
        f" ({suspect_range.because}): rows sent after {position_.text(suspect_range.start)}"
        " aren't verified; resume by a verified position"
    )


def _nothing_of(suspect_range: SuspectRange, cursor: int, form: Form) -> Part:
    """The empty transaction for a range behind ``cursor`` of which no entry is left."""
    body = ChangeBatch(
        first_sequence=suspect_range.first,
        counts=[0],
        positions=[suspect_range.end],
        times_us=[suspect_range.end_time_us],
        since_position=suspect_range.start,
    )
    record = Record(
        first_sequence=suspect_range.first,
        last_sequence=suspect_range.last,
        first_position=suspect_range.end,
        last_position=suspect_range.end,
        last_time_us=suspect_range.end_time_us,
        open=False,
        continues=False,
        body=body.SerializeToString(),
        old_body=b"",
    )
    return Part(slices.at_once(form.changes(record)), cursor, suspect_range.end)


def _in_one_transaction(record: Record, suspect_range: SuspectRange) -> Record:
    batch = ChangeBatch.FromString(record.body)
    goes_on = record.last_sequence < suspect_range.last
    body = ChangeBatch(
        first_sequence=batch.first_sequence,
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
        first_sequence=record.first_sequence,
        last_sequence=record.last_sequence,
        first_position=suspect_range.end,
        last_position=suspect_range.end,
        last_time_us=suspect_range.end_time_us,
        open=goes_on,
        continues=record.first_sequence > suspect_range.first,
        body=body.SerializeToString(),
        old_body=record.old_body,
    )
