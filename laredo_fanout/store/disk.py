"""Disk space for LMDB's data file, allocated before it is needed.

With ``writemap`` LMDB writes through the memory map of a sparse file: a page
that the file system can't back is then a SIGBUS, not an error. So every page
that a transaction could use is allocated first, by an upper bound of what its
changes can touch.
"""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from laredo_fanout.store.errors import DiskFull

Reserve = Callable[[int, int], None]
"""``DiskSpace.reserve``, as those who write to the environment are given it."""

PAGE = 4096
STEP = 16 << 20
_BASE_PAGES = 64
_READER_SLOT = 64
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def allocate(path: Path, offset: int, size: int) -> None:
    """Back these bytes of the file with disk space; the file is made if it is missing.

    :raises DiskFull: if there is no room for them.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _fallocate(descriptor, path, offset, size)
    finally:
        os.close(descriptor)


def allocate_lock_file(directory: Path, max_readers: int) -> None:
    """The lock file is mapped and sparse too: whoever reads takes a slot in it."""
    path = directory / "lock.mdb"
    size = (max_readers + 4) * _READER_SLOT
    size += -size % PAGE
    if not path.exists() or path.stat().st_blocks * 512 < size:
        allocate(path, 0, size)


def _fallocate(descriptor: int, path: Path, offset: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, offset, size)
    except OSError as failed:
        if failed.errno in NO_ROOM:
            why = failed.strerror or str(failed)
            raise DiskFull(str(path.parent), size, why) from failed
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
        self._leaves = self._branches = self._depth = 0

    @property
    def is_at_its_path(self) -> bool:
        """Whether a later start would find this very file: not if it was deleted or replaced."""
        try:
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))

    def close(self) -> None:
        """Let the file go."""
        os.close(self._descriptor)

    @property
    def used_bytes(self) -> int:
        """Size of the data file's used part."""
        pages: int = self._environment.info()["last_pgno"]
        return (pages + 1) * PAGE

    def begin(self, transaction: Any = None, databases: Iterable[Any] = ()) -> None:
        """A write transaction begins, on these databases.

        :raises DiskFull: if there isn't even room for an empty one.
        """
        self._leaves = self._branches = self._depth = 0
        for database in databases:
            stat = transaction.stat(database)
            self._leaves += stat["leaf_pages"]
            self._branches += stat["branch_pages"]
            self._depth = max(self._depth, stat["depth"])
        self._used = self._environment.info()["last_pgno"] + 1
        self._changes = self._bytes = 0
        self.reserve(0, 0)

    def reserve(self, changes: int, size: int) -> None:
        """So many more puts and deletes, of so many bytes in all, in this transaction.

        A change copies the pages on its way down and may split its leaf; but
        no page is copied twice, and a page takes half its size in new bytes
        before it splits again. At the commit LMDB writes the list of free pages.

        :raises DiskFull: if the disk can't hold what they may need.
        """
        self._changes += changes
        self._bytes += size
        leaves = min(2 * self._changes, 2 * self._leaves + self._bytes // 1024)
        branches = min(self._depth * self._changes, 2 * self._branches + self._bytes // 2048)
        pages = _BASE_PAGES + leaves + branches + self._bytes // 2048 + self._used // 256
        self._ensure(min(self._used + pages, self._max_pages))

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
            # Near the end of the disk: only what is needed, and smaller steps from now on.
            self._step = max(self._step // 2, PAGE)
            _fallocate(self._descriptor, self._path, self._allocated * PAGE, needed)
            self._allocated = pages
