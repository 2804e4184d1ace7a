"""Disk space for LMDB's data file, allocated before it is needed.

With ``writemap`` LMDB writes through the memory map of a sparse file: a page
that the file system can't allocate raises SIGBUS, not an error. So every page
that a transaction could use is allocated first, by an upper bound of the pages
that its changes can touch.
"""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from laredo_fanout.store.errors import DiskFull

Reserve = Callable[[int, int], None]
"""``DiskSpace.reserve``, for code that writes to the environment."""

PAGE = 4096
STEP = 16 << 20
_BASE_PAGES = 64
_LARGEST_NODE = 2038
"""Size of the largest value that may be in a leaf; a larger one has pages of its own."""
_NODE_BYTES = 16
"""Bytes of a row's node, in addition to its key and value."""
_VALUE_NODE_BYTES = 48
"""Bytes of a node of the journal, with its key."""
_LEAST_IN_A_LEAF = 1020
"""Bytes in the smaller half of a leaf that was split: the largest node may be in the other half."""
_LEAVES_A_BRANCH = 2
"""A new branch page has entries of more new leaves than this, each of at most 521 bytes."""
_READER_SLOT = 64
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def allocate(path: Path, offset: int, size: int) -> None:
    """Allocate disk space for these bytes of the file, which is created if it is missing.

    :raises DiskFull: if there is no room for them.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _fallocate(descriptor, path, offset, size)
    finally:
        os.close(descriptor)


def allocate_lock_file(directory: Path, max_readers: int) -> None:
    """Allocate the lock file, which is mapped and sparse too: each reader takes a slot in it."""
    path = directory / "lock.mdb"
    size = (max_readers + 4) * _READER_SLOT
    size += -size % PAGE
    if not path.exists() or path.stat().st_blocks * 512 < size:
        allocate(path, 0, size)


def _fallocate(
    descriptor: int, path: Path, offset: int, size: int, in_all: int | None = None
) -> None:
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as failed:
        if failed.errno in NO_ROOM:
            why = failed.strerror or str(failed)
            raise DiskFull(str(path.parent), in_all or size, why) from failed
        raise


class DiskSpace:
    """Keeps the data file's allocated part ahead of the write transactions."""

    def __init__(self, environment: Any, directory: Path, max_size: int) -> None:
        self._environment = environment
        self._path = directory / "data.mdb"
        self._max_pages = max_size // PAGE
        self._descriptor = os.open(self._path, os.O_RDWR)
        self._allocated = 0
        self._step = STEP
        self._used = self._changes = self._bytes = 0
        self._own_pages = self._expected = 0
        self._leaves = self._branches = self._depth = 0

    @property
    def is_at_its_path(self) -> bool:
        """True unless the file was deleted or replaced, so that a later start wouldn't find it."""
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @property
    def used_bytes(self) -> int:
        """Size of the data file's used part."""
        pages: int = self._environment.info()["last_pgno"]
        return (pages + 1) * PAGE

    def begin(self, transaction: Any = None, databases: Iterable[Any] = ()) -> None:
        """Begin a write transaction on these databases.

        :raises DiskFull: if there isn't even room for an empty one.
        """
        self._leaves = self._branches = self._depth = 0
        for database in databases:
            stat = transaction.stat(database)
            self._leaves += stat["leaf_pages"]
            self._branches += stat["branch_pages"]
            self._depth = max(self._depth, stat["depth"])
        self._used = self._environment.info()["last_pgno"] + 1
        self._changes = self._bytes = self._own_pages = self._expected = 0
        self.reserve(0, 0)

    def expect(self, size: int) -> None:
        """Set the bytes of changes that are still to come, about, for :class:`DiskFull`."""
        self._expected = self._bytes + size

    def reserve(self, changes: int, size: int) -> None:
        """Reserve space for puts and deletes of this transaction, of ``size`` bytes in all.

        :raises DiskFull: if the disk can't hold what they may need.
        """
        self._changes += changes
        self._bytes += size + changes * _NODE_BYTES
        self._ensure(min(self._used + self._bound(), self._max_pages))

    def reserve_values(self, *sizes: int) -> None:
        """Reserve space for a put of a value of each size, and for one more change.

        :raises DiskFull: if the disk can't hold what they may need.
        """
        small = [size for size in sizes if size <= _LARGEST_NODE]
        self._own_pages += sum(2 + size // PAGE for size in sizes if size > _LARGEST_NODE)
        self.reserve(len(sizes) + 1, sum(small) + (len(sizes) + 1) * _VALUE_NODE_BYTES)

    def _bound(self) -> int:
        """Largest number of pages that this transaction's changes can use.

        A change copies the pages from the root to its leaf, and may split the leaf; but no page is
        copied twice, and each half of a split leaf has a minimum size. A value in pages of its own
        needs fewer than it would in leaves. At the commit LMDB writes the list of free pages.
        """
        changes, filled = self._changes, self._bytes // _LEAST_IN_A_LEAF
        leaves = min(2 * changes + self._bytes // _LARGEST_NODE, 2 * self._leaves + filled)
        added = min(changes + 1, self._leaves + filled)
        branches = min((self._depth + 2) * changes, 2 * self._branches + added // _LEAVES_A_BRANCH)
        return _BASE_PAGES + leaves + branches + self._own_pages + self._used // 256

    def _missing(self, pages: int) -> int:
        """Bytes that aren't allocated yet: those of ``pages``, and those that are expected."""
        to_come = max(0, self._expected - self._bytes)
        # A row is in a leaf and in the journal's own pages.
        pages += to_come // _LEAST_IN_A_LEAF + to_come // PAGE
        return (min(pages, self._max_pages) - self._allocated) * PAGE

    def _ensure(self, pages: int) -> None:
        if pages <= self._allocated:
            return
        needed = (pages - self._allocated) * PAGE
        ahead = min(needed + self._step, (self._max_pages - self._allocated) * PAGE)
        try:
            _fallocate(self._descriptor, self._path, self._allocated * PAGE, ahead)
            self._allocated += ahead // PAGE
            self._step = min(2 * self._step, STEP)
        except DiskFull:
            # The disk is nearly full: only the needed pages, and smaller steps from now on.
            self._step = max(self._step // 2, PAGE)
            missing = self._missing(pages)
            _fallocate(self._descriptor, self._path, self._allocated * PAGE, needed, missing)
            self._allocated = pages
