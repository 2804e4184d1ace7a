"""S3 as a destination: PUTs that never replace, and a manifest swapped by its ETag."""

import re
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any, BinaryIO

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import PASSING, Cause
from laredo_archive.errors import (
    ArtifactDamaged,
    ArtifactMissing,
    CommitConflict,
    CommitStateUnknown,
    ConditionalWritesMissing,
    DestinationUnavailable,
)
from laredo_archive.failpoint import reach
from laredo_archive.storage.destination import ObjectInfo, ObjectVersion, StoredObject, is_plain
from laredo_archive.storage.s3 import upload as uploads
from laredo_archive.storage.s3.bucket import S3Location
from laredo_archive.storage.s3.reading import open_object, read_whole
from laredo_archive.storage.s3.requests import (
    IF_ABSENT,
    PART_ATTEMPTS,
    RETRY_CONDITIONAL,
    RETRY_IDEMPOTENT,
    Answer,
    Bucket,
    FailedRequest,
    Pause,
    kept_as,
    sha256_of,
)
from laredo_archive.storage.s3.upload import Lanes, Part, S3Upload
from laredo_service.log import Log

# A copy within a bucket that the store makes by itself, of any size, and that replaces nothing.
#
# CopyObject takes 5 GB at most, and not every store that has conditional writes has them for
# CopyObject too. A multipart upload is completed with If-None-Match, as all our uploads are; its
# parts may be ranges of an existing object ("Copying an object using multipart upload", Amazon S3
# User Guide).

COPIED_PART_BYTES = 512 << 20
"""Bytes of a part. The largest object, of 5 TB, then has fewer than the allowed 10,000 parts."""


class S3Copy(S3Upload):
    """A copy of one of the bucket's objects under another name."""

    def __init__(
        self, bucket: Bucket, source: str, key: str, size_bytes: int, lanes: Lanes
    ) -> None:
        super().__init__(bucket, key, lanes)
        self._source = source
        self._size_bytes = size_bytes
        self._sent_all = False

    def finish(self) -> None:
        """Copy the parts and complete the upload; may be called again after CommitStateUnknown.

        :raises ArtifactMissing: if the source doesn't exist.
        :raises ArtifactDamaged: if it has another size.
        """
        if not self._sent_all:
            self._check_source()
            upload_id = self._begin()
            for number, start in enumerate(range(0, self._size_bytes, COPIED_PART_BYTES), 1):
                stop = min(start + COPIED_PART_BYTES, self._size_bytes)
                # The store holds the bytes: they take no memory here.
                self._send(0, partial(self._copy_part, upload_id, number, start, stop))
            self._sent_all = True
        super().finish()

    def _check_source(self) -> None:
        uri = self._bucket.uri_of(self._source)
        answer = self._bucket.head(self._source)
        if answer is None:
            raise ArtifactMissing(uri)
        size = self._bucket.required(answer, "ContentLength", uri)
        if size != self._size_bytes:
            # The store would refuse a range beyond the end, which looks like a store that is away.
            raise ArtifactDamaged(uri, f"it has {size} bytes, its entry has {self._size_bytes}")

    def _copy_part(self, upload_id: str, number: int, start: int, stop: int) -> Part:
        location = self._bucket.location
        answer = self._bucket.ask(
            "upload_part_copy",
            self._key,
            again=RETRY_IDEMPOTENT,
            attempts=PART_ATTEMPTS,
            ended=self._ended,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": location.bucket, "Key": location.prefix + self._source},
            CopySourceRange=f"bytes={start}-{stop - 1}",
        )
        reach("s3.copy.part")
        copied = self._bucket.required(answer, "CopyPartResult", self._uri)
        named = ("ETag", "ChecksumSHA256")
        return {"PartNumber": number, **{name: copied[name] for name in named if name in copied}}


# Tests whether a store honours conditional writes, by trying each of them.
#
# A store that doesn't know If-Match and If-None-Match ignores them and overwrites, so only a
# request that has to be refused is a test.

log = Log(__name__)

NAME = ".laredo-probe-"
_OWN = re.compile(re.escape(NAME) + "[0-9a-f]{16}")
"""Name of a probe's object; no other object is removed."""
_AGAIN = RETRY_CONDITIONAL | {Cause.CONNECT}
_AGAIN_AFRESH = PASSING - _AGAIN
"""Causes after which a conditional write may have been done or not: the probe starts over."""
_LEFT_BEHIND = timedelta(hours=1)


def run(bucket: Bucket) -> None:
    """Run the test, and remove its objects.

    :raises ConditionalWritesMissing: if the store ignores a condition.
    :raises DestinationUnavailable: if that can't be tested now.
    """
    try:
        lacking = bucket.repeatedly("probe", _AGAIN_AFRESH, partial(_lacking, bucket))
    except FailedRequest as refused:
        raise refused.error() from refused
    if lacking is not None:
        raise ConditionalWritesMissing(bucket.location.uri, lacking).at(bucket.location.identity)


