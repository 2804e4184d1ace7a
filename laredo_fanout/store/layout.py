"""The format of keys and values in the LMDB environment.

Named databases (all integers big-endian, so that they sort):

=========  ===========================================  =======================================
name       key                                          value
=========  ===========================================  =======================================
state      space u32 + row key                          line; b"" a tombstone; b"\\x01..." partial
marks      space u32 + b"P", b"S" or b"T" + row key     full key: partial rows, rows that the
                                                        stream wrote whole, tombstones
journal    table u32 + first sequence u64               header + ChangeBatch bytes
olds       table u32 + first sequence u64               ChangeBatch bytes: old_lines only
positions  table u32 + last position u64 + sequence u64 b""
meta       see ``meta.py``
=========  ===========================================  =======================================

A *space* is one generation of a table's rows: a TRUNCATE gives the table a new,
empty one, and the old one's rows are deleted later, in small steps. LMDB takes
keys of 1..511 bytes, so a longer row key is cut and hashed; its full form is
recomputed from the line.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

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
