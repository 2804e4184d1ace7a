"""Directories and files that hold the tables' rows: for their owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

import structlog

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DIRECTORY, _FILE = 0o700, 0o600

log = structlog.get_logger(__name__)


def make(directory: Path, marks: Collection[str] = ()) -> None:
    """The directory, made with mode 0700 if it is missing.

    One that others may enter is tightened if it is provably ours: our user's, and empty or with
    one of ``marks`` in it, the files that only we make. Another's (``/tmp``, a shared volume) is
    left as it is, with a warning: what we write there is our user's alone all the same.

    :raises OSError: if it can't be made or looked at.
    """
    try:
        directory.mkdir(mode=_DIRECTORY)
    except FileExistsError:
        _tighten(directory, marks)
    except FileNotFoundError:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=_DIRECTORY)


def private(path: str, flags: int) -> int:
    """``open``'s opener for a file that only its owner may read."""
    return os.open(path, flags | os.O_CLOEXEC, _FILE)


def _tighten(directory: Path, marks: Collection[str]) -> None:
    names = set(os.listdir(directory))  # noqa: PTH208  # raises as make promises
    found = directory.stat()
    if found.st_mode & _OTHERS:
        mode = stat.filemode(found.st_mode)
        if found.st_uid != os.geteuid() or (names and not names & set(marks)):
            log.warning("directory is open to others, and not ours", path=str(directory), mode=mode)
            return
        directory.chmod(_DIRECTORY)
        log.warning("directory was open to others, closed it", path=str(directory), mode=mode)
    for name in names & set(marks):
        _tighten_file(directory / name)


def _tighten_file(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        path.chmod(_FILE)
