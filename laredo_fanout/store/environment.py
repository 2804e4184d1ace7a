"""The LMDB environment, its keys, and its meta database, for the one writer and for readers.

Named databases (all integers big-endian, so that they sort):

=========  ===========================================  =======================================
name       key                                          value
=========  ===========================================  =======================================
state      space u32 + row key                          line + seal; b"" a tombstone;
                                                        b"\\x01..." partial + seal
marks      space u32 + b"P", b"S" or b"T" + row key     full key: partial rows, rows that the
                                                        stream wrote whole, tombstones
journal    table u32 + first sequence u64               header + ChangeBatch bytes + seal
olds       table u32 + first sequence u64               ChangeBatch bytes: old_lines only + seal
positions  table u32 + last position u64 + sequence u64 b""
meta       see below
=========  ===========================================  =======================================

A *space* is one generation of a table's rows: a TRUNCATE gives the table a new, empty one, and
the old one's rows are deleted later, in small steps. LMDB takes keys of 1..511 bytes, so a longer
row key is truncated and hashed; the whole key is recomputed from the line.

=========================  ====================================================
key in the meta database   value
=========================  ====================================================
store                      JSON: format, next table, next space, source, streams, marker, ...
position                   position u64, commit time in microseconds u64
definition/ + table u32    JSON (``table.py``)
figures/ + table u32       struct (``table.py``)
garbage/ + kind + u32      empty; the key names rows or a journal to remove in small steps
catchup                    JSON: the plan of a split backlog (``catchup/plan.py``)
upstream_path              in a relay: JSON, the servers between PostgreSQL and this one
ownership                  in a server with standbys: JSON, its role and term
=========================  ====================================================

A value ends with its seal (``seal.py``). The head's seal is within its JSON, so that any version
can read the format's number. If one of these values is damaged, the whole store is: neither
positions nor rows can be used without them.
"""

import errno
import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import lmdb
import orjson

from laredo_fanout.store import disk, seal, table
from laredo_fanout.store.disk import DiskSpace, Reserve
from laredo_fanout.store.errors import (
    DiskFull,
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
    StoreLimited,
    StoreLocked,
    StoreMissing,
    StoreUnusable,
)
from laredo_fanout.store.table import TableRecord
from laredo_model import position as position_
from laredo_model.position import Ancestor, History, Lineage

TOMBSTONE = b""
PARTIAL_MARK = b"P"
STREAMED_MARK = b"S"
TOMBSTONE_MARK = b"T"

PREFIX_BYTES = 4
LONGEST_KEY = 480
_DIGEST_BYTES = 16
CUT_KEY_BYTES = LONGEST_KEY + 1

_U32 = Struct(">I")


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
    """True if the stored key (prefix included) is a truncated row key."""
    return len(stored) == PREFIX_BYTES + CUT_KEY_BYTES


def mark_key(kind: bytes, stored: bytes) -> bytes:
    """Key of the mark of this kind for the row with this stored key."""
    return stored[:PREFIX_BYTES] + kind + stored[PREFIX_BYTES:]


def marked_key(mark: bytes) -> bytes:
    """Stored key of the row that has this mark."""
    return mark[:PREFIX_BYTES] + mark[PREFIX_BYTES + 1 :]


# The meta database.

FORMAT = 4
"""Number of the layout, which changes with it (tests/fanout/store/test_format.py). This version
reads no other."""

STORE_KEY = b"store"
POSITION_KEY = b"position"
DEFINITION = b"definition/"
FIGURES = b"figures/"
GARBAGE = b"garbage/"
CATCHUP_KEY = b"catchup"
UPSTREAM_PATH_KEY = b"upstream_path"
OWNERSHIP_KEY = b"ownership"
GARBAGE_SPACE = GARBAGE + b"S"
GARBAGE_JOURNAL = GARBAGE + b"J"

