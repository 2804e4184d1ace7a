"""Sends requests to one bucket, with retries, and translates failures into a commit's errors.

The client doesn't repeat anything by itself; this module decides what is repeated, request by
request. A read is repeated, and so is an upload that is invisible until it is completed. A change
is repeated only if the store's answer shows that it didn't happen.
"""

import base64
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from threading import Event
from typing import Any, TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
)

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import PASSING, Cause, Explained, explain, failures
from laredo_archive.errors import (
    BadKey,
    CommitStateUnknown,
    DestinationDenied,
    DestinationError,
    DestinationUnavailable,
)
from laredo_archive.storage.destination import ObjectVersion, is_plain
from laredo_archive.storage.s3.bucket import S3Location
from laredo_model.errors import ModelError
from laredo_service import files
from laredo_service.log import Log
from laredo_service.retry import Backoff, Outage

log = Log(__name__)

ATTEMPTS = 6
"""Tries of one request that may be repeated."""
PART_ATTEMPTS = 30
"""Tries of a part of an upload, enough for PATIENCE_S: hours may have gone into the upload."""
RETRY = Backoff(initial=0.2, maximum=5.0)
PATIENCE_S = 120.0
"""Time after which such a request isn't repeated any more."""
PARALLEL_PARTS = 4
_CONNECTIONS = 256
"""Most connections kept open. All tables that write to a bucket share them; a new connection for
each commit would cost a handshake."""

RETRY_IDEMPOTENT = PASSING | {Cause.CHECKSUM}
"""Causes for repeating a request without visible effect: a part, the beginning of an upload."""
RETRY_CONDITIONAL = frozenset({Cause.CONFLICT, Cause.CHECKSUM})
"""Causes for repeating a change. "Conditional requests", Amazon S3 User Guide: 409 is retried."""

_SET_UP_WRONG = frozenset(
    {
        Cause.DENIED,
        Cause.EXPIRED,
        Cause.CLOCK_SKEW,
        Cause.NO_SUCH_BUCKET,
        Cause.WRONG_REGION,
        Cause.KMS,
        Cause.NO_CREDENTIALS,
        Cause.ROLE,
        Cause.NOT_IMPLEMENTED,
    }
)

_NEEDED_FOR = {
    "Date": "which retention needs, as it never goes by this machine's clock",
    "ETag": "which tells one version from the next",
    "LastModified": "which shows the object's age",
    "ContentLength": "without which a cut-off answer looks whole",
    "Key": "which names an object that it lists",
    "Size": "without which a cut-off object looks whole",
    "Initiated": "which shows the upload's age",
    "UploadId": "which names the upload",
    "CopyPartResult": "which names the part",
}

Answer = Mapping[str, Any]
Parameters = dict[str, Any]
IF_ABSENT: Parameters = {"IfNoneMatch": "*"}
"""With this parameter an object is created, and none is ever replaced."""
T = TypeVar("T")
Pause = Callable[[Event, float], object]
"""Wait for a number of seconds, or until the event."""


class FailedRequest(Exception):
    """A request that failed. Only this package sees it; :meth:`error` is raised outside."""

    def __init__(self, uri: str, location: str, explained: Explained) -> None:
        super().__init__(explained.message)
        self.kind = explained.kind
        self.status = explained.status
        self._uri = uri
        self._location = location
        self._explained = explained

    def error(self, *, changing: bool = False) -> DestinationError:
        """The destination's error; ``changing``: the request changes what others see."""
        return self._meant(changing)(self._uri, self._explained.message).at(self._location)

    def _meant(self, changing: bool) -> type[DestinationError]:
        if changing and self._may_be_done():
            return CommitStateUnknown
        return DestinationDenied if self.kind in _SET_UP_WRONG else DestinationUnavailable

    def _may_be_done(self) -> bool:
        status = self._explained.status
        answered_no = status is not None and status < 500 and self.kind is not Cause.CONFLICT
        return self._explained.sent and not answered_no and self.kind is not Cause.NOT_IMPLEMENTED


