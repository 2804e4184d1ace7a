"""Files of the programs: written durably, hashed, dated, closed to other users.

A ``datetime`` has the years 1 to 9999 in its own offset: 0001-01-01T00:00+14:00 can be parsed, and
its conversion to UTC raises OverflowError. The functions here raise BadTime instead.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from laredo_model.errors import BadTime
from laredo_service.log import Log

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_DIRECTORY, _FILE = 0o700, 0o600

log = Log(__name__)

# Durable files: fsync, and replacement in one step that survives a power failure.


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


# The sha256 and the size of bytes, computed while they are read or written.

Data = bytes | bytearray | memoryview


class Digest:
    """The sha256 and the size of the bytes given to :meth:`update`."""

    __slots__ = ("_hash", "size")

    def __init__(self) -> None:
        self._hash = sha256()
        self.size = 0
        """Bytes so far."""

    def update(self, data: Data) -> None:
        """Add the next bytes."""
        self._hash.update(data)
        self.size += len(data)

    def hex(self) -> str:
        """The sha256 so far, in hex, as manifests have it."""
        return self._hash.hexdigest()

    def digest(self) -> bytes:
        """The sha256 so far, as 32 bytes."""
        return self._hash.digest()


def parse(text: str) -> datetime:
    """Parse a time in ISO 8601; without an offset it is in UTC.

    :raises BadTime: if it isn't one, or is outside of the years 1 to 9999 in UTC.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as wrong:
        raise BadTime(str(wrong)) from None
    return in_utc(moment)


def parse_http(text: str) -> datetime:
    """Parse a time as HTTP's headers have it.

    :raises BadTime: as :func:`parse`.
    """
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError) as wrong:
        raise BadTime(str(wrong)) from None
    return in_utc(moment)


def in_utc(moment: datetime) -> datetime:
    """Convert a time to UTC; without an offset it is in UTC already.

    :raises BadTime: if it is outside of the years 1 to 9999 there.
    """
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        side = "before the year 1" if moment.year == 1 else "after the year 9999"
        raise BadTime(f"{moment.isoformat()} is {side} in UTC") from None


# Directories and files that only their owner may read.


def make_private(directory: Path, marks: Collection[str] = ()) -> None:
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
    names = set(os.listdir(directory))  # noqa: PTH208  # raises as make_private promises
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
