"""A copy within a bucket that the store makes by itself, of any size, and that replaces nothing.

CopyObject takes 5 GB at most, and not every store that has conditional writes has them for
CopyObject too. An upload in parts is put together with If-None-Match, as all our uploads are; its
parts may be ranges of an object that is there ("Copying an object using multipart upload",
Amazon S3 User Guide).
"""

from functools import partial

from laredo_archive.aws.explain import Cause
from laredo_archive.errors import ArtifactMissing
from laredo_archive.failpoint import reach
from laredo_archive.storage.s3.requests import RETRY_IDEMPOTENT, Bucket, FailedRequest
from laredo_archive.storage.s3.upload import Lanes, Part, S3Upload

COPIED_PART_BYTES = 512 << 20
"""One request's; 5 TB, the largest object, are fewer than the 10,000 parts that there may be."""


class S3Copy(S3Upload):
    """An object of the bucket on its way to another name."""

    def __init__(
        self, bucket: Bucket, source: str, key: str, size_bytes: int, lanes: Lanes
    ) -> None:
        super().__init__(bucket, key, lanes)
        self._source = source
        self._size_bytes = size_bytes
        self._sent_all = False

    def finish(self) -> None:
        """Have the parts copied and put together; may be called again after CommitStateUnknown.

        :raises ArtifactMissing: if what is to be copied isn't there.
        """
        if not self._sent_all:
            self._refuse_missing()
            upload_id = self._begin()
            for number, start in enumerate(range(0, self._size_bytes, COPIED_PART_BYTES), 1):
                stop = min(start + COPIED_PART_BYTES, self._size_bytes)
                # The store holds the bytes: they take no memory here.
                self._send(0, partial(self._copy_part, upload_id, number, start, stop))
            self._sent_all = True
        super().finish()

    def _refuse_missing(self) -> None:
        try:
            self._bucket.ask("head_object", self._source)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_KEY:
                raise ArtifactMissing(self._bucket.uri_of(self._source)) from refused
            raise refused.error() from refused

    def _copy_part(self, upload_id: str, number: int, start: int, stop: int) -> Part:
        location = self._bucket.location
        answer = self._bucket.ask(
            "upload_part_copy",
            self._key,
            again=RETRY_IDEMPOTENT,
            ended=self._ended,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": location.bucket, "Key": location.prefix + self._source},
            CopySourceRange=f"bytes={start}-{stop - 1}",
        )
        reach("s3.copy.part")
        copied = answer["CopyPartResult"]
        named = ("ETag", "ChecksumSHA256")
        return {"PartNumber": number, **{name: copied[name] for name in named if name in copied}}