class Bucket:
    """One prefix of one bucket: sends requests, names things, counts repetitions."""

    def __init__(self, location: S3Location, clients: AwsClients, pause: Pause) -> None:
        self.location = location
        self.retries: Counter[str] = Counter()
        """Requests sent again, by method of the client."""
        self._outages: dict[str, Outage] = defaultdict(Outage)
        """By cause, as requests of many tables fail by turns."""
        self._pause = pause
        self._client = clients.client(
            "s3",
            credentials=location.credentials,
            region=location.region,
            endpoint=location.endpoint,
            addressing=location.addressing,
            connections=_CONNECTIONS,
        )

    def uri_of(self, key: str) -> str:
        """URI of the object ``key``.

        :raises BadKey: if ``key`` leads out of the prefix.
        """
        if not is_plain(key):
            raise BadKey(self.location.uri, key)
        return f"{self.location.uri}{key}"

    def ask(
        self,
        method: str,
        key: str,
        *,
        again: Collection[Cause] = PASSING,
        ended: Event | None = None,
        attempts: int = ATTEMPTS,
        **more: Any,
    ) -> Answer:
        """Send a request about one object; retry the failures in ``again``.

        ``ended``: set when its result isn't needed any more.

        :raises FailedRequest: if it keeps failing, or fails otherwise.
        :raises BadKey: if ``key`` leads out of the prefix.
        """
        uri, more["Key"] = self.uri_of(key), self.location.prefix + key
        once = partial(self._once, method, uri, more)
        return self.repeatedly(method, again, once, ended, attempts)

    def head(self, key: str) -> Answer | None:
        """The answer to a HEAD of an object; None if there is no such object.

        :raises DestinationError: if the request keeps failing, or fails otherwise.
        """
        try:
            return self.ask("head_object", key)
        except FailedRequest as refused:
            if refused.kind is Cause.NO_SUCH_KEY:
                return None
            raise refused.error() from refused

    def ask_all(self, method: str, prefix: str, **more: str) -> Answer:
        """One page of a listing of ``prefix``.

        :raises FailedRequest: if it keeps failing, or fails otherwise.
        :raises DestinationUnavailable: if the answer lacks an object's key.
        """
        uri, more["Prefix"] = f"{self.location.uri}{prefix}", self.location.prefix + prefix
        try:
            return self.repeatedly(method, PASSING, partial(self._once, method, uri, more))
        except KeyError as missing:  # botocore decodes each object's
            raise self._lacking("Key", uri) from missing

    def repeatedly(
        self,
        method: str,
        again: Collection[Cause],
        work: Callable[[], T],
        ended: Event | None = None,
        attempts: int = ATTEMPTS,
    ) -> T:
        """Do ``work``; retry the failures in ``again``, with growing waits.

        :raises FailedRequest: if it keeps failing, or fails otherwise.
        """
        ended = ended or Event()
        retrying = Retrying(
            stop=stop_any(
                stop_after_attempt(attempts),
                stop_after_delay(PATIENCE_S),
                stop_when_event_set(ended),
            ),
            wait=RETRY,
            retry=retry_if_exception(
                lambda failure: isinstance(failure, FailedRequest) and failure.kind in again
            ),
            before_sleep=partial(self._note, method),
            sleep=partial(self._wait, ended),
            reraise=True,
        )
        return retrying(work)

    def refused(self, failure: Exception, operation: str, uri: str) -> FailedRequest:
        """Typed error for a failure of the client; ``operation`` is the API's name."""
        explained = explain(
            failure,
            service="s3",
            operation=operation,
            credentials=self.location.credentials,
            resource=uri,
        )
        return FailedRequest(uri, self.location.identity, explained)

    def _once(self, method: str, uri: str, more: Parameters) -> Answer:
        body = more.get("Body")
        if isinstance(body, io.IOBase):
            body.seek(0)
        operation = self._client.meta.method_to_api_mapping[method]
        if self.location.requester_pays:
            asked = self._client.meta.service_model.operation_model(operation).input_shape
            if asked is not None and "RequestPayer" in asked.members:
                more = {**more, "RequestPayer": "requester"}
        try:
            answer: Answer = getattr(self._client, method)(Bucket=self.location.bucket, **more)
        except failures() as failure:
            raise self.refused(failure, operation, uri) from failure
        return answer

    def _wait(self, ended: Event, seconds: float) -> None:
        self._pause(ended, seconds)

    def _note(self, method: str, state: RetryCallState) -> None:
        self.retries[method] += 1
        failure = state.outcome.exception() if state.outcome else None
        kind = failure.kind.name if isinstance(failure, FailedRequest) else ""
        level = log.warning if self._outages[kind].is_news(kind) else log.debug
        level(
            "S3 request retried",
            request=method,
            uri=self.location.uri,
            attempt=state.attempt_number,
            failure=str(failure),
        )

    def version(self, key: str, answer: Answer) -> ObjectVersion:
        """The version that ``answer`` shows, and its Date.

        :raises DestinationUnavailable: if the answer lacks one of them.
        """
        return ObjectVersion(self.required(answer, "ETag", self.uri_of(key)), self.date(answer))

    def date(self, answer: Answer) -> datetime:
        """The store's time, from the header Date of ``answer``.

        :raises DestinationUnavailable: if the answer has no such header.
        """
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        try:
            return files.parse_http(headers.get("date", ""))
        except ModelError:
            raise self._lacking("Date", self.location.uri) from None

    def modified(self, answer: Answer, uri: str) -> datetime:
        """Time when the object was last changed, by the store's clock.

        :raises DestinationUnavailable: if the answer has no such time, or none that UTC has.
        """
        try:
            return files.in_utc(self.required(answer, "LastModified", uri))
        except ModelError:
            raise self._lacking("LastModified", uri) from None

    def required(self, answer: Answer, name: str, uri: str) -> Any:
        """A required field of ``answer``.

        :raises DestinationUnavailable: if it is missing.
        """
        value = answer.get(name)
        if value is None:
            raise self._lacking(name, uri)
        return value

    def _lacking(self, name: str, uri: str) -> DestinationUnavailable:
        why = _NEEDED_FOR[name]
        return DestinationUnavailable(
            uri,
            f"the store's answer has no {name}, {why}; check whether a proxy in front of it drops"
            " that",
        ).at(self.location.identity)


def kept_as(location: S3Location, *, manifest: bool = False) -> Parameters:
    """Parameters for an object's encryption, storage class and tags.

    A manifest has the usual storage class: the cheaper ones bill each version for weeks.
    """
    wanted = {
        "ServerSideEncryption": location.server_side_encryption,
        "SSEKMSKeyId": location.kms_key_id,
        "StorageClass": None if manifest else location.storage_class,
        "Tagging": location.tagging,
    }
    return {name: value for name, value in wanted.items() if value}


def sha256_of(data: bytes | memoryview) -> str:
    """As S3 takes a checksum: base64."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