_POSITION = Struct(">QQ")
_HEAD_SEAL = b',"seal":"'
_KNOWN_KEYS = (STORE_KEY, POSITION_KEY, CATCHUP_KEY, UPSTREAM_PATH_KEY, OWNERSHIP_KEY)
_KNOWN_PREFIXES = (DEFINITION, FIGURES, GARBAGE)


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Source of a store's changes, to which its positions belong."""

    #: System identifier, timeline and database.
    history: History
    #: The slot's name.
    slot: str
    #: The publication's identity.
    publication: str
    #: A random name, generated when the slot was created, to recognize it.
    token: str = ""
    #: The histories from which this one goes on.
    ancestors: tuple[Ancestor, ...] = ()
    #: The reason (a sentence) why this history didn't continue the one before; empty for the first.
    because: str = ""
    #: The position at which the store began this history.
    since: int = 0
    #: The highest position of unrelated histories that this store followed before: up to here a
    #: position without its history may be one of theirs.
    former_reach: int = 0
    #: A sequence above all those of the former histories.
    former_sequences: int = 0

    @property
    def lineage(self) -> Lineage:
        """The history and its ancestors."""
        return Lineage(self.history, self.ancestors)

    def to_json(self) -> dict[str, Any]:
        """The source as JSON values."""
        return {
            "history": str(self.history),
            "slot": self.slot,
            "publication": self.publication,
            "token": self.token,
            "ancestors": position_.ancestors_to_json(self.ancestors),
            "because": self.because,
            "since": self.since,
            "former_reach": self.former_reach,
            "former_sequences": self.former_sequences,
        }

    @classmethod
    def from_json(cls, source: Mapping[str, Any]) -> "SourceIdentity":
        """Parse the result of ``to_json``."""
        found = {each.name: source[each.name] for each in fields(cls)}
        found["history"] = position_.parse_history(found["history"])
        found["ancestors"] = position_.ancestors_from_json(found["ancestors"])
        return cls(**found)


class Marker(NamedTuple):
    """A message of ours in the stream; a stream with another message there is another history's."""

    #: The end of the message's transaction.
    position: int
    #: The message's content.
    content: str


_DOUBTS_KEPT = 8
OPEN = 2**64 - 1
"""End of a doubt that lasts until the server is the holder, or has followed one."""


class Ownership(NamedTuple):
    """Role of a server among those that share a slot (docs/standby-protocol.md)."""

    #: The highest term that the server knows.
    term: int
    #: True if the server holds the slot in this term.
    holder: bool
    #: Ranges of positions (from, before) at which clients of a former holder may have other rows.
    doubts: tuple[tuple[int, int], ...] = ()
    #: The term of the last holder whose rows are in the store.
    followed: int = 0

    def doubts_at(self, position: int) -> bool:
        """True if another server may have served other rows at this position."""
        return any(first <= position < end for first, end in self.doubts)

    def doubting(self, found: Iterable[tuple[int, int]]) -> "Ownership":
        """The role with these doubts added; only the newest doubts are kept."""
        new = sorted(set(found) - set(self.doubts), key=itemgetter(1))
        return self._replace(doubts=(*self.doubts, *new)[-_DOUBTS_KEPT:])

    def followed_now(self, term: int) -> "Ownership":
        """The role once the store has the rows of the holder of this term."""
        ended = tuple(each for each in self.doubts if each[1] < OPEN)
        return self._replace(doubts=ended, followed=max(term, self.followed))

    def held(self, term: int, position: int) -> "Ownership":
        """The role of the holder whose claim is at this position."""
        doubts = tuple((first, min(end, position)) for first, end in self.doubts)
        return Ownership(term, holder=True, doubts=doubts, followed=term)

    def to_bytes(self) -> bytes:
        """The role as JSON."""
        return orjson.dumps(list(self))

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Ownership":
        """Parse the result of ``to_bytes``."""
        term, holder, doubts, followed = orjson.loads(stored)
        return cls(term, holder, tuple((first, end) for first, end in doubts), followed)


