"""The files below one directory, opened without symbolic links; failures with path and cure.

The directory's own path is the operator's and is followed as it is. Below it others may write:
each step down is an openat() that refuses a symbolic link, and a file is read only if it is a
regular one. So nothing outside is read, written or deleted, and no FIFO or device is waited for.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from laredo_archive.errors import (
    CommitStateUnknown,
    DestinationDenied,
    DestinationFull,
    DestinationReadOnly,
    DestinationUnavailable,
    NotAFile,
)
from laredo_service.files import sync_directory

_INTO = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Parts = Sequence[str]
"""A key's parts: names of directories, and last of a file."""


class LocalTree:
    """The directory ``root`` and what is below it. OSErrors come out as they are."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, parts: Parts) -> Path:
        """Path for messages; nothing is opened by it."""
        return self.root.joinpath(*parts)

    @contextmanager
    def directory(self, parts: Parts, *, make: bool = False) -> Iterator[int]:
        """A descriptor of a directory, for the ``dir_fd`` of other calls, not for reading.

        ``make``: missing directories are made, durably.

        :raises NotAFile: if a symbolic link leads there.
        """
        if make:
            _make_root(self.root)
        found = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth in range(1, len(parts) + 1):
                below = self._step(found, parts[:depth], make=make)
                os.close(found)
                found = below
            yield found
        finally:
            os.close(found)

    def _step(self, above: int, parts: Parts, *, make: bool) -> int:
        name = parts[-1]
        try:
            return os.open(name, _INTO, dir_fd=above)
        except FileNotFoundError:
            if not make:
                raise
        except OSError as failure:
            if failure.errno in (errno.ENOTDIR, errno.ELOOP):
                mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    raise self._refused(parts, mode) from failure
            raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        sync(above)
        return os.open(name, _INTO, dir_fd=above)

    def open(self, parts: Parts) -> int:
        """A descriptor of a regular file, for reading.

        :raises NotAFile: if it isn't one.
        """
        with self.directory(parts[:-1]) as directory:
            try:
                found = os.open(parts[-1], _READ, dir_fd=directory)
            except OSError as failure:
                # A symbolic link, or a socket.
                if failure.errno in (errno.ELOOP, errno.ENXIO):
                    self._stat(directory, parts)
                raise
        try:
            self._check(parts, os.fstat(found).st_mode)
        except BaseException:
            os.close(found)
            raise
        return found

    def stat(self, parts: Parts) -> os.stat_result:
        """Status of a regular file.

        :raises NotAFile: if it isn't one.
        """
        with self.directory(parts[:-1]) as directory:
            return self._stat(directory, parts)

    def _stat(self, directory: int, parts: Parts) -> os.stat_result:
        found = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        self._check(parts, found.st_mode)
        return found

    def unlink(self, parts: Parts) -> None:
        """Remove a regular file, durably.

        :raises NotAFile: if it isn't one.
        """
        with self.directory(parts[:-1]) as directory:
            self._stat(directory, parts)
            os.unlink(parts[-1], dir_fd=directory)
            sync(directory)

    def remove_empty(self, parts: Parts) -> None:
        """Remove a directory below the root, if it is empty."""
        with suppress(OSError, NotAFile), self.directory(parts[:-1]) as above:
            os.rmdir(parts[-1], dir_fd=above)

    def files(self, prefix: str) -> Iterator[tuple[Parts, os.stat_result]]:
        """Every regular file whose key begins with ``prefix``, in no order.

        Files that are removed meanwhile may be left out.
        """
        *directory, begin = prefix.split("/")
        waiting = [directory]
        while waiting:
            parts = waiting.pop()
            try:
                inside = self._inside(parts)
            except FileNotFoundError:
                continue
            for name, found in inside:
                if parts is directory and not name.startswith(begin):
                    continue
                if stat.S_ISDIR(found.st_mode):
                    waiting.append([*parts, name])
                elif stat.S_ISREG(found.st_mode):
                    yield [*parts, name], found

    def _inside(self, parts: Parts) -> list[tuple[str, os.stat_result]]:
        inside = []
        with (
            self.directory(parts) as directory,
            _readable(directory) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for entry in entries:
                with suppress(FileNotFoundError):
                    inside.append((entry.name, entry.stat(follow_symlinks=False)))
        return inside

    def _check(self, parts: Parts, mode: int) -> None:
        if not stat.S_ISREG(mode):
            raise self._refused(parts, mode)

    def _refused(self, parts: Parts, mode: int) -> NotAFile:
        what = _KINDS.get(stat.S_IFMT(mode), "something else")
        return NotAFile(uri_of(self.path(parts)), what, str(self.root))


def uri_of(path: Path) -> str:
    """A path as a URI."""
    # Path.as_uri() would also quote "=", which is in every key.
    return "file://" + quote(os.fsencode(path.as_posix()), safe="/=:@+,~")


def sync(directory: int) -> None:
    """Make a directory's names durable."""
    sync_directory(".", dir_fd=directory)


@contextmanager
def _readable(directory: int) -> Iterator[int]:
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make_root(root: Path) -> None:
    """Make the directory and those above it, durably."""
    if root.is_dir():
        return
    _make_root(root.parent)
    with suppress(FileExistsError):
        root.mkdir()
    sync_directory(root.parent)


# Converts OSErrors into a destination's errors, with the path, the reason and the cure.


@contextmanager
def unclear_if_failing(path: Path) -> Iterator[None]:
    """:raises CommitStateUnknown: if the directory of what was written can't be synced."""
    try:
        yield
    except OSError as failure:
        raise CommitStateUnknown(
            uri_of(path), f"it was written, but its directory couldn't be synced: {failure}"
        ) from failure


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """:raises DestinationUnavailable: instead of an OSError; ``path`` names the file."""
    try:
        yield
    except OSError as failure:
        raise _explanation(path, failure) from failure


def _explanation(path: Path, failure: OSError) -> DestinationUnavailable:
    uri, at = uri_of(path), path
    if isinstance(failure.filename, str) and failure.filename.startswith("/"):
        at = Path(failure.filename)
    if failure.errno in (errno.ENOSPC, errno.EDQUOT):
        return DestinationFull(
            uri,
            f"no space left ({failure.strerror}) at {at}; free some, enlarge the volume or raise"
            " the quota",
        )
    if failure.errno == errno.EROFS:
        return DestinationReadOnly(
            uri, f"the file system at {at} is read-only; mount it read-write"
        )
    if failure.errno in (errno.EACCES, errno.EPERM):
        return DestinationDenied(
            uri,
            f"{failure.strerror} at {at}; let uid {os.getuid()} read and write there, on a file"
            " system that has hard links",
        )
    return DestinationUnavailable(uri, f"{failure.strerror or failure} at {at}")
