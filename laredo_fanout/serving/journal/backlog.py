"""The backlog of a client: the number of transactions it is behind, the unit of max_size.

A transaction counts once, however many rows it changed: one giant transaction must not disconnect
every client. Sequences count changes, so the transactions are only counted, record by record and
once for all sessions, when there are more changes than the limit.
"""

from __future__ import annotations

from laredo_fanout.store.errors import JournalPruned, TableUnknown
from laredo_fanout.store.journal.record import Record
from laredo_fanout.store.reader import StoreReader

_READ_BYTES = 256 << 10
READS_A_TURN = 4
"""Records to count before others have their turn: about 5 ms."""
_REMEMBERED = 20_000


def transactions_of(record: Record) -> int:
    """Number of transactions that begin in the record; a continued one counted before."""
    return len(record.decode().counts) - record.continues


class Backlog:
    """Counts the transactions in ranges of one table's journal."""

    def __init__(self, reader: StoreReader, table_id: int) -> None:
        self._reader = reader
        self.table_id = table_id
        self._counted: dict[int, tuple[int, int]] = {}
        self._reads = 0

    def begin_turn(self) -> None:
        """Begin a turn of the event loop: counting may go on."""
        self._reads = 0

    @property
    def unfinished(self) -> bool:
        """True if a count needs another turn."""
        return self._reads > READS_A_TURN

    def more_than(self, limit: int, after: int, upto: int) -> bool:
        """True if more than `limit` transactions are between two sequences.

        One turn reads a bounded number of records, for all sessions together: a long range may need
        several turns until the answer can become True.
        """
        if upto - after <= limit:
            return False
        start, transactions = after, 0
        while after < upto and transactions <= limit:
            known = self._counted.get(after)
            if known is None:
                self._reads += 1
                if self.unfinished or not self._count(after):
                    break
                known = self._counted[after]
            after, count = known
            transactions += count
        if after != start:
            # As one range, and the newest: a backlog has more records than are remembered.
            self._counted.pop(start, None)
            self._counted[start] = after, transactions
        return transactions > limit

    def _count(self, after: int) -> bool:
        try:
            records = self._reader.journal(self.table_id, after, _READ_BYTES, with_old=False)
        except (JournalPruned, TableUnknown):
            return False
        while len(self._counted) > _REMEMBERED:
            del self._counted[next(iter(self._counted))]
        for record in records:
            self._counted[record.first_sequence - 1] = record.last_sequence, transactions_of(record)
        return bool(records)
