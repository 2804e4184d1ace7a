"""For clients that want commit order: a stretch out of it is sent as one transaction.

The entries of a stretch turn the rows of the position before it into those of the position where
order was restored. Between the two there is no position that a client could have reached. So
nothing of it is sent before its end is known, and then all of it as if it had been committed
there. A client that is cut off within gets it again from its beginning.

What is sent says since when it stands for all transactions: a client that keeps what the rows were
at some position must not do so in between. So a stretch is told of although nothing came of it.
"""

from __future__ import annotations

from laredo_fanout.serving.forms import Form
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.record import Record
from laredo_fanout.store.table import Disorder
from laredo_fanout.store.view import TableView
from laredo_fanout.wire.replication_pb2 import ChangeBatch

READ_BYTES = 256 << 10


class Part:
    """Messages of some entries; ``ends_at`` is the stretch's position at its last one."""

    __slots__ = ("ends_at", "last_sequence", "messages")

    def __init__(self, messages: list[bytes], last_sequence: int, ends_at: int | None) -> None:
        self.messages = messages
        self.last_sequence = last_sequence
        self.ends_at = ends_at


def parts(reader: StoreReader, view: TableView, after: int, form: Form) -> list[Part]:
    """The next entries of the stretch that goes on behind ``after``; [] until order is restored.

    :raises JournalPruned: the journal no longer reaches back to there.
    :raises TableUnknown: the table is gone.
    """
    disorder = next((each for each in view.record.disorders if each.holds(after + 1)), None)
    if disorder is None or disorder.goes_on:
        return []
    records = reader.journal(view.id, after, READ_BYTES, with_old=form.wants_old)
    return [
        Part(
            form.changes(_in_one_transaction(record, disorder)),
            record.last_sequence,
            disorder.end if record.last_sequence == disorder.last else None,
        )
        for record in records
        if record.last_sequence <= disorder.last
    ]


def without_entries(view: TableView, after: int, position: int, form: Form) -> list[Part]:
    """Stretches behind ``after`` of which nothing is left, for a client that is at ``position``."""
    return [
        Part(form.changes(_nothing(disorder)), after, disorder.end)
        for disorder in view.record.disorders
        if disorder.last < disorder.first == after + 1 and position < disorder.end
    ]


def _nothing(disorder: Disorder) -> Record:
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


def _in_one_transaction(record: Record, disorder: Disorder) -> Record:
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
