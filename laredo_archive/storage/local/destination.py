"""A directory as a destination: POSIX files, durable and without replacing.

An object is written under a hidden name, synced, and linked to its own name,
which fails if that is taken. The manifest is swapped under a lock: write, sync,
rename, sync of the directory. Readers need no lock.

The directory's own path may lead over symbolic links; below it none is followed, and only
regular files are objects (``local_tree``).
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from laredo_archive.errors import (
    ArtifactMissing,
    BadKey,
    CommitConflict,
    DestinationUnavailable,
    TooLarge,
)
from laredo_archive.failpoint import reach
from laredo_archive.storage.destination import (
    LARGEST_WHOLE,
    ObjectInfo,
    ObjectVersion,
    StoredObject,
    is_plain,
)
from laredo_archive.storage.local.failures import explained, unclear_if_failing
from laredo_archive.storage.local.link import LocalLink
from laredo_archive.storage.local.tree import LocalTree, Parts, sync, uri_of
from laredo_archive.storage.local.upload import BUFFER_BYTES, HIDDEN, LocalUpload, Unfinished

LOCK_PATIENCE_S = 10.0
"""Longest wait of a swap for another process's swap, which takes milliseconds."""


def _now() -> datetime:
    return datetime.now(UTC)


class LocalDestination:
    """The directory ``path``; it is made when the first object is written."""

    def __init__(self, path: str | Path, now: Callable[[], datetime] = _now) -> None:
        self._tree = LocalTree(Path(path).expanduser().resolve())
        self._now = now

    @property
    def uri(self) -> str:
        """file:// and the directory's path without symbolic links."""
        return uri_of(self._tree.root).rstrip("/") + "/"

    @property
    def location(self) -> str:
        """The URI: there is one such directory."""
        return self.uri

    def __repr__(self) -> str:
        return f"LocalDestination({str(self._tree.root)!r})"

    def uri_of(self, key: str) -> str:
        """The file's URI.

        :raises BadKey: if ``key`` leads out of the directory.
        """
        return uri_of(self._tree.path(self._parts(key)))

    def get(self, key: str) -> StoredObject | None:
        """The file's bytes; its etag is their sha256."""
        parts = self._parts(key)
        with explained(self._tree.path(parts)):
            try:
                descriptor = self._tree.open(parts)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(LARGEST_WHOLE + 1)
        if len(data) > LARGEST_WHOLE:
            raise TooLarge(self.uri_of(key), LARGEST_WHOLE)
        return StoredObject(data, ObjectVersion(_etag(data), self._now()))

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the file."""
        parts = self._parts(key)
        with explained(self._tree.path(parts)):
            try:
                return _info(key, self._tree.stat(parts))
            except FileNotFoundError:
                return None

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        """The file, from ``offset`` on."""
        parts = self._parts(key)
        with explained(self._tree.path(parts)):
            try:
                file = os.fdopen(self._tree.open(parts), "rb", buffering=BUFFER_BYTES)
            except FileNotFoundError as wrong:
                raise ArtifactMissing(self.uri_of(key)) from wrong
            file.seek(offset)
        return file

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The regular files below ``prefix``, hidden ones apart."""
        for parts, found in self._files(prefix):
            if not parts[-1].startswith("."):
                yield _info("/".join(parts), found)

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        """Replace the file, under a lock, if it is still the version ``expected``."""
        parts = self._parts(key)
        path, name = self._tree.path(parts), parts[-1]
        with (
            explained(path),
            self._tree.directory(parts[:-1], make=True) as directory,
            _locked(directory, path),
        ):
            reach("local.swap.locked")
            found = self.get(key)
            if (found.version.etag if found else None) != expected:
                raise CommitConflict(uri_of(path))
            unfinished = Unfinished(self._tree, parts)
            try:
                unfinished.write(data)
                reach("local.swap.written")
                unfinished.sync()
                reach("local.swap.synced")
                os.rename(unfinished.name, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                unfinished.drop()
                raise
            reach("local.swap.renamed")
            with unclear_if_failing(path):
                sync(directory)
        reach("local.swap.done")
        return ObjectVersion(_etag(data), self._now())

    def upload(self, key: str) -> LocalUpload:
        """Begin a file, hidden in its directory."""
        parts = self._parts(key)
        with explained(self._tree.path(parts)):
            return LocalUpload(self._tree, parts)

    def copy(self, source: str, key: str, size_bytes: int) -> LocalLink:
        """Begin a link to the file ``source``, which has its bytes and takes no room."""
        return LocalLink(self._tree, self._parts(source), self._parts(key))

    def delete(self, key: str) -> None:
        """Remove the file, and its directory once that is empty."""
        parts = self._parts(key)
        with explained(self._tree.path(parts)):
            try:
                self._tree.unlink(parts)
            except (FileNotFoundError, NotADirectoryError):
                return
        if parts[:-1]:
            self._tree.remove_empty(parts[:-1])

    def collect_unfinished(
        self, prefix: str, older_than: timedelta, is_ours: Callable[[str], bool]
    ) -> int:
        """Remove hidden files that writers left when they were killed."""
        dropped = 0
        limit = (self._now() - older_than).timestamp()
        for parts, found in self._files(f"{prefix.rpartition('/')[0]}/" if "/" in prefix else ""):
            named = _named_by(parts)
            if named is None or found.st_mtime >= limit:
                continue
            key = "/".join(named)
            if key.startswith(prefix) and is_ours(key):
                with explained(self._tree.path(parts)), suppress(FileNotFoundError):
                    self._drop_unfinished(parts, named)
                    dropped += 1
        return dropped

    def _drop_unfinished(self, hidden: Parts, named: Parts) -> None:
        path = self._tree.path(named)
        with self._tree.directory(hidden[:-1]) as directory:
            try:
                os.stat(_lock_of(named[-1]), dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                os.unlink(hidden[-1], dir_fd=directory)
                return
            # A swap may be going on: its file is only a left-over once the lock is free.
            with _locked(directory, path):
                os.unlink(hidden[-1], dir_fd=directory)

    def _parts(self, key: str) -> Parts:
        if not is_plain(key):
            raise BadKey(self.uri, key)
        return key.split("/")

    def _files(self, prefix: str) -> Iterator[tuple[Parts, os.stat_result]]:
        directory = prefix.rpartition("/")[0]
        if directory and not is_plain(directory):
            raise BadKey(self.uri, prefix)
        with explained(self._tree.path(directory.split("/"))):
            yield from self._tree.files(prefix)


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _named_by(parts: Parts) -> Parts | None:
    """Final name of a hidden file; None if its name isn't an upload's."""
    found = HIDDEN.fullmatch(parts[-1])
    return [*parts[:-1], found[1]] if found else None


def _lock_of(name: str) -> str:
    return f".{name}.lock"


@contextmanager
def _locked(directory: int, path: Path) -> Iterator[None]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    lock = _lock_of(path.name)
    descriptor = os.open(lock, flags, 0o666, dir_fd=directory)
    try:
        _lock(descriptor, path.with_name(lock))
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, lock: Path) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as held:
            if time.monotonic() > deadline:
                raise DestinationUnavailable(
                    uri_of(lock),
                    f"another process has held this lock for {LOCK_PATIENCE_S:.0f} s; see which"
                    " (fuser) and end it",
                ) from held
            time.sleep(0.005)
