"""Directories and files with tables' rows, readable by their owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from laredo_service.log import Log

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DIRECTORY, _FILE = 0o700, 0o600

log = Log(__name__)


def make(directory: Path, marks: Collection[str] = ()) -> None:
    """Make the directory, with mode 0700, if it is missing.

    An existing one that others may enter is set to 0700 if it is provably ours: owned by our user,
    and empty or with one of ``marks`` in it, files that only this program makes. Any other
    (``/tmp``, a shared volume) stays as it is, with a warning; the files that we write there are
    private all the same.

    :raises OSError: if it can't be made or read.
    """
    try:
        directory.mkdir(mode=_DIRECTORY)
    except FileExistsError:
        _tighten(directory, marks)
    except FileNotFoundError:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=_DIRECTORY)


def private(path: str, flags: int) -> int:
    """An opener for ``open``: makes a file that only its owner may read."""
    return os.open(path, flags | os.O_CLOEXEC, _FILE)


def _tighten(directory: Path, marks: Collection[str]) -> None:
    names = set(os.listdir(directory))  # noqa: PTH208  # raises as make promises
    found = directory.stat()
    if found.st_mode & _OTHERS:
        mode = stat.filemode(found.st_mode)
        if found.st_uid != os.geteuid() or (names and not names & set(marks)):
            log.warning("directory left open to others: not ours", path=str(directory), mode=mode)
            return
        directory.chmod(_DIRECTORY)
        log.warning("directory closed to others", path=str(directory), mode=mode)
    for name in names & set(marks):
        _tighten_file(directory / name)


def _tighten_file(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & _OTHERS:
        path.chmod(_FILE)
