"""Uploads of objects that a manifest will name; none is ever replaced (commit protocol, 3)."""

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO

from laredo_archive.codec import ByteSource
from laredo_archive.errors import (
    ArtifactDamaged,
    CommitStateUnknown,
    DestinationUnavailable,
    NameTaken,
)
from laredo_archive.failpoint import reach
from laredo_archive.manifest.object_keys import NewNames
from laredo_archive.storage.destination import Destination, UnfinishedObject, Upload
from laredo_archive.write.manifest_store import Environment
from laredo_service.files import Digest
from laredo_service.log import Log

log = Log(__name__)

ATTEMPTS = 6
PIECE_BYTES = 1 << 20

Advance = Callable[[int], None]


def _to_nobody(_: int) -> None:
    pass


@dataclass(frozen=True)
class Content:
    """The bytes of an object, readable any number of times."""

    #: The name of the bytes in messages.
    origin: str
    #: Their number.
    size_bytes: int
    sha256: str | None
    #: Opens a reader of the bytes.
    open: Callable[[], AbstractContextManager[ByteSource]]


def stored(destination: Destination, key: str, size_bytes: int, sha256: str | None) -> Content:
    """The content of a stored object."""
    return Content(
        destination.uri_of(key), size_bytes, sha256, lambda: closing(destination.open(key))
    )


@contextmanager
def shared(file: IO[bytes], turn: threading.Lock) -> Iterator[ByteSource]:
    """A reader of ``file`` from its start, with a position of its own.

    ``turn``: held for each read, as other readers move the file's position.
    """
    yield _Reader(file, turn)


class _Reader:
    def __init__(self, file: IO[bytes], turn: threading.Lock) -> None:
        self._file = file
        self._turn = turn
        self._offset = 0

    def read(self, size: int = -1, /) -> bytes:
        with self._turn:
            self._file.seek(self._offset)
            data = self._file.read(size)
        self._offset += len(data)
        return data


def store_object(
    destination: Destination,
    key: str,
    content: Content,
    *,
    avoid: Container[str],
    new_names: NewNames,
    environment: Environment,
) -> str:
    """Upload ``content`` as ``key``, or under a new key if that is taken; returns the key.

    An object of that name with the same bytes is adopted. Names in ``avoid`` (named by
    another entry, or retired) are neither taken nor adopted.

    :raises ArtifactDamaged: if the bytes that are read differ from ``content``.
    :raises DestinationUnavailable: if the destination is unavailable.
    """
    put = partial(_put, destination, content=content, environment=environment)
    return _under_free_name(
        destination, key, put, avoid=avoid, new_names=new_names, environment=environment
    )


def copy_object(
    destination: Destination,
    source: str,
    key: str,
    content: Content,
    *,
    avoid: Container[str],
    new_names: NewNames,
    environment: Environment,
) -> str:
    """Store the object ``source``, with the bytes ``content``, under another name too.

    The store copies it where it can, else its bytes are uploaded again. As store_object().

    :raises ArtifactMissing: if there is no object ``source``.
    :raises ArtifactDamaged: if it is found to differ from ``content``.
    """

    def put(name: str) -> bool:
        copying = destination.copy(source, name, content.size_bytes)
        if copying is None:
            return _put(destination, name, content, environment)
        try:
            finish(copying, environment)
        except NameTaken:
            return holds(destination, name, content)
        finally:
            copying.abort()
        return True

    return _under_free_name(
        destination, key, put, avoid=avoid, new_names=new_names, environment=environment
    )


def _under_free_name(
    destination: Destination,
    key: str,
    put: Callable[[str], bool],
    *,
    avoid: Container[str],
    new_names: NewNames,
    environment: Environment,
) -> str:
    name = key
    for attempt in range(ATTEMPTS):
        if name in avoid:
            name = new_names.instead_of(key)
        if put(name):
            if name != key:
                log.info("object renamed: name taken", key=key, name=name, uri=destination.uri)
            return name
        name = new_names.instead_of(key)
        environment.back_off(attempt)
    raise DestinationUnavailable(
        destination.uri_of(key), f"no free name was found for it in {ATTEMPTS} tries"
    ).at(destination.location)


def _put(destination: Destination, name: str, content: Content, environment: Environment) -> bool:
    upload = destination.upload(name)
    try:
        _copy(content, upload)
        reach("upload.written")
        finish(upload, environment)
    except NameTaken:
        return holds(destination, name, content)
    finally:
        upload.abort()
    reach("upload.finished")
    return True


def finish(upload: UnfinishedObject, environment: Environment) -> None:
    """Finish an upload, and retry while its outcome is unclear.

    :raises NameTaken: there is such an object; perhaps this upload, sent twice.
    :raises DestinationUnavailable: if it stays unclear.
    """
    for attempt in range(ATTEMPTS):
        try:
            upload.finish()
        except CommitStateUnknown as failure:
            unclear = failure
            log.debug("upload completion retried", uri=failure.uri, failure=str(failure))
            environment.back_off(attempt)
        else:
            return
    raise DestinationUnavailable(
        unclear.uri, f"its upload is unconfirmed after {ATTEMPTS} tries: {unclear}"
    ).at(unclear.location)


def _copy(content: Content, upload: Upload) -> None:
    digest = Digest()
    for piece in pieces(content):
        upload.write(piece)
        digest.update(piece)
        if digest.size > content.size_bytes:
            raise ArtifactDamaged(
                content.origin, f"it has more than the {content.size_bytes} bytes of its entry"
            )
    if digest.size != content.size_bytes:
        raise ArtifactDamaged(
            content.origin, f"it has {digest.size} bytes, its entry has {content.size_bytes}"
        )
    if content.sha256 not in (None, digest.hex()):
        raise ArtifactDamaged(
            content.origin, f"its sha256 is {digest.hex()}, its entry has {content.sha256}"
        )


def is_there(destination: Destination, key: str, size_bytes: int) -> bool:
    """True if there is an object of that name and size."""
    found = destination.head(key)
    return found is not None and found.size_bytes == size_bytes


def holds(
    destination: Destination, key: str, content: Content, advance: Advance = _to_nobody
) -> bool:
    """True if the object ``key`` has the bytes of ``content``."""
    if content.sha256 is None or not is_there(destination, key, content.size_bytes):
        return False
    there = stored(destination, key, content.size_bytes, content.sha256)
    return sha256_of(there, advance) == content.sha256


def sha256_of(content: Content, advance: Advance = _to_nobody) -> str:
    """The digest of ``content``, read now; ``advance`` gets each piece's size."""
    digest = Digest()
    for piece in pieces(content):
        digest.update(piece)
        advance(len(piece))
    return digest.hex()


def pieces(content: Content) -> Iterator[bytes]:
    """The bytes of ``content``, about a megabyte at a time."""
    with content.open() as source:
        while piece := source.read(PIECE_BYTES):
            yield piece