def _lacking(bucket: Bucket) -> str | None:
    """The first condition that isn't honoured, tested with an object of a new name."""
    key = f"{NAME}{secrets.token_hex(8)}"
    try:
        return next(_Probe(bucket, key).lacking(), None)
    finally:
        _remove(bucket, key)


class _Probe:
    """One object that is written again and again, each time under another condition."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._upload_id: str | None = None

    def lacking(self) -> Iterator[str]:
        """The conditions that aren't honoured."""
        first, second = "", ""
        try:
            first = self._put(b"first", IfNoneMatch="*")
            second = self._put(b"second", IfMatch=first)
        except FailedRequest as refused:
            if refused.kind not in (Cause.NOT_IMPLEMENTED, Cause.PRECONDITION):
                raise
            yield f"it refuses a request that it should accept: {refused}"
            return
        if self._is_taken(lambda: self._put(b"third", IfNoneMatch="*")):
            yield "If-None-Match on PutObject"
        if self._is_taken(lambda: self._put(b"third", IfMatch=first)):
            yield "If-Match on PutObject"
        if self._is_taken(self._complete):
            yield "If-None-Match on CompleteMultipartUpload"
        self._bucket.ask("delete_object", self._key)
        if self._is_taken(lambda: self._put(b"third", IfMatch=second)):
            yield "If-Match on PutObject, of an object that isn't there"

    def _put(self, data: bytes, **condition: Any) -> str:
        bucket = self._bucket
        answer = bucket.ask(
            "put_object",
            self._key,
            again=_AGAIN,
            Body=data,
            ChecksumSHA256=sha256_of(data),
            **kept_as(bucket.location, manifest=True),
            **condition,
        )
        return bucket.version(self._key, answer).etag

    def _complete(self) -> None:
        data, ask = b"third", self._bucket.ask
        kept = kept_as(self._bucket.location)
        begun = ask("create_multipart_upload", self._key, ChecksumAlgorithm="SHA256", **kept)
        upload_id, digest = begun["UploadId"], sha256_of(data)
        try:
            part: dict[str, Any] = {"PartNumber": 1, "ChecksumSHA256": digest}
            sent = ask("upload_part", self._key, UploadId=upload_id, Body=data, **part)
            parts = [part | {"ETag": sent["ETag"]}]
            ask(
                "complete_multipart_upload",
                self._key,
                again=_AGAIN,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
        except FailedRequest:
            ask("abort_multipart_upload", self._key, UploadId=upload_id)
            raise

    def _is_taken(self, write: Callable[[], object]) -> bool:
        """True if the store accepts a write that it has to refuse."""
        try:
            write()
        except FailedRequest as refused:
            if refused.kind in (Cause.PRECONDITION, Cause.NO_SUCH_KEY):
                return False
            if refused.kind is Cause.NOT_IMPLEMENTED:
                return True
            raise
        return True


def _remove(bucket: Bucket, key: str) -> None:
    """Remove the objects of this probe, and those of processes that were killed while probing."""
    try:
        bucket.ask("delete_object", key)
        page = bucket.ask_all("list_objects_v2", NAME)
        limit = bucket.date(page) - _LEFT_BEHIND
        for found in page.get("Contents", ()):
            name = found["Key"].removeprefix(bucket.location.prefix)
            if found["LastModified"] < limit and _OWN.fullmatch(name):
                bucket.ask("delete_object", name)
        _abort_uploads(bucket, key)
    except (FailedRequest, DestinationUnavailable) as failure:
        # A writer that may not delete can still commit.
        log.warning("probe object not removed", uri=bucket.uri_of(key), failure=str(failure))


def _abort_uploads(bucket: Bucket, key: str) -> None:
    """Abort probes' uploads; they are outside of every table's prefix, so nothing else does."""
    page = bucket.ask_all("list_multipart_uploads", NAME)
    limit = bucket.date(page) - _LEFT_BEHIND
    for upload in page.get("Uploads", ()):
        found = upload["Key"].removeprefix(bucket.location.prefix)
        if found == key or (upload["Initiated"] < limit and _OWN.fullmatch(found)):
            try:
                bucket.ask("abort_multipart_upload", found, UploadId=upload["UploadId"])
            except FailedRequest as refused:
                if refused.kind is not Cause.NO_SUCH_UPLOAD:
                    raise


HIDDEN = "."
"""Prefix of probes' names, which listings leave out."""

# Amazon S3 API reference: parameters of the next page, by the fields of a page that give them.
_MARKS = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_multipart_uploads": {
        "KeyMarker": "NextKeyMarker",
        "UploadIdMarker": "NextUploadIdMarker",
    },
}


