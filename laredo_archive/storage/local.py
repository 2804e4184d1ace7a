"""A directory as a destination: POSIX files, durable and without replacing.

An object is written under a hidden name, synced, and linked to its own name,
which fails if that is taken. The manifest is swapped under a lock: write, sync,
rename, sync of the directory. Readers need no lock.

The directory's own path may lead over symbolic links; below it none is followed, and only
regular files are objects (``local_tree``).
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
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
    NameTaken,
    NotAFile,
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
from laredo_archive.storage.local_tree import (
    LocalTree,
    Parts,
    explained,
    sync,
    unclear_if_failing,
    uri_of,
)
from laredo_service.files import sync_file

# Files being written: hidden in their directory until they are linked, or renamed.

UNFINISHED = ".unfinished-"
"""A hidden file's name: this, the name it is for, and 16 hex digits."""
HIDDEN = re.compile(re.escape(UNFINISHED) + r"(.+)-[0-9a-f]{2,16}")

BUFFER_BYTES = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalUpload:
    """A hidden file that becomes an object when it is linked to the object's name."""

    def __init__(self, tree: LocalTree, parts: Parts) -> None:
        self._tree = tree
        self._parts = parts
        self._path = tree.path(parts)
        self._unfinished = Unfinished(tree, parts)
        self._synced = False

    def write(self, data: bytes | memoryview) -> int:
        """Append to the hidden file."""
        with explained(self._path):
            return self._unfinished.write(data)

    def finish(self) -> None:
        """Sync, link, sync the directory; may be called again after CommitStateUnknown."""
        with explained(self._path):
            if self._unfinished.dropped:
                raise DestinationUnavailable(uri_of(self._path), "this upload has failed before")
            if not self._synced:
                self._unfinished.sync()
                self._synced = True
            reach("local.upload.synced")
            with self._tree.directory(self._parts[:-1]) as directory:
                self._link(directory)
                reach("local.upload.linked")
                with unclear_if_failing(self._path):
                    sync(directory)
            reach("local.upload.durable")
        self._unfinished.drop()
        reach("local.upload.done")

    def _link(self, directory: int) -> None:
        hidden, name = self._unfinished.name, self._parts[-1]
        try:
            os.link(hidden, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            ours, there = (
                os.stat(known, dir_fd=directory, follow_symlinks=False) for known in (hidden, name)
            )
            if not os.path.samestat(ours, there):
                # A writer that adopts the file relies on its name, and the writer that made it may
                # have been killed before it synced that.
                sync(directory)
                raise NameTaken(uri_of(self._path)) from None

    def abort(self) -> None:
        """Remove the hidden file."""
        self._unfinished.drop()


class Unfinished:
    """A hidden file in the directory of the file that it becomes."""

    def __init__(self, tree: LocalTree, parts: Parts) -> None:
        self.name = f"{UNFINISHED}{parts[-1]}-{secrets.token_hex(8)}"
        self.dropped = False
        self._tree = tree
        self._directory = parts[:-1]
        try:
            self._file = self._create()
        except FileNotFoundError:  # a collector has removed the empty directory meanwhile
            self._file = self._create()

    def _create(self) -> BinaryIO:
        with self._tree.directory(self._directory, make=True) as directory:
            descriptor = os.open(self.name, _CREATE, 0o666, dir_fd=directory)
        return os.fdopen(descriptor, "wb", buffering=BUFFER_BYTES)

    def write(self, data: bytes | memoryview) -> int:
        """Append."""
        return self._file.write(data)

    def sync(self) -> None:
        """Make the data durable; a failure drops the file."""
        try:
            sync_file(self._file)
        except BaseException:
            self.drop()
            raise
        self._file.close()

    def drop(self) -> None:
        """Remove it, if it exists."""
        self.dropped = True
        with suppress(OSError):  # a full disk fails to flush what isn't wanted any more
            self._file.close()
        # A later collection finds what can't be removed now.
        with suppress(OSError, NotAFile), self._tree.directory(self._directory) as directory:
            os.unlink(self.name, dir_fd=directory)


_NO_LINK = frozenset({errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
"""Too many links; another user's file (fs.protected_hardlinks), or a file system without links;
a mount point between the two directories."""


class LocalLink:
    """A file that gets a second name at finish(): by a hard link, or a copy where that fails."""

    def __init__(self, tree: LocalTree, source: Parts, parts: Parts) -> None:
        self._tree = tree
        self._source = source
        self._parts = parts
        self._path = tree.path(parts)
        self._copy: LocalUpload | None = None

    def finish(self) -> None:
        """Link, sync the directory; may be called again after CommitStateUnknown.

        :raises ArtifactMissing: if the file isn't there.
        """
        with explained(self._path):
            try:
                if self._copy is None:
                    self._link()
            except OSError as failure:
                if failure.errno not in _NO_LINK:
                    raise
                self._copy = self._copied()
        if self._copy is not None:
            self._copy.finish()
        reach("local.link.done")

    def _link(self) -> None:
        try:
            source = self._tree.stat(self._source)
        except FileNotFoundError as wrong:
            raise ArtifactMissing(uri_of(self._tree.path(self._source))) from wrong
        directory, name = self._source[:-1], self._source[-1]
        with (
            self._tree.directory(directory) as from_directory,
            self._tree.directory(self._parts[:-1], make=True) as to_directory,
        ):
            try:
                os.link(
                    name,
                    self._parts[-1],
                    src_dir_fd=from_directory,
                    dst_dir_fd=to_directory,
                    follow_symlinks=False,
                )
            except FileExistsError:
                there = os.stat(self._parts[-1], dir_fd=to_directory, follow_symlinks=False)
                # As for an upload: a writer that adopts the file relies on its name.
                sync(to_directory)
                if not os.path.samestat(source, there):
                    raise NameTaken(uri_of(self._path)) from None
                return
            reach("local.link.linked")
            with unclear_if_failing(self._path):
                sync(to_directory)

    def _copied(self) -> LocalUpload:
        upload = LocalUpload(self._tree, self._parts)
        try:
            with os.fdopen(self._tree.open(self._source), "rb", BUFFER_BYTES) as source:
                shutil.copyfileobj(source, upload, BUFFER_BYTES)
        except BaseException:
            upload.abort()
            raise
        return upload

    def abort(self) -> None:
        """Drop what was copied."""
        if self._copy is not None:
            self._copy.abort()


LOCK_PATIENCE_S = 10.0
"""Longest wait of a swap for another process's swap, which takes milliseconds."""


def _now() -> datetime:
    return datetime.now(UTC)


class LocalDestination:
    """The directory ``path``; it is made when the first object is written."""

    def __init__(self, path: str | Path, now: Callable[[], datetime] = _now) -> None:
        self._tree = LocalTree(Path(path).expanduser().resolve())
        self._now = now
        self.uri = uri_of(self._tree.root).rstrip("/") + "/"
        """file:// and the directory's path without symbolic links."""
        self.location = self.uri
        """The URI, which no other directory has."""

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
        """The regular files below ``prefix``, without hidden ones."""
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
            # A swap may be running: its file is a left-over only once the lock is free.
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
                    f"another process has held this lock for {LOCK_PATIENCE_S:.0f} s; find it with"
                    " fuser, and end it",
                ) from held
            time.sleep(0.005)