class LastRecopy(NamedTuple):
    """Result of a table's last re-copy."""

    #: Unix time of its end.
    ended_at: float
    #: Number of rows that differed.
    differing: int = 0
    #: The reason if it ended without a result.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StoreHead:
    """Data of the store as a whole, not of one table."""

    #: The environment's format number.
    format: int = FORMAT
    #: The next table id.
    next_table: int = 1
    #: The next space.
    next_space: int = 1
    #: The source of the changes; None in a fresh store.
    source: SourceIdentity | None = None
    #: Names of replication connections that PostgreSQL may still have for it, the newest last.
    streams: tuple[str, ...] = ()
    #: The last message of ours in the stream.
    marker: Marker | None = None
    #: The results of the last re-copies, by qualified name.
    last_recopies: Mapping[str, LastRecopy] = field(default_factory=dict)
    #: A random id of the store, by which a relay notices that it would follow itself.
    server_id: str = ""

    def to_bytes(self) -> bytes:
        """The head as JSON, with its seal."""
        source = self.source and self.source.to_json()
        head = orjson.dumps(
            {
                "format": self.format,
                "next_table": self.next_table,
                "next_space": self.next_space,
                "source": source,
                "streams": self.streams,
                "marker": self.marker and list(self.marker),
                "server_id": self.server_id,
                "last_recopies": {name: list(last) for name, last in self.last_recopies.items()},
            }
        )
        return head[:-1] + _HEAD_SEAL + _head_seal(head)

    def take_table(self) -> tuple[int, "StoreHead"]:
        """Take a table id that was never used before."""
        return self.next_table, replace(self, next_table=self.next_table + 1)

    def take_space(self) -> tuple[int, "StoreHead"]:
        """Take a space that was never used before."""
        return self.next_space, replace(self, next_space=self.next_space + 1)


def format_of(stored: bytes) -> tuple[object, str | None]:
    """The format's number in a head of any version, and the slot's name or None."""
    read = orjson.loads(stored)
    source = read.get("source")
    slot = source.get("slot") if isinstance(source, dict) else None
    return read["format"], slot if isinstance(slot, str) else None


def _head_seal(body: bytes) -> bytes:
    return b'%016x"}' % seal.seal_number(STORE_KEY, body)


def head_from_bytes(stored: bytes) -> StoreHead:
    """Parse the result of ``to_bytes``, in this version's format.

    :raises ValueError: if the seal doesn't fit, or the content can't be parsed.
    """
    body, _, sealed = stored.partition(_HEAD_SEAL)
    body += b"}"
    if sealed != _head_seal(body):
        raise ValueError("its seal doesn't fit")
    read = orjson.loads(body)
    source = read["source"]
    return StoreHead(
        read["format"],
        read["next_table"],
        read["next_space"],
        source and SourceIdentity.from_json(source),
        tuple(read["streams"]),
        read["marker"] and Marker(*read["marker"]),
        {name: LastRecopy(*last) for name, last in read["last_recopies"].items()},
        read["server_id"],
    )


def position_to_bytes(position: int, time_us: int) -> bytes:
    """The stored form of the store's position and its newest commit time."""
    return _POSITION.pack(position, time_us)


def position_from_bytes(stored: bytes | None) -> tuple[int, int]:
    """Parse the store's position and newest commit time; zeros in a fresh store."""
    if stored is None:
        return 0, 0
    position, time_us = _POSITION.unpack(stored)
    return position, time_us


def put(transaction: Any, meta: Any, key: bytes, value: bytes) -> None:
    """Write a sealed value."""
    transaction.put(key, seal.joined(key, (value,)), db=meta)


def get(transaction: Any, meta: Any, key: bytes, directory: Path) -> bytes | None:
    """Read the value of this key; None if there is none.

    :raises StoreDamaged: if it isn't what was written.
    """
    stored: bytes | None = transaction.get(key, db=meta)
    return None if stored is None else opened(key, stored, directory)


def ownership(transaction: Any, meta: Any, directory: Path) -> Ownership | None:
    """Read the role among the servers that share the slot; None if the slot was never shared.

    :raises StoreDamaged: if it isn't what was written.
    """
    stored = get(transaction, meta, OWNERSHIP_KEY, directory)
    return None if stored is None else Ownership.from_bytes(stored)


def opened(key: bytes, stored: bytes, directory: Path) -> bytes:
    """Check and remove the seal of a value.

    :raises StoreDamaged: if the value isn't what was written.
    """
    if not seal.fits(key, stored):
        raise StoreDamaged(str(directory), f"the seal of its entry {_name(key)} doesn't fit")
    return stored[: -seal.SEAL_BYTES]


def _name(key: bytes) -> str:
    kind, slash, number = key.partition(b"/")
    if not slash:
        return kind.decode(errors="replace")
    return f"{kind.decode(errors='replace')} {int.from_bytes(number[-4:], 'big')}"


