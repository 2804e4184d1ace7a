"""Reads objects: a small one whole, a large one as a stream that resumes when interrupted.

A stream is pinned to the version that was opened (If-Match), so it never mixes two.
An answer that is cut off is never taken for the object's end.
"""

import io
import re
from contextlib import closing
from functools import partial
from typing import Any

from laredo_archive.aws.explain import Cause, failures
from laredo_archive.errors import ArtifactMissing, DestinationUnavailable, TooLarge
from laredo_archive.storage.destination import LARGEST_WHOLE, StoredObject
from laredo_archive.storage.s3.requests import (
    RETRY_IDEMPOTENT,
    Answer,
    Bucket,
    FailedRequest,
    Parameters,
)

_BUFFER_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_BEYOND_THE_END = 416


def read_whole(bucket: Bucket, key: str) -> StoredObject:
    """A small object and its version.

    :raises FailedRequest: if it can't be read.
    :raises TooLarge: if it has more than LARGEST_WHOLE bytes.
    :raises DestinationUnavailable: if the answer doesn't name its version.
    """

    def read() -> StoredObject:
        answer = bucket.ask("get_object", key, again=(), ChecksumMode="ENABLED")
        with closing(answer["Body"]) as body:
            if bucket.required(answer, "ContentLength", uri) > LARGEST_WHOLE:
                raise TooLarge(uri, LARGEST_WHOLE).at(bucket.location.identity)
            try:
                data = body.read()
            except _broken_off() as failure:
                raise bucket.refused(failure, "GetObject", uri) from failure
        return StoredObject(data, bucket.version(key, answer))

    uri = bucket.uri_of(key)
    return bucket.repeatedly("get_object", RETRY_IDEMPOTENT, read)


def open_object(bucket: Bucket, key: str, offset: int) -> io.BufferedReader:
    """The object's bytes from ``offset`` on. The first request is sent at once.

    :raises ArtifactMissing: if there is no such object.
    :raises DestinationUnavailable: if it can't be read now.
    """
    pinned = PinnedObject(bucket, key)
    pinned.begin(offset)
    return io.BufferedReader(pinned, _BUFFER_BYTES)


class PinnedObject(io.RawIOBase):
    """One version of one object.

    Reading raises ArtifactMissing if it was deleted meanwhile, and DestinationUnavailable
    if it was replaced, or can't be read any more.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._uri = bucket.uri_of(key)
        self._position = 0
        self._size = 0
        self._etag: str | None = None
        self._body: Any = None

    def begin(self, offset: int) -> None:
        """Ask for everything from ``offset`` on.

        :raises ArtifactMissing, DestinationUnavailable: as :func:`open_object`.
        """
        self._position = offset
        try:
            self._bucket.repeatedly("get_object", RETRY_IDEMPOTENT, self._ask_for_the_rest)
        except FailedRequest as refused:
            if refused.status == _BEYOND_THE_END:
                self._size = offset
                return
            raise self._meant(refused) from refused

    def readable(self) -> bool:
        """True: the object can be read."""
        return True

    def seekable(self) -> bool:
        """True: after a seek the next read sends a new request."""
        return True

    def tell(self) -> int:
        """Position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte of the object."""
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        target = starts[whence] + offset
        if target != self._position:
            self._drop_body()
            self._position = target
        return target

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer`` what the next part of the answer has; 0 at the object's end."""
        if self._position >= self._size or not len(buffer):
            return 0
        try:
            count = self._bucket.repeatedly(
                "get_object", RETRY_IDEMPOTENT, partial(self._read_some, buffer)
            )
        except FailedRequest as refused:
            raise self._meant(refused) from refused
        self._position += count
        return count

    def readall(self) -> bytes:
        """The rest of the object, read in large pieces."""
        pieces = []
        while piece := self.read(_BUFFER_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Let go of the connection."""
        self._drop_body()
        super().close()

    def _read_some(self, buffer: Any) -> int:
        if self._body is None:
            self._ask_for_the_rest()
        try:
            count: int = self._body.readinto(buffer)
            if not count:
                raise EOFError(f"the answer ended at byte {self._position} of {self._size}")
        except _broken_off() as failure:
            self._drop_body()
            raise self._bucket.refused(failure, "GetObject", self._uri) from failure
        return count

    def _ask_for_the_rest(self) -> None:
        wanted: Parameters = {"Range": f"bytes={self._position}-"} if self._position else {}
        if self._etag is not None:
            wanted["IfMatch"] = self._etag
        answer = self._bucket.ask("get_object", self._key, again=(), **wanted)
        try:
            size, etag = self._size_in(answer), self._bucket.required(answer, "ETag", self._uri)
            if self._etag not in (None, etag):
                raise self._replaced()
        except DestinationUnavailable:
            answer["Body"].close()
            raise
        self._size, self._etag, self._body = size, etag, answer["Body"]

    def _size_in(self, answer: Answer) -> int:
        if not self._position and "ContentRange" not in answer:
            return int(self._bucket.required(answer, "ContentLength", self._uri))
        content_range = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
        if content_range is None or int(content_range[1]) != self._position:
            raise DestinationUnavailable(
                self._uri,
                f"asked for the bytes from {self._position} on, the store answered with"
                f" {answer.get('ContentRange', 'all of them')}. Use a store that honours Range, and"
                " check whether a proxy in front of it drops that header",
            ).at(self._bucket.location.identity)
        return int(content_range[2])

    def _meant(self, refused: FailedRequest) -> Exception:
        if refused.kind is Cause.NO_SUCH_KEY:
            return ArtifactMissing(self._uri)
        if refused.kind is Cause.PRECONDITION:
            return self._replaced()
        return refused.error()

    def _replaced(self) -> DestinationUnavailable:
        return DestinationUnavailable(
            self._uri,
            "it was replaced while it was being read. Our programs never do that: find out which"
            " program wrote it",
        ).at(self._bucket.location.identity)

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


def _broken_off() -> tuple[type[Exception], ...]:
    """Exceptions that reading an answer's body may raise, in addition to those of sending."""
    return (*failures(), OSError, EOFError)
