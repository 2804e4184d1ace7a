"""Writes an object: by one PUT when it is small, else in parts, sent by a few threads.

A part is held in memory until the store has it. All uploads to one destination
together hold PARALLEL_PARTS parts that are being sent, and each one that is being
filled. The sha256 of each part is sent with it and checked by the store, and listed
again when the upload is completed.

"Uploading and copying objects using multipart upload", Amazon S3 User Guide.
"""

import io
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from laredo_archive.aws.explain import Cause
from laredo_archive.errors import DestinationError, DestinationUnavailable, NameTaken
from laredo_archive.failpoint import reach
from laredo_archive.storage.s3.requests import (
    IF_ABSENT,
    PARALLEL_PARTS,
    PART_ATTEMPTS,
    RETRY_CONDITIONAL,
    RETRY_IDEMPOTENT,
    Bucket,
    FailedRequest,
    kept_as,
    sha256_of,
)
from laredo_service.log import Log

log = Log(__name__)

PART_BYTES = 8 << 20
_PARTS_OF_ONE_SIZE = 1000

Part = dict[str, int | str]
"""As CompleteMultipartUpload lists it."""


def part_bytes(number: int) -> int:
    """Size of part ``number`` (from 1): doubled every 1,000 parts.

    So an object of up to 8 GB is sent in parts of 8 MB, and one of 5 TB in fewer than the
    allowed 10,000 parts of at most 5 GB ("Amazon S3 multipart upload limits").
    """
    return PART_BYTES << (number - 1) // _PARTS_OF_ONE_SIZE


class Lanes:
    """The threads that send one destination's parts, and the limit of bytes being sent."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(PARALLEL_PARTS, thread_name_prefix="s3-part")
        self._room = PARALLEL_PARTS * PART_BYTES
        self._taken = 0
        self._changed = threading.Condition()

    def send(self, size: int, work: Callable[[], Part]) -> "Future[Part]":
        """Do ``work`` in a thread, once there is room for ``size`` more bytes.

        A part that is larger than the limit is sent alone.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._room)
            self._taken += size
        try:
            sending = self._threads.submit(work)
        except BaseException:
            self._leave(size)
            raise
        sending.add_done_callback(lambda _: self._leave(size))
        return sending

    def _leave(self, size: int) -> None:
        with self._changed:
            self._taken -= size
            self._changed.notify_all()