class S3Destination:
    """A prefix of a bucket; see :class:`laredo_archive.storage.destination.Destination`.

    Making one sends no request. ``pause`` waits between tries.

    :raises AwsError: if there can be no client for ``location``.
    """

    def __init__(
        self, location: S3Location, clients: AwsClients, pause: Pause = Event.wait
    ) -> None:
        self._bucket = Bucket(location, clients, pause)
        self._lanes = Lanes()
        self.uri = location.uri
        """``s3://bucket/prefix/``."""
        self.location = location.identity
        """The URI, and the endpoint if it isn't AWS's."""

    @property
    def retries(self) -> dict[str, int]:
        """Number of requests that were sent again, by method of the client."""
        return dict(self._bucket.retries)

    def __repr__(self) -> str:
        return f"S3Destination({self.location!r})"

    def probe(self) -> None:
        """Check, by writing and removing small objects, that the store has conditional writes.

        :raises ConditionalWritesMissing: if it can't compare and swap.
        :raises DestinationUnavailable: if that can't be tested now.
        """
        run(self._bucket)

    def uri_of(self, key: str) -> str:
        """``s3://bucket/prefix/key``; nothing in it is quoted."""
        return self._bucket.uri_of(key)

    def get(self, key: str) -> StoredObject | None:
        """The object and its ETag."""
        try:
            return read_whole(self._bucket, key)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_KEY:
                return None
            raise refused.error() from refused

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of the object."""
        answer = self._bucket.head(key)
        if answer is None:
            return None
        uri = self.uri_of(key)
        size = self._bucket.required(answer, "ContentLength", uri)
        return ObjectInfo(key, size, self._bucket.modified(answer, uri))

    def open(self, key: str, offset: int = 0) -> BinaryIO:
        """The object from ``offset`` on, all of one version."""
        return open_object(self._bucket, key, offset)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """The objects below ``prefix``, without hidden ones and a console's folders."""
        for page in self._pages("list_objects_v2", prefix):
            for found in page.get("Contents", ()):
                key = self._listed(found)
                if is_plain(key) and not key.rpartition("/")[2].startswith(HIDDEN):
                    uri = self.uri_of(key)
                    size = self._bucket.required(found, "Size", uri)
                    yield ObjectInfo(key, size, self._bucket.modified(found, uri))

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
        """Begin a copy that the store makes; None if the object isn't larger than a part."""
        if size_bytes <= uploads.PART_BYTES:
            return None  # a GET and a PUT are fewer requests, and our sha256 goes with them
        return S3Copy(self._bucket, source, key, size_bytes, self._lanes)

    def delete(self, key: str) -> None:
        """Delete the object."""
        try:
            # An unanswered request may still take effect later, when the name is used again.
            # Another request's answer would hide that, so none is sent.
            self._bucket.ask("delete_object", key, again=(Cause.CONNECT, Cause.THROTTLED))
        except FailedRequest as refused:
            if refused.kind is not Cause.NO_SUCH_KEY:
                raise refused.error(changing=True) from refused

    def collect_unfinished(
        self, prefix: str, older_than: timedelta, is_ours: Callable[[str], bool]
    ) -> int:
        """Abort multipart uploads that are older, by the store's Date."""
        dropped = 0
        for page in self._pages("list_multipart_uploads", prefix):
            # A Date has whole seconds, the time of an upload's start may have fractions.
            limit = self._bucket.date(page) + timedelta(seconds=1) - older_than
            for upload in page.get("Uploads", ()):
                key, required = self._listed(upload), self._bucket.required
                begun = required(upload, "Initiated", self.uri)
                if begun <= limit and is_plain(key) and is_ours(key):
                    dropped += self._abort(key, required(upload, "UploadId", self.uri))
        return dropped

    def _listed(self, found: Answer) -> str:
        """The key of an object, or of an upload, in a listing."""
        key: str = self._bucket.required(found, "Key", self.uri)
        return key.removeprefix(self._bucket.location.prefix)

    def _abort(self, key: str, upload_id: str) -> bool:
        try:
            self._bucket.ask("abort_multipart_upload", key, UploadId=upload_id)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_UPLOAD:
                return False
            raise refused.error() from refused
        return True

    def _pages(self, method: str, prefix: str) -> Iterator[Answer]:
        """Each page of a listing."""
        marks: dict[str, str] = {}
        while True:
            try:
                page = self._bucket.ask_all(method, prefix, **marks)
            except FailedRequest as refused:
                raise refused.error() from refused
            yield page
            if not page.get("IsTruncated"):
                return
            before, marks = (
                marks,
                {after: page[next_] for after, next_ in _MARKS[method].items() if page.get(next_)},
            )
            if not marks or marks == before:
                names = "repeats the" if marks else "names no"
                raise DestinationUnavailable(
                    self.uri,
                    f"its listing is truncated, but {names} position to continue from; check the"
                    " store, and any proxy in front of it",
                ).at(self.location)
