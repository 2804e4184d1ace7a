"""Tests whether a store honours conditional writes, by trying each of them.

A store that doesn't know If-Match and If-None-Match ignores them and overwrites,
so only a request that has to be refused is a test.
"""

import re
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import structlog

from laredo_archive.aws.explain import Cause
from laredo_archive.errors import ConditionalWritesMissing, DestinationUnavailable
from laredo_archive.storage.s3.requests import (
    RETRY_CONDITIONAL,
    Bucket,
    FailedRequest,
    kept_as,
    sha256_of,
)

log = structlog.get_logger(__name__)

NAME = ".laredo-probe-"
_OWN = re.compile(re.escape(NAME) + "[0-9a-f]{16}")
"""Names of probes' objects: no other object is removed."""
_AGAIN = RETRY_CONDITIONAL | {Cause.CONNECT}
_LEFT_BEHIND = timedelta(hours=1)


def run(bucket: Bucket) -> None:
    """Run the test, and remove its objects.

    :raises ConditionalWritesMissing: if it can't.
    :raises DestinationUnavailable: if it can't be found out now.
    """
    key = f"{NAME}{secrets.token_hex(8)}"
    try:
        lacking = next(_Probe(bucket, key).lacking(), None)
    except FailedRequest as refused:
        raise refused.error() from refused
    finally:
        _remove(bucket, key)
    if lacking is not None:
        raise ConditionalWritesMissing(bucket.location.uri, lacking).at(bucket.location.identity)


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
    """They lie outside of every table's prefix, so that no claim and no collector sees them."""
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
