"""A second name for a file: a hard link, or a copy where the file system has none for it."""

import errno
import os
import shutil
from contextlib import suppress

from laredo_archive.errors import ArtifactMissing, NameTaken
from laredo_archive.failpoint import reach
from laredo_archive.storage.local.failures import explained, unclear_if_failing
from laredo_archive.storage.local.tree import LocalTree, Parts, sync, uri_of
from laredo_archive.storage.local.upload import BUFFER_BYTES, LocalUpload

_NO_LINK = frozenset({errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
"""Too many links; another user's file (fs.protected_hardlinks), or a file system without links;
a mount point between the two directories."""


class LocalLink:
    """A file that gets a second name at finish()."""

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
                # Who adopts it relies on its name, which its maker may not have synced.
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
            with suppress(OSError):
                self._copy.abort()
