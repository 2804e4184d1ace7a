"""Opening the LMDB environment, for the one writer and for readers."""

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from laredo_fanout.store import disk, layout, meta
from laredo_fanout.store.errors import (
    DiskFull,
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
    StoreLocked,
    StoreMissing,
    StoreUnusable,
)

MAX_READERS = 1000
MIN_SIZE = 1 << 20
FILES = ("data.mdb", "lock.mdb", "server.lock")
"""Files of a store's directory, by which it is recognized."""
_PAGE = disk.PAGE
_META_PAGES = 2
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR)


@dataclass(frozen=True, slots=True)
class Databases:
    """The named databases of an open environment (``layout.py``)."""

    state: Any
    marks: Any
    journal: Any
    olds: Any
    positions: Any
    meta: Any

    @property
    def all(self) -> tuple[Any, ...]:
        """Every one of them."""
        return self.state, self.marks, self.journal, self.olds, self.positions, self.meta


class ServerLock:
    """One server per path: an exclusive lock that dies with its process."""

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
        """Let another server in."""
        os.close(self._descriptor)


def open_writable(directory: Path, max_size: int) -> tuple[Any, Databases, disk.DiskSpace]:
    """The environment for writing; made if there is none. The caller holds the ServerLock.

    :raises DiskFull: if the disk has no room for even a fresh store.
    :raises StoreDamaged: if what is there isn't a usable environment.
    """
    max_size = max(max_size, MIN_SIZE)
    max_size -= max_size % _PAGE
    disk.allocate_lock_file(directory, MAX_READERS)
    try:
        environment = lmdb.open(
            str(directory),
            map_size=max_size,
            mode=0o600,
            max_dbs=len(layout.DATABASES),
            max_readers=MAX_READERS,
            writemap=True,
            sync=True,
            metasync=True,
            # The writer goes to single rows, in a store that may be larger than memory.
            readahead=False,
        )
    except lmdb.Error as failed:
        raise _what_failed(directory, failed) from failed
    try:
        space = disk.DiskSpace(environment, directory, max_size)
        space.begin()
        return environment, _databases(environment, create=True), space
    except BaseException:
        environment.close()
        raise


def open_readable(directory: Path) -> tuple[Any, Databases]:
    """The environment for reading, in another process than the writer's.

    :raises StoreMissing: if there is no store.
    :raises StoreDamaged: if what is there isn't a usable environment.
    """
    if not (directory / "data.mdb").exists():
        raise StoreMissing(str(directory))
    try:
        environment = lmdb.open(
            str(directory),
            map_size=0,
            max_dbs=len(layout.DATABASES),
            max_readers=MAX_READERS,
            readonly=True,
            create=False,
            # Readers scan whole tables: eight times faster from a cold cache.
            readahead=True,
        )
        return environment, _databases(environment, create=False)
    except (lmdb.NotFoundError, lmdb.ReadonlyError) as missing:
        raise StoreMissing(str(directory)) from missing
    except lmdb.Error as failed:
        raise _what_failed(directory, failed) from failed


def free_bytes(environment: Any, databases: Databases) -> int:
    """Size of the pages that hold nothing: the data file's that were given back, and those by which
    it may grow. Of them LMDB takes some for its list of free pages."""
    with environment.begin() as transaction:
        stats = [environment.stat(), *(transaction.stat(each) for each in databases.all)]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
    size: int = environment.info()["map_size"] - (_META_PAGES + pages) * _PAGE
    return max(0, size)


def what_failed(directory: Path, failed: OSError) -> StoreError:
    """Typed error of the store for an error of the operating system."""
    why = failed.strerror or str(failed)
    if failed.errno in disk.NO_ROOM:
        return DiskFull(str(directory), MIN_SIZE, why)
    return StoreUnusable(str(directory), why)


def _what_failed(directory: Path, failed: lmdb.Error) -> StoreError:
    """Typed error of the store for an LMDB error, whose text alone has the system's error."""
    for number in (*disk.NO_ROOM, *_FORBIDDEN):
        if os.strerror(number) in str(failed):
            return what_failed(directory, OSError(number, str(failed)))
    return StoreDamaged(str(directory), str(failed))


def check_format(directory: Path, stored: bytes | None) -> meta.StoreHead:
    """Parse the store's head; a fresh store has none yet.

    :raises StoreFormatUnknown: if another version wrote it, in another format.
    :raises StoreDamaged: if it can't be read.
    """
    if stored is None:
        return meta.StoreHead()
    try:
        number, slot = meta.format_of(stored)
        if number != meta.FORMAT:
            raise StoreFormatUnknown(str(directory), number, meta.FORMAT, slot)
        return meta.head_from_bytes(stored)
    except (ValueError, KeyError, TypeError) as wrong:
        raise StoreDamaged(str(directory), f"its head can't be read ({wrong})") from wrong


def _databases(environment: Any, *, create: bool) -> Databases:
    opened = {name.decode(): environment.open_db(name, create=create) for name in layout.DATABASES}
    return Databases(**opened)
