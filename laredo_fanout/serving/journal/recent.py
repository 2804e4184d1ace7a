"""A cache of recent journal records, encoded once per wire form and shared by sessions.

A session is a cursor: it asks for what comes after a sequence. Sessions at the same sequence with
the same form get the same bytes; a session far behind reads the journal by itself, in pieces.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from laredo_fanout.serving import slices
from laredo_fanout.serving.forms.form import Form
from laredo_fanout.serving.slices import Slice, Sliced
from laredo_fanout.store.journal.record import Record
from laredo_fanout.store.reader import StoreReader

READ_BYTES = 256 << 10


class Encoded(NamedTuple):
    """A journal record, encoded in one wire form."""

    messages: list[bytes]
    first_sequence: int
    last_sequence: int
    #: The position up to which every transaction that it has changes of is whole; None when it
    #: holds but a part of one.
    complete: int | None
    size: int


class RecentRecords:
    """At most `capacity` bytes of encoded records, the oldest let go first."""

    def __init__(self, reader: StoreReader, capacity: int = 16 << 20) -> None:
        self._reader = reader
        self._capacity = capacity
        self.size = 0
        self._records: OrderedDict[tuple[int, int, bytes], Encoded] = OrderedDict()
        self._under_way: dict[tuple[int, int, bytes], asyncio.Task[Encoded]] = {}
        self.encoded_total = 0

    async def after(self, table_id: int, sequence: int, form: Form) -> list[Encoded]:
        """The next records after this sequence, a piece at a time; [] at the journal's end.

        :raises JournalPruned: the journal no longer reaches back to there.
        """
        found = self._records.get((table_id, sequence, form.signature))
        if found is not None:
            return [found]
        records = self._reader.journal(table_id, sequence, READ_BYTES, with_old=form.wants_old)
        slice_, encoded = Slice(), []
        for record in records:
            encoded.append(await self._encode(table_id, record, form))
            if slice_.done_with(*_cost(record, form)):
                await asyncio.sleep(0)
        return encoded

    async def _encode(self, table_id: int, record: Record, form: Form) -> Encoded:
        key = (table_id, record.first_sequence - 1, form.signature)
        known = self._records.get(key)
        if known is not None and known.last_sequence == record.last_sequence:
            return known
        under_way = self._under_way.get(key)
        if under_way is not None:
            # A session may be at a newer state of this record, or an older one.
            shared = await asyncio.shield(under_way)
            if shared.last_sequence == record.last_sequence:
                return shared
        work = form.changes(record)
        try:
            next(work)
        except StopIteration as done:
            return self._made(key, record, done.value)
        making = asyncio.create_task(self._make(key, record, work))
        self._under_way[key] = making
        making.add_done_callback(lambda _: self._under_way.pop(key, None))
        # It goes on when one of those who wait for it leaves.
        return await asyncio.shield(making)

    async def _make(
        self, key: tuple[int, int, bytes], record: Record, work: Sliced[list[bytes]]
    ) -> Encoded:
        return self._made(key, record, await slices.run(work))

    def _made(self, key: tuple[int, int, bytes], record: Record, messages: list[bytes]) -> Encoded:
        encoded = Encoded(
            messages,
            record.first_sequence,
            record.last_sequence,
            _complete(record),
            sum(map(len, messages)) + 200,
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


def _cost(record: Record, form: Form) -> tuple[int, int]:
    """The bytes and the rows that were read to encode it."""
    if form.reads_rows:
        return len(record.body) + len(record.old_body), len(record)
    return 0, 1


def _complete(record: Record) -> int | None:
    if not record.open:
        return record.last_position
    return record.first_position if record.first_position < record.last_position else None
