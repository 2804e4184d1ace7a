"""The format of the store: keys, values and journal records in the LMDB environment.

The server forwards a record's body as it is; the old rows, the message's last
field, are kept apart, and body + old body is the whole message for whoever
wants them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from struct import Struct

from laredo_fanout.store import seal
from laredo_fanout.wire.replication_pb2 import ChangeBatch

# The format of keys and values in the LMDB environment.
#
# Named databases (all integers big-endian, so that they sort):
#
# =========  ===========================================  =======================================
# name       key                                          value
# =========  ===========================================  =======================================
# state      space u32 + row key                          line + seal; b"" a tombstone;
#                                                         b"\x01..." partial + seal
# marks      space u32 + b"P", b"S" or b"T" + row key     full key: partial rows, rows that the
#                                                         stream wrote whole, tombstones
# journal    table u32 + first sequence u64               header + ChangeBatch bytes + seal
# olds       table u32 + first sequence u64               ChangeBatch bytes: old_lines only + seal
# positions  table u32 + last position u64 + sequence u64 b""
# meta       see ``environment.py``
# =========  ===========================================  =======================================
#
# A *space* is one generation of a table's rows: a TRUNCATE gives the table a new, empty one, and
# the old one's rows are deleted later, in small steps. LMDB takes keys of 1..511 bytes, so a longer
# row key is cut and hashed; its full form is recomputed from the line.

STATE = b"state"
MARKS = b"marks"
JOURNAL = b"journal"
OLDS = b"olds"
POSITIONS = b"positions"
META = b"meta"
DATABASES = (STATE, MARKS, JOURNAL, OLDS, POSITIONS, META)

TOMBSTONE = b""
PARTIAL_MARK = b"P"
STREAMED_MARK = b"S"
TOMBSTONE_MARK = b"T"

PREFIX_BYTES = 4
LONGEST_KEY = 480
_DIGEST_BYTES = 16
CUT_KEY_BYTES = LONGEST_KEY + 1

_U32 = Struct(">I")
_U32_U64 = Struct(">IQ")
_U32_U64_U64 = Struct(">IQQ")


def prefix(number: int) -> bytes:
    """Prefix of every key of this space or table."""
    return _U32.pack(number)


def stored_key(space: bytes, key: bytes) -> bytes:
    """Stored key of the row with this key; ``space`` is a prefix."""
    if len(key) <= LONGEST_KEY:
        return space + key
    digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
    return space + key[: CUT_KEY_BYTES - _DIGEST_BYTES] + digest


def stored_keys(space: bytes, keys: Sequence[bytes]) -> list[bytes]:
    """Stored keys of the rows with these keys."""
    if max(map(len, keys), default=0) > LONGEST_KEY:
        return [stored_key(space, key) for key in keys]
    return [space + key for key in keys]


def is_cut(stored: bytes) -> bool:
    """True if the stored key (prefix included) isn't the whole row key."""
    return len(stored) == PREFIX_BYTES + CUT_KEY_BYTES


def mark_key(kind: bytes, stored: bytes) -> bytes:
    """Key of the mark of this kind for a row stored there."""
    return stored[:PREFIX_BYTES] + kind + stored[PREFIX_BYTES:]


def marked_key(mark: bytes) -> bytes:
    """Stored key of the row that this mark is about."""
    return mark[:PREFIX_BYTES] + mark[PREFIX_BYTES + 1 :]


def record_key(table_id: int, first_sequence: int) -> bytes:
    """Key of the journal record that begins with this sequence."""
    return _U32_U64.pack(table_id, first_sequence)


def sequence_of(record: bytes) -> int:
    """The first sequence in a journal record's key."""
    return int.from_bytes(record[PREFIX_BYTES:], "big")


def position_key(table_id: int, position: int, sequence: int = 0) -> bytes:
    """Index key of the journal record that ends at this position."""
    return _U32_U64_U64.pack(table_id, position, sequence)


def positioned(key: bytes) -> tuple[int, int]:
    """Last position and first sequence of a record, from its position key."""
    _, position, sequence = _U32_U64_U64.unpack(key)
    return position, sequence


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


def body_of(stored: bytes) -> bytes:
    """The message of a stored record, without its header and seal."""
    return stored[HEADER.size : -seal.SEAL_BYTES]


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


def record_of(key: bytes, stored: bytes | memoryview, old_body: bytes) -> Record:
    """The record that is stored so."""
    header = header_of(stored)
    return Record(
        sequence_of(key),
        header.last_sequence,
        header.first_position,
        header.last_position,
        header.last_time_us,
        header.open,
        header.continues,
        bytes(stored[HEADER.size : -seal.SEAL_BYTES]),
        old_body,
    )


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