def check_entries(transaction: Any, meta: Any, directory: Path) -> None:
    """Check that the meta database has only entries of this version, as they were written.

    :raises StoreDamaged: if an entry has an unknown name, or isn't what was written.
    """
    cursor = transaction.cursor(db=meta)
    for key, stored in cursor:
        if key not in _KNOWN_KEYS and not key.startswith(_KNOWN_PREFIXES):
            raise StoreDamaged(str(directory), f"it has an entry of unknown name: {key[:40]!r}")
        if key != STORE_KEY:
            opened(key, stored, directory)
    cursor.close()


def put_table(
    transaction: Any, meta: Any, reserve: Reserve, record: TableRecord, before: TableRecord | None
) -> None:
    """Write the parts of ``record`` that differ from the stored record ``before``."""
    if before is None or not record.same_definition(before):
        definition = table.definition_to_bytes(record)
        reserve(1, len(definition))
        put(transaction, meta, DEFINITION + prefix(record.id), definition)
    reserve(1, 0)
    put(transaction, meta, FIGURES + prefix(record.id), table.figures_to_bytes(record))


def delete_table(transaction: Any, meta: Any, table_id: int) -> None:
    """Delete one table's record."""
    transaction.delete(DEFINITION + prefix(table_id), db=meta)
    transaction.delete(FIGURES + prefix(table_id), db=meta)


def all_tables(transaction: Any, meta: Any, directory: Path) -> list[TableRecord]:
    """The stored records of all tables, in order of their ids.

    :raises StoreDamaged: if one isn't what was written.
    """
    records = []
    cursor = transaction.cursor(db=meta)
    found = cursor.set_range(DEFINITION)
    while found and cursor.key().startswith(DEFINITION):
        number = cursor.key()[len(DEFINITION) :]
        definition = opened(cursor.key(), cursor.value(), directory)
        figures = get(transaction, meta, FIGURES + number, directory)
        if figures is None:
            raise StoreDamaged(str(directory), f"its entry {_name(FIGURES + number)} is missing")
        records.append(table.from_bytes(definition, figures))
        found = cursor.next()
    cursor.close()
    return records


# Opening the LMDB environment, for the one writer and for readers.

MAX_READERS = 10_000
"""Most read transactions at one time. After DDL each client of a table reads a snapshot."""
MIN_SIZE = 1 << 20
FILES = ("data.mdb", "lock.mdb", "server.lock")
"""Names of the files by which a store's directory is recognized."""
_PAGE = disk.PAGE
_META_PAGES = 2
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR)
_LIMITS = {
    errno.ENOMEM: "its map needs state.max_size of address space: raise the limit"
    " (ulimit -v, LimitAS), or lower state.max_size",
    errno.EMFILE: "raise the limit of open files (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
    errno.EAGAIN: "raise the limit of locked memory or processes (ulimit -l, -u)",
}
"""Errors that a limit of the system causes, with their cures."""


class Databases(NamedTuple):
    """The named databases of an open environment."""

    state: Any
    marks: Any
    journal: Any
    olds: Any
    positions: Any
    meta: Any


