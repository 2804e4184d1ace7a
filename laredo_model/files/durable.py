"""Files that are still there, whole, after a power failure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def sync_file(file: IO[Any]) -> None:
    """Make what was written durable.

    :raises OSError: if it can't be; a second try may succeed without the data, so make none.
    """
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path | str, *, dir_fd: int | None = None) -> None:
    """Make durable which names a directory holds; ``dir_fd``: what ``path`` is relative to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, beside: Path, file: IO[Any]) -> Iterator[None]:
    """The block fills ``file``, which is open at ``beside``; then that becomes ``path``, durably.

    If the block or the renaming raises, ``path`` stays as it was and ``beside`` is removed.
    """
    try:
        yield
        sync_file(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