class S3Upload:
    """An upload of one object; see :class:`laredo_archive.storage.destination.Upload`."""

    def __init__(self, bucket: Bucket, key: str, lanes: Lanes) -> None:
        self._bucket = bucket
        self._key = key
        self._uri = bucket.uri_of(key)
        self._lanes = lanes
        self._filling = io.BytesIO()
        self._upload_id: str | None = None
        self._number = 1
        self._on_their_way: deque[Future[Part]] = deque()
        self._parts: list[Part] = []
        self._lost: DestinationError | None = None
        self._ended = threading.Event()

    def write(self, data: bytes | memoryview) -> int:
        """Append; waits while the limit of bytes is being sent."""
        rest = memoryview(data)
        while rest:
            room = part_bytes(self._number) - self._filling.tell()
            if room:
                self._filling.write(rest[:room])
                rest = rest[room:]
            else:
                self._send_part()
        return len(data)

    def finish(self) -> None:
        """PUT it, or complete its parts; may be called again after CommitStateUnknown."""
        self._refuse_lost()
        if self._upload_id is not None:
            if self._filling.tell():
                self._send_part()
            self._settle_parts(every=True)
        reach("s3.upload.completing")
        try:
            self._put() if self._upload_id is None else self._complete(self._upload_id)
        except FailedRequest as refused:
            raise self._outcome(refused) from refused
        self._end()
        reach("s3.upload.done")

    def abort(self) -> None:
        """Have the store drop the parts that it has."""
        if self._ended.is_set():
            return
        self._end()
        for sending in self._on_their_way:
            sending.cancel()
        # A part that arrives after the abort would be stored, and billed.
        wait(self._on_their_way)
        if self._upload_id is not None:
            self._drop_parts(self._upload_id)

    def _end(self) -> None:
        self._ended.set()
        self._filling = io.BytesIO()

    def _send_part(self) -> None:
        self._settle_parts(every=False)
        upload_id = self._upload_id or self._begin()
        body, number = self._filling, self._number
        self._send(body.tell(), partial(self._upload_part, upload_id, number, body))
        self._filling, self._number = io.BytesIO(), number + 1

    def _send(self, size: int, work: Callable[[], Part]) -> None:
        """Have a thread do ``work``, which holds ``size`` bytes of memory."""
        self._on_their_way.append(self._lanes.send(size, work))

    def _begin(self) -> str:
        try:
            answer = self._bucket.ask(
                "create_multipart_upload",
                self._key,
                again=RETRY_IDEMPOTENT,
                attempts=PART_ATTEMPTS,
                ChecksumAlgorithm="SHA256",
                **kept_as(self._bucket.location),
            )
            upload_id = str(self._bucket.required(answer, "UploadId", self._uri))
        except FailedRequest as refused:
            raise self._lose(refused) from refused
        except DestinationError as failure:
            self._lost = failure
            raise
        self._upload_id = upload_id
        return upload_id

    def _upload_part(self, upload_id: str, number: int, body: io.BytesIO) -> Part:
        digest = _sha256(body)
        answer = self._bucket.ask(
            "upload_part",
            self._key,
            again=RETRY_IDEMPOTENT,
            attempts=PART_ATTEMPTS,
            ended=self._ended,
            UploadId=upload_id,
            PartNumber=number,
            Body=body,
            ChecksumSHA256=digest,
        )
        reach("s3.upload.part")
        etag = self._bucket.required(answer, "ETag", self._uri)
        return {"PartNumber": number, "ETag": etag, "ChecksumSHA256": digest}

    def _settle_parts(self, *, every: bool) -> None:
        """Take the results of parts that were sent; ``every``: wait for all of them."""
        self._refuse_lost()
        waiting = self._on_their_way
        while waiting and (every or waiting[0].done()):
            try:
                self._parts.append(waiting.popleft().result())
            except FailedRequest as refused:
                raise self._lose(refused) from refused
            except DestinationError as failure:
                self._lost = failure
                raise

    def _lose(self, refused: FailedRequest) -> DestinationError:
        self._lost = refused.error()
        return self._lost

    def _refuse_lost(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise DestinationUnavailable(self._uri, "this upload has ended before")

    def _put(self) -> None:
        self._bucket.ask(
            "put_object",
            self._key,
            again=RETRY_CONDITIONAL,
            Body=self._filling,
            ChecksumSHA256=_sha256(self._filling),
            **kept_as(self._bucket.location),
            **IF_ABSENT,
        )

    def _complete(self, upload_id: str) -> None:
        self._bucket.ask(
            "complete_multipart_upload",
            self._key,
            again=RETRY_CONDITIONAL,
            UploadId=upload_id,
            MultipartUpload={"Parts": self._parts},
            **IF_ABSENT,
        )

    def _outcome(self, refused: FailedRequest) -> DestinationError:
        if refused.kind is Cause.PRECONDITION:
            return NameTaken(self._uri)
        if refused.kind is Cause.NO_SUCH_UPLOAD and self._bucket.head(self._key) is not None:
            # Completed by an earlier request whose answer was lost, or another writer's object.
            return NameTaken(self._uri)
        return refused.error(changing=True)

    def _drop_parts(self, upload_id: str) -> None:
        try:
            # Not retried while the store is unavailable: a claim, the collector, or the bucket's
            # lifecycle rule drops the parts.
            self._bucket.ask(
                "abort_multipart_upload",
                self._key,
                again=(Cause.THROTTLED, Cause.SERVER),
                UploadId=upload_id,
            )
        except FailedRequest as refused:
            if refused.kind is not Cause.NO_SUCH_UPLOAD:
                log.warning("upload not aborted", uri=self._uri, failure=str(refused))


def _sha256(body: io.BytesIO) -> str:
    with body.getbuffer() as data:
        return sha256_of(data)
