"""The interface of storage: the operations that a commit needs of a directory or bucket.

A destination is safe for use by several threads. It raises DestinationError, ArtifactMissing and
ArtifactDamaged; any other exception is a bug. A change either was made, surely wasn't
(DestinationUnavailable, NameTaken, CommitConflict), or is of unknown outcome (CommitStateUnknown).
Keys are relative, ``/``-separated.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import BinaryIO, NamedTuple, Protocol

LARGEST_WHOLE = 512 << 20
"""Most bytes of an object that is read whole. A manifest's artifact takes less than a kilobyte."""


class ObjectVersion(NamedTuple):
    """One version of an object."""

    #: The store's name for the version.
    etag: str
    #: The store's Date of the answer that showed it.
    date: datetime


class StoredObject(NamedTuple):
    """A small object, whole."""

    #: Its bytes.
    data: bytes
    version: ObjectVersion


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: str
    size_bytes: int
    #: When it was written, by the store's clock.
    modified: datetime


def is_plain(key: str) -> bool:
    """True if ``key`` stays inside a destination, and every store can hold it."""
    parts = key.split("/")
    return all(parts) and "." not in parts and ".." not in parts and "\0" not in key


class UnfinishedObject(Protocol):
    """An object that isn't there before finish()."""

    def finish(self) -> None:
        """Make it an object, durably, without replacing one.

        :raises NameTaken: there is one; it may also be this very upload, sent twice.
        :raises CommitStateUnknown: it may exist, now or later.
        :raises DestinationUnavailable: it doesn't exist.
        """

    def abort(self) -> None:
        """Drop it; never raises. Does nothing after finish()."""


class Upload(UnfinishedObject, Protocol):
    """An object being written: it is invisible before finish()."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Append, in bounded memory.

        :raises DestinationUnavailable: the upload is lost; abort it.
        """


class Destination(Protocol):
    """A directory, or a prefix of a bucket, that holds objects."""

    @property
    def uri(self) -> str:
        """The URI, with ``/`` at the end, that precedes a key in a manifest's URIs."""

    @property
    def location(self) -> str:
        """The canonical location: equal for the same storage, different for any other.

        The URI, and the endpoint where that is needed to make it unique.
        """

    def uri_of(self, key: str) -> str:
        """URI of the object ``key``.

        :raises BadKey: if ``key`` leads out of the destination.
        """

    def get(self, key: str) -> StoredObject | None:
        """A small object, whole; None if there is none.

        :raises TooLarge: if it has more than LARGEST_WHOLE bytes.
        :raises DestinationUnavailable: if it can't be read now.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """An object's size and time; None if there is none."""

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        """An object's bytes from ``offset`` on; the caller closes it.

        :raises ArtifactMissing: if there is no such object.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key begins with ``prefix``; a failure never looks like the end."""

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        """Replace the version ``expected`` (an etag; None: there is no object) by ``data``.

        Atomic and durable: a reader sees the one or the other.

        :raises CommitConflict: it isn't that version; it may also be this very swap, sent twice.
        :raises CommitStateUnknown: it may be replaced, now or later.
        :raises DestinationUnavailable: it wasn't replaced.
        """

    def upload(self, key: str) -> Upload:
        """Begin an object; finish() gives it its name."""

    def copy(self, source: str, key: str, size_bytes: int) -> UnfinishedObject | None:
        """Begin an object with the bytes of the object ``source``, without reading them here.

        None: the store has no way that is better than to read and upload them.

        :raises ArtifactMissing: if there is no object ``source``; also at finish().
        :raises ArtifactDamaged: at finish(), if it is found to have another size.
        :raises DestinationUnavailable: if it can't be begun now.
        """

    def delete(self, key: str) -> None:
        """Delete an object, if it exists.

        :raises CommitStateUnknown: it may be deleted, now or later.
        :raises DestinationUnavailable: it still exists.
        """

    def collect_unfinished(
        self, prefix: str, older_than: timedelta, is_ours: Callable[[str], bool]
    ) -> int:
        """Drop unfinished uploads below ``prefix`` that are older; return their number.

        ``is_ours`` accepts their keys: another program may upload there too.
        """
