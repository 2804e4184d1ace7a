"""For clients that want commit order: a stretch out of it is sent as one transaction.

The entries of a stretch turn the rows of the position before it into those of the position where
order was restored. Between the two there is no position that a client could have reached. So
nothing of it is sent before its end is known, and then all of it as if it had been committed
there. A client that is cut off within gets it again from its beginning.

What is sent says since when it stands for all transactions: a client that keeps what the rows were
at some position must not do so in between. So a stretch is told of although nothing came of it.
"""

from __future__ import annotations

from laredo_fanout.serving import slices
from laredo_fanout.serving.forms import Form
from laredo_fanout.serving.slices import Sliced
from laredo_fanout.store import record as record_
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.record import Record
from laredo_fanout.store.table import Disorder, Doubt
from laredo_fanout.store.view import TableView
from laredo_fanout.wire.replication_pb2 import ChangeBatch

READ_BYTES = 256 << 10

Stretch = Disorder | Doubt
"""Journal entries that lead from one position to another, and to none in between."""


class Part:
    """Messages of some entries; ``ends_at`` is the stretch's position at its last one."""

    __slots__ = ("ends_at", "last_sequence", "messages")

    def __init__(self, messages: list[bytes], last_sequence: int, ends_at: int | None) -> None:
        self.messages = messages
        self.last_sequence = last_sequence
        self.ends_at = ends_at


def parts(reader: StoreReader, view: TableView, after: int, form: Form) -> Sliced[list[Part]]:
    """The next entries of the stretch that goes on behind ``after``; [] until order is restored.

    :raises JournalPruned: the journal no longer reaches back to there.
    :raises TableUnknown: the table is gone.
    """
    disorder = next((each for each in view.record.disorders if each.holds(after + 1)), None)
    if disorder is None or disorder.goes_on:
        return []
    return (yield from parts_of(disorder, reader, view, after, form))


def parts_of(
    stretch: Stretch, reader: StoreReader, view: TableView, after: int, form: Form
) -> Sliced[list[Part]]:
    """The next entries of this stretch, behind ``after``.

    :raises JournalPruned: the journal no longer reaches back to there.
    :raises TableUnknown: the table is gone.
    """
    records = reader.journal(view.id, after, READ_BYTES, with_old=form.wants_old)
    found = []
    for record in records:
        if record.last_sequence > stretch.last:
            break
        messages = yield from form.changes(_in_one_transaction(record, stretch))
        ends_at = stretch.end if record.last_sequence == stretch.last else None
        found.append(Part(messages, record.last_sequence, ends_at))
        yield
    return found


def part_before(
    stretch: Stretch, reader: StoreReader, view: TableView, after: int, form: Form
) -> Sliced[Part | None]:
    """The next entries behind ``after`` that come before this stretch, of a record that goes on
    within it; None if there is no such record.

    :raises JournalPruned: the journal no longer reaches back to there.
    :raises TableUnknown: the table is gone.
    """
    records = reader.journal(view.id, after, 1, with_old=form.wants_old)
    if not records or not records[0].first_sequence < stretch.first <= records[0].last_sequence:
        return None
    whole = record_.cut_behind(records[0], stretch.first - 1)
    messages = yield from form.changes(whole)
    return Part(messages, whole.last_sequence, whole.last_position)


def without_entries(view: TableView, after: int, position: int, form: Form) -> list[Part]:
    """Stretches behind ``after`` of which nothing is left, for a client that is at ``position``."""
    return [
        nothing_of(disorder, after, form)
        for disorder in view.record.disorders
        if disorder.last < disorder.first == after + 1 and position < disorder.end
    ]


def nothing_of(stretch: Stretch, after: int, form: Form) -> Part:
    """A stretch behind ``after`` of which nothing is left."""
    return Part(slices.at_once(form.changes(_nothing(stretch))), after, stretch.end)


def _nothing(disorder: Stretch) -> Record:
    body = ChangeBatch(
        first_sequence=disorder.first,
        counts=[0],
        positions=[disorder.end],
        times_us=[disorder.end_time_us],
        since_position=disorder.start,
    )
    return Record(
        disorder.first,
        disorder.last,
        disorder.end,
        disorder.end,
        disorder.end_time_us,
        False,
        False,
        body.SerializeToString(),
        b"",
    )


def _in_one_transaction(record: Record, disorder: Stretch) -> Record:
    batch = ChangeBatch.FromString(record.body)
    body = ChangeBatch(
        first_sequence=batch.first_sequence,
        actions=batch.actions,
        counts=[len(batch.actions)],
        positions=[disorder.end],
        times_us=[disorder.end_time_us],
        open=record.last_sequence < disorder.last,
        keys=batch.keys,
        lines=batch.lines,
        since_position=disorder.start,
    )
    return Record(
        record.first_sequence,
        record.last_sequence,
        disorder.end,
        disorder.end,
        disorder.end_time_us,
        body.open,
        record.first_sequence > disorder.first,
        body.SerializeToString(),
        record.old_body,
    )