class ServerLock:
    """Exclusive lock of a store's directory, which ends with the process."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 64).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise StoreLocked(str(directory), f"process {owner or 'unknown'}") from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def open_writable(directory: Path, max_size: int) -> tuple[Any, Databases, disk.DiskSpace]:
    """Open the environment for writing, or create it. The caller holds the ServerLock.

    :raises DiskFull: if the disk has no room even for a fresh store.
    :raises StoreDamaged: if the files aren't a usable environment.
    :raises StoreLimited: if a limit of this process is too low to open it.
    """
    max_size = max(max_size, MIN_SIZE)
    max_size -= max_size % _PAGE
    disk.allocate_lock_file(directory, MAX_READERS)
    try:
        environment = lmdb.open(
            str(directory),
            map_size=max_size,
            mode=0o600,
            max_dbs=len(Databases._fields),
            max_readers=MAX_READERS,
            writemap=True,
            sync=True,
            metasync=True,
            # The writer reads single rows, in a store that may be larger than memory.
            readahead=False,
        )
    except lmdb.Error as failed:
        raise lmdb_failed(directory, failed) from failed
    with ExitStack() as opened:
        opened.callback(environment.close)
        try:
            space = disk.DiskSpace(environment, directory, max_size)
            opened.callback(space.close)
            space.begin()
            databases = _databases(environment, create=True)
        except lmdb.Error as failed:
            raise lmdb_failed(directory, failed) from failed
        opened.pop_all()
    return environment, databases, space


def open_readable(directory: Path) -> tuple[Any, Databases]:
    """Open the environment for reading, in another process than the writer's.

    :raises StoreMissing: if there is no store.
    :raises StoreDamaged: if the files aren't a usable environment.
    :raises StoreLimited: if a limit of this process is too low to open it.
    """
    if not (directory / "data.mdb").exists():
        raise StoreMissing(str(directory))
    try:
        environment = lmdb.open(
            str(directory),
            map_size=0,
            max_dbs=len(Databases._fields),
            max_readers=MAX_READERS,
            readonly=True,
            create=False,
            # Readers scan whole tables: that is eight times faster from a cold cache.
            readahead=True,
        )
        return environment, _databases(environment, create=False)
    except lmdb.NotFoundError as missing:
        raise StoreMissing(str(directory)) from missing
    except lmdb.Error as failed:
        raise lmdb_failed(directory, failed) from failed


def free_bytes(environment: Any, databases: Databases) -> int:
    """Size of the free pages: those within the data file, and those by which it may grow.

    LMDB uses some of them for its list of free pages.
    """
    with environment.begin() as transaction:
        stats = [environment.stat(), *(transaction.stat(each) for each in databases)]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
    size: int = environment.info()["map_size"] - (_META_PAGES + pages) * _PAGE
    return max(0, size)


def what_failed(directory: Path, failed: OSError) -> StoreError:
    """The store's error for an error of the operating system."""
    why = failed.strerror or str(failed)
    if failed.errno in disk.NO_ROOM:
        return DiskFull(str(directory), MIN_SIZE, why)
    if failed.errno in _LIMITS:
        return StoreLimited(str(directory), why, _LIMITS[failed.errno])
    return StoreUnusable(str(directory), why)


def lmdb_failed(directory: Path, failed: lmdb.Error) -> StoreError:
    """The store's error for an LMDB error, which has the system's error only in its text."""
    if isinstance(failed, lmdb.ReadersFullError):
        why = f"all {MAX_READERS:,} read transactions that it allows are open"
        return StoreLimited(str(directory), why, "lower fanout.grpc.max_clients")
    for number in (*disk.NO_ROOM, *_LIMITS, *_FORBIDDEN):
        if os.strerror(number) in str(failed):
            return what_failed(directory, OSError(number, os.strerror(number)))
    return StoreDamaged(str(directory), str(failed))


def check_format(directory: Path, stored: bytes | None) -> StoreHead:
    """Parse the store's head; a fresh store has none yet.

    :raises StoreFormatUnknown: if another version wrote it, in another format.
    :raises StoreDamaged: if it can't be parsed.
    """
    if stored is None:
        return StoreHead()
    try:
        number, slot = format_of(stored)
        if number != FORMAT:
            raise StoreFormatUnknown(str(directory), number, FORMAT, slot)
        return head_from_bytes(stored)
    except (ValueError, KeyError, TypeError) as wrong:
        raise StoreDamaged(str(directory), f"its head can't be read ({wrong})") from wrong


def _databases(environment: Any, *, create: bool) -> Databases:
    names = map(str.encode, Databases._fields)
    return Databases(*(environment.open_db(name, create=create) for name in names))


# One LMDB write transaction, for all code that writes within it.


@dataclass(slots=True)
class WriteContext:
    """The handles of a write transaction, and the head and tables as they are within it."""

    #: LMDB's own handle.
    transaction: Any
    #: The environment's databases: rows, marks, journal, definitions.
    databases: Databases
    #: The disk space, which is reserved before it is used.
    disk: DiskSpace
    #: The store's head: counters, source, marker.
    head: StoreHead
    #: Each incarnation's definition and figures, by id.
    tables: dict[int, TableRecord]
    #: True if rows or journal records must be removed later.
    left_garbage: bool = False

    def take_space(self) -> int:
        """Take a space that was never used before."""
        space, self.head = self.head.take_space()
        return space

    def discard(self, kind: bytes, number: int) -> None:
        """Mark a space's rows, or a table's journal, for later removal in small steps."""
        self.left_garbage = True
        put(self.transaction, self.databases.meta, kind + prefix(number), b"")
