"""A directory as a destination: POSIX files, durable and without replacing.

An object is written under a hidden name, synced, and linked to its own name,
which fails if that is taken. The manifest is swapped under a lock: write, sync,
rename, sync of the directory. Readers need no lock.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from laredo_archive.destination import Found, ObjectInfo, Version, is_plain
from laredo_archive.errors import (
    ArtifactMissing,
    BadKey,
    DestinationDenied,
    DestinationFull,
    DestinationReadOnly,
    DestinationUnavailable,
    NameTaken,
    OutcomeUnclear,
    SwapLost,
)
from laredo_archive.failpoint import reach

UNFINISHED = ".unfinished-"
LOCK_PATIENCE_S = 10.0
"""How long a swap waits for another process's swap, which takes milliseconds."""

_BUFFER_BYTES = 1 << 20


def _now() -> datetime:
    return datetime.now(UTC)


class LocalDestination:
    """The directory ``path``; it is made when the first object is written."""

    def __init__(self, path: str | Path, now: Callable[[], datetime] = _now) -> None:
        self._root = Path(path).expanduser().resolve()
        self._now = now

    @property
    def uri(self) -> str:
        """file:// and the directory's path without symbolic links."""
        return _uri(self._root).rstrip("/") + "/"

    @property
    def place(self) -> str:
        """The URI: there is one such directory."""
        return self.uri

    def __repr__(self) -> str:
        return f"LocalDestination({str(self._root)!r})"

    def uri_of(self, key: str) -> str:
        """The file's URI.

        :raises BadKey: if ``key`` leads out of the directory.
        """
        return _uri(self._path(key))

    def get(self, key: str) -> Found | None:
        """The file's bytes; its etag is their sha256."""
        path = self._path(key)
        with _explained(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        return Found(data, Version(_etag(data), self._now()))

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the file."""
        path = self._path(key)
        with _explained(path):
            try:
                found = path.stat()
            except FileNotFoundError:
                return None
        return ObjectInfo(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        """The file, from ``offset`` on."""
        path = self._path(key)
        with _explained(path):
            try:
                file = path.open("rb", buffering=_BUFFER_BYTES)
            except FileNotFoundError as wrong:
                raise ArtifactMissing(_uri(path)) from wrong
            file.seek(offset)
        return file

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The files below ``prefix``, hidden ones apart."""
        for path in self._files(prefix):
            if path.name.startswith("."):
                continue
            key = path.relative_to(self._root).as_posix()
            info = self.head(key) if key.startswith(prefix) else None
            if info is not None:
                yield info

    def swap(self, key: str, data: bytes, expected: str | None) -> Version:
        """Replace the file, under a lock, if it is still the version ``expected``."""
        path = self._path(key)
        with _explained(path), self._locked(path):
            reach("local.swap.locked")
            found = self.get(key)
            if (found.version.etag if found else None) != expected:
                raise SwapLost(_uri(path))
            unfinished = _Unfinished.beside(path)
            try:
                unfinished.write(data)
                reach("local.swap.written")
                unfinished.sync()
                reach("local.swap.synced")
                unfinished.path.rename(path)
            except BaseException:
                unfinished.drop()
                raise
            reach("local.swap.renamed")
            with _unclear_if_failing(path):
                _sync_directory(path.parent)
        reach("local.swap.done")
        return Version(_etag(data), self._now())

    def upload(self, key: str) -> "LocalUpload":
        """Begin a file, hidden beside its place."""
        path = self._path(key)
        with _explained(path):
            return LocalUpload(path, _Unfinished.beside(path))

    def delete(self, key: str) -> None:
        """Remove the file, and its directory once that is empty."""
        path = self._path(key)
        with _explained(path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return
            _sync_directory(path.parent)
        if path.parent != self._root:
            with suppress(OSError):  # not empty: the usual case
                path.parent.rmdir()

    def collect_unfinished(self, prefix: str, older_than: timedelta) -> int:
        """Remove hidden files that writers left when they were killed."""
        dropped = 0
        limit = (self._now() - older_than).timestamp()
        for path in self._files(prefix):
            if not path.name.startswith(UNFINISHED):
                continue
            with _explained(path), suppress(FileNotFoundError):
                if path.stat().st_mtime < limit:
                    self._drop_unfinished(path)
                    dropped += 1
        return dropped

    def _drop_unfinished(self, hidden: Path) -> None:
        named = hidden.with_name(hidden.name.removeprefix(UNFINISHED).rpartition("-")[0])
        if _lock_of(named).exists():
            # A swap may be going on: its file is only a left-over once the lock is free.
            with self._locked(named):
                hidden.unlink()
        else:
            hidden.unlink()

    def _path(self, key: str) -> Path:
        if not is_plain(key):
            raise BadKey(self.uri, key)
        return self._root.joinpath(*key.split("/"))

    def _files(self, prefix: str) -> Iterator[Path]:
        directory = self._root / prefix.rpartition("/")[0]
        with _explained(directory):
            if directory.exists():
                for parent, _, names in os.walk(directory, onerror=_raise):
                    yield from (Path(parent, name) for name in names)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        _make_directories(path.parent)
        lock = _lock_of(path)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, lock)
            yield
        finally:
            os.close(descriptor)


class LocalUpload:
    """A hidden file that becomes an object when it is linked to the object's name."""

    def __init__(self, path: Path, unfinished: "_Unfinished") -> None:
        self._path = path
        self._unfinished = unfinished
        self._synced = False

    def write(self, data: bytes | memoryview) -> int:
        """Append to the hidden file."""
        with _explained(self._path):
            return self._unfinished.write(data)

    def finish(self) -> None:
        """Sync, link, sync the directory; may be called again after OutcomeUnclear."""
        hidden = self._unfinished.path
        with _explained(self._path):
            if self._unfinished.dropped:
                raise DestinationUnavailable(_uri(self._path), "this upload has failed before")
            if not self._synced:
                self._unfinished.sync()
                self._synced = True
            reach("local.upload.synced")
            try:
                os.link(hidden, self._path)
            except FileExistsError:
                if not self._path.samefile(hidden):
                    # Whoever adopts it relies on its name; its maker may have been killed
                    # before it synced that.
                    _sync_directory(self._path.parent)
                    raise NameTaken(_uri(self._path)) from None
            reach("local.upload.linked")
            with _unclear_if_failing(self._path):
                _sync_directory(self._path.parent)
            reach("local.upload.durable")
        self._unfinished.drop()
        reach("local.upload.done")

    def abort(self) -> None:
        """Remove the hidden file."""
        self._unfinished.drop()


class _Unfinished:
    """A hidden file beside the place that it is for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped = False
        self._file = path.open("xb", buffering=_BUFFER_BYTES)

    @classmethod
    def beside(cls, path: Path) -> "_Unfinished":
        _make_directories(path.parent)
        name = f"{UNFINISHED}{path.name}-{secrets.token_hex(8)}"
        try:
            return cls(path.with_name(name))
        except FileNotFoundError:  # the collector found the directory empty meanwhile
            _make_directories(path.parent)
            return cls(path.with_name(name))

    def write(self, data: bytes | memoryview) -> int:
        return self._file.write(data)

    def sync(self) -> None:
        # After a failed fsync a second one may succeed without the data: no second try.
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except BaseException:
            self.drop()
            raise
        self._file.close()

    def drop(self) -> None:
        self.dropped = True
        with suppress(OSError):  # a full disk fails to flush what isn't wanted any more
            self._file.close()
        with suppress(OSError):  # a later collection finds what can't be removed now
            self.path.unlink(missing_ok=True)


def _uri(path: Path) -> str:
    # Path.as_uri() would also quote "=", which is in every key.
    return "file://" + quote(path.as_posix(), safe="/=:@+,~")


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _raise(failure: OSError) -> None:
    # A directory that the collector removed meanwhile holds nothing.
    if not isinstance(failure, FileNotFoundError):
        raise failure


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directories(directory: Path) -> None:
    """Make it and what leads to it, durably."""
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir()
    _sync_directory(directory.parent)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _lock(descriptor: int, lock: Path) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as held:
            if time.monotonic() > deadline:
                raise DestinationUnavailable(
                    _uri(lock),
                    f"another process has held this lock for {LOCK_PATIENCE_S:.0f} s; see which"
                    " (fuser) and end it",
                ) from held
            time.sleep(0.005)


@contextmanager
def _unclear_if_failing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise OutcomeUnclear(
            _uri(path), f"it was written, but its directory couldn't be synced: {failure}"
        ) from failure


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise _explanation(path, failure) from failure


def _explanation(path: Path, failure: OSError) -> DestinationUnavailable:
    uri, at = _uri(path), failure.filename or path
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
