"""A Parquet target: a directory of versions, and ``current``, which is replaced in one step.

    TARGET/current -> versions/00000007        the one commit point: a symbolic link, renamed
    TARGET/versions/00000007/part-….parquet    never changed; the same file in many versions
    TARGET/versions/00000007/_laredo.json      its boundary, and the key range of each file

A version's files and its ``_laredo.json`` are durable before ``current`` names it, so a reader of
TARGET/current sees one boundary's rows, wherever a sync is killed; and the position is committed
with the rows. Unchanged files are linked, not copied. An older version stays for ``keep_s``
seconds, as its readers may need it.
"""

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from laredo_archive.failpoint import reach
from laredo_model.files.durable import replacing, sync_directory, sync_file
from laredo_spark.sync.errors import TargetBusy, TargetMissing, TargetRefused
from laredo_spark.sync.folder import Folder, LocalFolder
from laredo_spark.sync.state import StateUnreadable, SyncedFile, SyncState

CURRENT = "current"
STATE = "_laredo.json"
_VERSIONS = "versions"
_LOCK = ".lock"
_STAGING = ".staging-"
_NEW_LINK = ".current-"
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS})


class SyncDirectory:
    """One Parquet target, on a file system that all of Spark's workers see."""

    def __init__(self, target: str | Path) -> None:
        """:raises TargetRefused: if it isn't a directory's path."""
        self.path = _path(str(target))

    def __str__(self) -> str:
        return str(self.path)

    def current(self) -> Path | None:
        """The version that readers see; None if nothing was synced yet."""
        link = self.path / CURRENT
        return link.resolve() if link.is_symlink() else None

    def state(self) -> SyncState | None:
        """The state of the current version.

        :raises TargetRefused: if it can't be read.
        """
        version = self.current()
        if version is None:
            return None
        try:
            return SyncState.parse((version / STATE).read_bytes())
        except (OSError, StateUnreadable) as wrong:
            raise TargetRefused(
                version / STATE, f"{wrong}. Remove the directory {self.path} and sync again"
            ) from wrong

    def shown(self) -> LocalFolder:
        """The version that readers see.

        :raises TargetMissing: if nothing was synced yet.
        """
        version = self.current()
        if version is None:
            raise TargetMissing(self.path)
        return LocalFolder(version)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory for the block, and remove what a killed sync left.

        :raises TargetBusy: if another sync is at work.
        :raises TargetRefused: if something else is in the directory.
        """
        self._refuse_others()
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TargetBusy(self.path) from None
            self._clear()
            yield

    @contextmanager
    def staging(self) -> Iterator[LocalFolder]:
        """A temporary directory for files that tasks write."""
        directory = self.path / f"{_STAGING}{secrets.token_hex(8)}"
        directory.mkdir()
        try:
            yield LocalFolder(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def is_whole(self, state: SyncState) -> bool:
        """Whether all files are there with their sizes."""
        version = self.shown().path
        return all(_size(version / file.name) == file.size_bytes for file in state.files)

    def commit(self, state: SyncState, staged: Folder, kept: Sequence[SyncedFile]) -> None:
        """Make a version of ``kept`` and staged files, and show it to readers."""
        assert isinstance(staged, LocalFolder)
        version = self._versions / f"{state.version:08d}"
        version.mkdir(parents=True)
        before = self.current()
        stay = {file.name for file in kept}
        for file in state.files:
            source = before if before is not None and file.name in stay else staged.path
            _link(source / file.name, version / file.name)
        reach("sync.linked")
        with (version / STATE).open("w") as shown:
            shown.write(state.to_json())
            sync_file(shown)
        sync_directory(version)
        sync_directory(self._versions)
        reach("sync.written")
        self._point_at(version)
        reach("sync.committed")

    def recorded(self, state: SyncState) -> None:
        """Replace the state of the current version, whose files stay."""
        version = self.shown().path
        name = version / f".{STATE}-{secrets.token_hex(8)}"
        with name.open("w") as file, replacing(version / STATE, name, file):
            file.write(replace(state, version=int(version.name)).to_json())

    def remove_old(self, keep_s: float) -> None:
        """Remove the versions that were followed by another longer than ``keep_s`` ago."""
        versions = sorted(self._versions.iterdir())
        for version, follower in pairwise(versions):
            if time.time() - (follower / STATE).stat().st_ctime >= keep_s:
                shutil.rmtree(version)

    @property
    def _versions(self) -> Path:
        return self.path / _VERSIONS

    def _point_at(self, version: Path) -> None:
        link = self.path / f"{_NEW_LINK}{secrets.token_hex(8)}"
        link.symlink_to(version.relative_to(self.path))
        link.replace(self.path / CURRENT)
        sync_directory(self.path)

    def _refuse_others(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise TargetRefused(self.path, "is a file; give a directory of its own")
        names = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        foreign = sorted(n for n in names - {_VERSIONS, CURRENT} if not n.startswith("."))
        if foreign or (CURRENT in names and not (self.path / CURRENT).is_symlink()):
            what = foreign[0] if foreign else CURRENT
            raise TargetRefused(
                self.path, f"there is something else in it ({what}); give a directory of its own"
            )

    def _clear(self) -> None:
        for path in self.path.iterdir():
            if path.name.startswith(_STAGING):
                shutil.rmtree(path)
            elif path.name.startswith(_NEW_LINK):
                path.unlink()
        current = self.current()
        for version in self._versions.iterdir() if self._versions.exists() else ():
            if current is None or version.name > current.name:
                shutil.rmtree(version)


def _path(target: str) -> Path:
    scheme = urlsplit(target).scheme if ":/" in target else ""
    if scheme == "file":
        target = unquote(urlsplit(target).path)
    elif scheme:
        raise TargetRefused(
            target,
            "to = parquet writes to a directory that all of Spark's workers see (a path, or a file:"
            " URI), or to a bucket (s3://)",
        )
    return Path(target).expanduser().absolute()


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _link(source: Path, name: Path) -> None:
    try:
        os.link(source, name)
    except OSError as failure:
        if failure.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, name)
        with name.open("rb") as copied:
            sync_file(copied)
