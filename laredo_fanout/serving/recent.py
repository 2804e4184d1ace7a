"""Recent journal records, encoded once per wire form and shared between sessions.

A session is a cursor: it asks for what comes after a sequence. Sessions at the same place with
the same form get the same bytes; a session far behind reads the journal by itself, in pieces.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from laredo_fanout.serving.forms import Form
from laredo_fanout.store.reader import StoreReader
from laredo_fanout.store.record import Record

READ_BYTES = 256 << 10


class Encoded(NamedTuple):
    """A record in one wire form.

    `complete`: the position up to which every transaction that it has changes of is whole; None
    when it holds but a part of one, or when order is lost.
    """

    messages: list[bytes]
    first_sequence: int
    last_sequence: int
    complete: int | None
    size: int
    out_of_order: bool


class RecentRecords:
    """At most `capacity` bytes of encoded records, the oldest let go first."""

    def __init__(self, reader: StoreReader, capacity: int = 16 << 20) -> None:
        self._reader = reader
        self._capacity = capacity
        self.size = 0
        self._records: OrderedDict[tuple[int, int, bytes], Encoded] = OrderedDict()
        self.encoded_total = 0

    def after(self, table_id: int, sequence: int, form: Form) -> list[Encoded]:
        """The next records after this sequence, a piece at a time; [] at the journal's end.

        :raises JournalPruned: the journal no longer reaches back to there.
        """
        found = self._records.get((table_id, sequence, form.signature))
        if found is not None:
            return [found]
        records = self._reader.journal(table_id, sequence, READ_BYTES, with_old=form.wants_old)
        return [self._encode(table_id, record, form) for record in records]

    def _encode(self, table_id: int, record: Record, form: Form) -> Encoded:
        key = (table_id, record.first_sequence - 1, form.signature)
        known = self._records.get(key)
        if known is not None and known.last_sequence == record.last_sequence:
            return known
        messages = form.changes(record)
        encoded = Encoded(
            messages,
            record.first_sequence,
            record.last_sequence,
            _complete(record),
            sum(map(len, messages)) + 200,
            record.out_of_order,
        )
        self.encoded_total += 1
        self._keep(key, encoded)
        return encoded

    def _keep(self, key: tuple[int, int, bytes], encoded: Encoded) -> None:
        before = self._records.pop(key, None)
        if before is not None:
            self.size -= before.size
        self._records[key] = encoded
        self.size += encoded.size
        while self.size > self._capacity:
            _, gone = self._records.popitem(last=False)
            self.size -= gone.size


def _complete(record: Record) -> int | None:
    if record.out_of_order:
        return None
    if not record.open:
        return record.last_position
    return record.first_position if record.first_position < record.last_position else None
