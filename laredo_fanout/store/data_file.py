"""Checks of the data file for damage that LMDB doesn't report, but that may end the process."""

import os
import resource
import signal
import time
import warnings
from pathlib import Path
from struct import Struct

from laredo_fanout.store import environment
from laredo_fanout.store.disk import PAGE
from laredo_fanout.store.errors import StoreDamaged, StoreLimited

PATIENCE_S = 60.0
"""Longest wait for the process that reads a little of the file."""
_META_PAGES = 2
_META = Struct("<8xHH4xIIQQ48x48xQQ")
"""A meta page: overhead, flags, magic, version, address, map size, two databases, last page,
transaction."""
_META_FLAG, _MAGIC = 0x08, 0xBEEFC0DE


def check(directory: Path, lock: environment.ServerLock) -> None:
    """Check the data file, if there is one, before it is mapped for writing, under the lock.

    :raises StoreDamaged: if the file is truncated, or reading it ends a process.
    :raises StoreLimited: if reading it doesn't end.
    """
    try:
        with (directory / "data.mdb").open("rb") as file:
            size, pages = os.fstat(file.fileno()).st_size, file.read(_META_PAGES * PAGE)
    except FileNotFoundError:
        return
    if not size:
        raise StoreDamaged(str(directory), "data.mdb is empty")
    last = _last_page(pages)
    if last is not None and size < (last + 1) * PAGE:
        why = f"data.mdb is truncated: it has {size:,} of {(last + 1) * PAGE:,} bytes"
        raise StoreDamaged(str(directory), why)
    _check_reading(directory, lock)


def _last_page(pages: bytes) -> int | None:
    """Number of the last page in the newer meta page; None if LMDB will refuse the file itself."""
    found: list[tuple[int, int]] = []
    for start in range(0, _META_PAGES * PAGE, PAGE):
        if len(pages) < start + _META.size:
            return None
        _, flags, magic, _, _, _, last, transaction = _META.unpack_from(pages, start)
        if not flags & _META_FLAG or magic != _MAGIC:
            return None
        found.append((transaction, last))
    return max(found)[1]


def _check_reading(directory: Path, lock: environment.ServerLock) -> None:
    """Read a little of every database in a child process, which damage may end, or a disk hold."""
    with warnings.catch_warnings():
        # Python 3.12 and later warn if there are threads; the child takes none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            # The child may outlive a server that is killed, which would leave the store locked.
            lock.release()
            _read_a_little(directory)
        finally:
            # The caller's own reading meets the same error, and reports it.
            os._exit(0)
    deadline, pause = time.monotonic() + PATIENCE_S, 0.001
    while not (reaped := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() >= deadline:
            # Not waited for: no signal ends a process that hangs in its disk.
            os.kill(child, signal.SIGKILL)
            why = f"reading data.mdb takes longer than {PATIENCE_S:g} s"
            raise StoreLimited(str(directory), why, "check its disk, then start the server again")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    _, status = reaped
    if os.WIFSIGNALED(status):
        ended = signal.Signals(os.WTERMSIG(status)).name
        raise StoreDamaged(str(directory), f"reading data.mdb ends with {ended}")


def _read_a_little(directory: Path) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # LMDB prints an assertion when it gives up, which is for a developer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    opened, databases = environment.open_readable(directory)
    with opened.begin() as transaction:
        for database in databases:
            cursor = transaction.cursor(db=database)
            for _ in range(2):
                cursor.first()
                cursor.last()
        for _ in transaction.cursor(db=databases.meta):
            continue
