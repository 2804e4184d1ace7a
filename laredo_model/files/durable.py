"""Durable files: fsync, and replacement in one step that survives a power failure."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def sync_file(file: IO[Any]) -> None:
    """Flush and fsync ``file``.

    :raises OSError: if that fails; a second fsync may succeed without the data, so don't retry.
    """
    file.flush()
    os.fsync(file.fileno())


def sync_directory(path: Path | str, *, dir_fd: int | None = None) -> None:
    """fsync a directory, which makes its file names durable; ``path`` is relative to ``dir_fd``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, beside: Path, file: IO[Any]) -> Iterator[None]:
    """Replace ``path`` durably by the file that the block writes to ``file``, open at ``beside``.

    If the block or the rename raises, ``path`` stays as it was and ``beside`` is removed.
    """
    try:
        yield
        sync_file(file)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
