"""The format of a journal record: the wire's ChangeBatch bytes behind a header of positions.

The server forwards a record's body as it is; the old rows, the message's last
field, are kept apart, and body + old body is the whole message for whoever
wants them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct

from laredo_fanout.wire.replication_pb2 import ChangeBatch

MAX_CHANGES = 1500
MAX_BYTES = 850_000

_OPEN = 1
_CONTINUES = 2
HEADER = Struct(">4QIB")


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a journal record, which is read without decoding the rest.

    ``open``: the record's last transaction continues in the next record. ``continues``: its first
    one began in the record before. ``old_bytes`` is the size of its old rows.
    """

    last_sequence: int
    first_position: int
    last_position: int
    last_time_us: int
    old_bytes: int
    open: bool
    continues: bool

    def to_bytes(self) -> bytes:
        """As it is before the body."""
        return HEADER.pack(
            self.last_sequence,
            self.first_position,
            self.last_position,
            self.last_time_us,
            min(self.old_bytes, 0xFFFFFFFF),
            self.open * _OPEN + self.continues * _CONTINUES,
        )


def header_of(stored: bytes | memoryview) -> Header:
    """The header of a stored record."""
    last, first_position, last_position, time_us, old_bytes, flags = HEADER.unpack_from(stored)
    return Header(
        last,
        first_position,
        last_position,
        time_us,
        old_bytes,
        bool(flags & _OPEN),
        bool(flags & _CONTINUES),
    )


@dataclass(frozen=True, slots=True)
class Record:
    """Some consecutive changes of one table, as read from the journal.

    ``body`` is a ChangeBatch without old rows, ``body + old_body`` one with
    them (``old_body`` is b"" if they weren't asked for).
    """

    first_sequence: int
    last_sequence: int
    first_position: int
    last_position: int
    last_time_us: int
    open: bool
    continues: bool
    body: bytes
    old_body: bytes

    def __len__(self) -> int:
        return self.last_sequence + 1 - self.first_sequence

    def decode(self) -> ChangeBatch:
        """The message, old rows included if they were read."""
        return ChangeBatch.FromString(self.body + self.old_body)


def cut(record: Record, after_sequence: int) -> Record:
    """``record`` without its entries up to ``after_sequence``."""
    drop = after_sequence + 1 - record.first_sequence
    if drop <= 0:
        return record
    batch = record.decode()
    first, gone = transaction_at(batch.counts, drop)
    counts = list(batch.counts[first:])
    counts[0] -= drop - gone
    continues = drop > gone or (first == 0 and record.continues)
    body = ChangeBatch(
        first_sequence=record.first_sequence + drop,
        actions=batch.actions[drop:],
        counts=counts,
        positions=batch.positions[first:],
        times_us=batch.times_us[first:],
        open=batch.open,
        keys=batch.keys[drop:],
        lines=batch.lines[drop:],
    )
    olds = ChangeBatch(old_lines=batch.old_lines[drop:])
    return Record(
        record.first_sequence + drop,
        record.last_sequence,
        batch.positions[first],
        record.last_position,
        record.last_time_us,
        record.open,
        continues,
        body.SerializeToString(),
        olds.SerializeToString() if record.old_body else b"",
    )


def cut_behind(record: Record, last_sequence: int) -> Record:
    """``record`` without its entries behind ``last_sequence``, which ends a transaction."""
    kept = last_sequence + 1 - record.first_sequence
    if kept >= len(record):
        return record
    batch = record.decode()
    stays, _ = transaction_at(batch.counts, kept)
    body = ChangeBatch(
        first_sequence=record.first_sequence,
        actions=batch.actions[:kept],
        counts=batch.counts[:stays],
        positions=batch.positions[:stays],
        times_us=batch.times_us[:stays],
        keys=batch.keys[:kept],
        lines=batch.lines[:kept],
    )
    olds = ChangeBatch(old_lines=batch.old_lines[:kept])
    return Record(
        record.first_sequence,
        last_sequence,
        record.first_position,
        batch.positions[stays - 1],
        batch.times_us[stays - 1],
        False,
        record.continues,
        body.SerializeToString(),
        olds.SerializeToString() if record.old_body else b"",
    )


def transaction_at(counts: Iterable[int], change: int) -> tuple[int, int]:
    """Which transaction the change with this index is in, and how many changes lie before it."""
    before = 0
    for index, end in enumerate(accumulate(counts)):
        if end > change:
            return index, before
        before = end
    raise IndexError(change)
