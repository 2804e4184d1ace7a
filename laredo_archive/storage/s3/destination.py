"""S3 as a destination: PUTs that never replace, and a manifest swapped by its ETag."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from typing import BinaryIO

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import Cause
from laredo_archive.errors import CommitConflict, CommitStateUnknown, DestinationUnavailable
from laredo_archive.failpoint import reach
from laredo_archive.storage.destination import ObjectInfo, ObjectVersion, StoredObject, is_plain
from laredo_archive.storage.s3 import probe
from laredo_archive.storage.s3 import upload as uploads
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.copy import S3Copy
from laredo_archive.storage.s3.reading import open_object, read_whole
from laredo_archive.storage.s3.requests import (
    IF_ABSENT,
    RETRY_CONDITIONAL,
    Answer,
    Bucket,
    FailedRequest,
    Pause,
    kept_as,
    sha256_of,
)
from laredo_archive.storage.s3.upload import Lanes, S3Upload

HIDDEN = "."
"""Names with this prefix are probes, not objects."""

# Amazon S3 API reference: where a listing goes on, by what the page before says.
_MARKS = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_multipart_uploads": {
        "KeyMarker": "NextKeyMarker",
        "UploadIdMarker": "NextUploadIdMarker",
    },
}


class S3Destination:
    """A prefix of a bucket; see :class:`laredo_archive.storage.destination.Destination`.

    Making one asks nothing of the store. ``pause``: how waits between tries are made.

    :raises AwsError: if there can be no client for ``location``.
    """

    def __init__(
        self, location: S3Location, clients: AwsClients, pause: Pause = Event.wait
    ) -> None:
        self._bucket = Bucket(location, clients, pause)
        self._lanes = Lanes()

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix/``."""
        return self._bucket.location.uri

    @property
    def location(self) -> str:
        """The URI, and the endpoint if it isn't AWS's."""
        return self._bucket.location.identity

    @property
    def retries(self) -> dict[str, int]:
        """Number of requests that were sent again, by method of the client."""
        return dict(self._bucket.retries)

    def __repr__(self) -> str:
        return f"S3Destination({self.location!r})"

    def probe(self) -> None:
        """Check, by writing and removing small objects, that the store has conditional writes.

        :raises ConditionalWritesMissing: if it can't compare and swap.
        :raises DestinationUnavailable: if it can't be found out now.
        """
        probe.run(self._bucket)

    def uri_of(self, key: str) -> str:
        """``s3://bucket/prefix/key``; nothing in it is quoted."""
        return self._bucket.uri_of(key)

    def get(self, key: str) -> StoredObject | None:
        """The object and its ETag, whatever that is made of."""
        try:
            return read_whole(self._bucket, key)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_KEY:
                return None
            raise refused.error() from refused

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object."""
        try:
            answer = self._bucket.ask("head_object", key)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_KEY:
                return None
            raise refused.error() from refused
        uri = self.uri_of(key)
        size = self._bucket.required(answer, "ContentLength", uri)
        return ObjectInfo(key, size, self._bucket.modified(answer, uri))

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        """The object from ``offset`` on, all of one version."""
        return open_object(self._bucket, key, offset)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects below ``prefix``, hidden ones and folders of a console apart."""
        for page in self._pages("list_objects_v2", prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._bucket.location.prefix)
                if is_plain(key) and not key.rpartition("/")[2].startswith(HIDDEN):
                    modified = self._bucket.modified(found, self.uri_of(key))
                    yield ObjectInfo(key, found["Size"], modified)

    def swap(self, key: str, data: bytes, expected: str | None) -> ObjectVersion:
        """PUT with If-Match, or If-None-Match for the first one."""
        try:
            answer = self._bucket.ask(
                "put_object",
                key,
                again=RETRY_CONDITIONAL,
                Body=data,
                ChecksumSHA256=sha256_of(data),
                **kept_as(self._bucket.location, manifest=True),
                **(IF_ABSENT if expected is None else {"IfMatch": expected}),
            )
        except FailedRequest as refused:
            if refused.kind in (Cause.PRECONDITION, Cause.NO_SUCH_KEY):
                raise CommitConflict(self.uri_of(key)) from refused
            raise refused.error(changing=True) from refused
        reach("s3.swap.sent")
        try:
            version = self._bucket.version(key, answer)
        except DestinationUnavailable as lacking:
            raise CommitStateUnknown(self.uri_of(key), str(lacking)).at(self.location) from lacking
        reach("s3.swap.done")
        return version

    def upload(self, key: str) -> S3Upload:
        """Begin an object; nothing is sent before it is larger than a part, or finished."""
        return S3Upload(self._bucket, key, self._lanes)

    def copy(self, source: str, key: str, size_bytes: int) -> S3Copy | None:
        """Begin a copy that the store makes, of an object of more than a part; else None."""
        if size_bytes <= uploads.PART_BYTES:
            return None  # a GET and a PUT are fewer requests, and our sha256 goes with them
        return S3Copy(self._bucket, source, key, size_bytes, self._lanes)

    def delete(self, key: str) -> None:
        """Delete the object."""
        try:
            # A request without an answer may yet come, when the name has been given out
            # again: that one isn't followed by another, whose answer would hide it.
            self._bucket.ask("delete_object", key, again=(Cause.CONNECT, Cause.THROTTLED))
        except FailedRequest as refused:
            if refused.kind is not Cause.NO_SUCH_KEY:
                raise refused.error(changing=True) from refused

    def collect_unfinished(
        self, prefix: str, older_than: timedelta, is_ours: Callable[[str], bool]
    ) -> int:
        """Abort multipart uploads that were begun that long ago, by the store's Date."""
        dropped = 0
        for page in self._pages("list_multipart_uploads", prefix):
            # A Date has whole seconds, the time of an upload's beginning may have fractions.
            limit = self._bucket.date(page) + timedelta(seconds=1) - older_than
            for upload in page.get("Uploads", ()):
                key = upload["Key"].removeprefix(self._bucket.location.prefix)
                if upload["Initiated"] <= limit and is_plain(key) and is_ours(key):
                    dropped += self._abort(key, upload["UploadId"])
        return dropped

    def _abort(self, key: str, upload_id: str) -> bool:
        try:
            self._bucket.ask("abort_multipart_upload", key, UploadId=upload_id)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_UPLOAD:
                return False
            raise refused.error() from refused
        return True

    def _pages(self, method: str, prefix: str) -> Iterator[Answer]:
        """Each answer of a listing; the next is asked for where the one before ends."""
        marks: dict[str, str] = {}
        while True:
            try:
                page = self._bucket.ask_all(method, prefix, **marks)
            except FailedRequest as refused:
                raise refused.error() from refused
            yield page
            if not page.get("IsTruncated"):
                return
            marks = {
                after: page[next_] for after, next_ in _MARKS[method].items() if page.get(next_)
            }
            if not marks:
                raise DestinationUnavailable(
                    self.uri, "its listing is truncated, but names no position to continue from"
                ).at(self.location)
