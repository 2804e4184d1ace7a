"""Files being written: hidden in their directory until they are linked, or renamed."""

import os
import re
import secrets
from contextlib import suppress
from typing import BinaryIO

from laredo_archive.errors import DestinationUnavailable, NameTaken
from laredo_archive.failpoint import reach
from laredo_archive.storage.local.failures import explained, unclear_if_failing
from laredo_archive.storage.local.tree import LocalTree, Parts, sync, uri_of
from laredo_service.files import sync_file

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
                # A writer that adopts it relies on its name; its maker may have been killed
                # before it synced that.
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
        except FileNotFoundError:  # the collector found the directory empty meanwhile
            self._file = self._create()

    def _create(self) -> BinaryIO:
        with self._tree.directory(self._directory, make=True) as directory:
            descriptor = os.open(self.name, _CREATE, 0o666, dir_fd=directory)
        return os.fdopen(descriptor, "wb", buffering=BUFFER_BYTES)

    def write(self, data: bytes | memoryview) -> int:
        """Append."""
        return self._file.write(data)

    def sync(self) -> None:
        """Make the data durable; drops the file if it can't be."""
        try:
            sync_file(self._file)
        except BaseException:
            self.drop()
            raise
        self._file.close()

    def drop(self) -> None:
        """Remove it, if it is there."""
        self.dropped = True
        with suppress(OSError):  # a full disk fails to flush what isn't wanted any more
            self._file.close()
        # A later collection finds what can't be removed now.
        with suppress(OSError), self._tree.directory(self._directory) as directory:
            os.unlink(self.name, dir_fd=directory)
