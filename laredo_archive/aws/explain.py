"""Explains a failed call to AWS: its cause, and one line that names the cure.

``_TABLE`` has a row for each group of error codes (Amazon S3 API reference, "Error responses";
the "Errors" of SNS Publish, SQS SendMessage, Kinesis PutRecord and STS AssumeRole; "Common
errors") and of botocore's exceptions. A store that only resembles S3 has codes of its own: then
the HTTP status decides. More advice about each cause is in docs/operations/aws-errors.md.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

PAGE = "docs/operations/aws-errors.md"


class Cause(StrEnum):
    """The cause of a failed call."""

    THROTTLED = "throttled"
    DENIED = "denied"
    EXPIRED = "expired"
    CLOCK_SKEW = "clock_skew"
    NO_SUCH_BUCKET = "no_such_bucket"
    NO_SUCH_KEY = "no_such_key"
    NO_SUCH_UPLOAD = "no_such_upload"
    WRONG_REGION = "wrong_region"
    KMS = "kms"
    NO_CREDENTIALS = "no_credentials"
    """No credentials were found, or none that the service knows."""
    ROLE = "role"
    """The profile's role was refused, so nothing else was sent."""
    PRECONDITION = "precondition"
    """412: the object isn't what If-Match or If-None-Match requires."""
    CONFLICT = "conflict"
    """409: another conditional request was under way, and nothing was done."""
    NOT_IMPLEMENTED = "not_implemented"
    GONE = "gone"
    """No such topic, queue or stream."""
    TOO_LARGE = "too_large"
    SERVER = "server"
    """The service failed: it may have carried out the request, or not."""
    CONNECT = "connect"
    """The request never reached the service."""
    LOST = "lost"
    """The request, or a part of it, was sent, and no readable answer came."""
    CHECKSUM = "checksum"
    """The bytes that arrived aren't those that were sent."""
    OTHER = "other"


PASSING = frozenset({Cause.THROTTLED, Cause.SERVER, Cause.CONNECT, Cause.LOST})
"""Causes that usually pass by themselves."""

_NEVER_SENT = frozenset({Cause.CONNECT, Cause.NO_CREDENTIALS, Cause.OTHER})
"""Causes, of exceptions that aren't answers, that keep a request from leaving this machine."""


class _Row(NamedTuple):
    cause: Cause
    names: str
    """Error codes, without "Exception" at the end, and botocore's exceptions."""
    advice: str
    words: tuple[str, ...] = ()
    """Parts of a service's message that decide before its code."""


# The first row of a cause also serves HTTP statuses and other answers without a known code.
_TABLE = (
    _Row(
        Cause.KMS,
        "",  # codes that begin with KMS
        "let the key exist in that region and be enabled, and let this profile use"
        " kms:GenerateDataKey and kms:Decrypt, in the key's policy too; see kms_key_id",
        ("not authorized to perform: kms:",),
    ),
    _Row(
        Cause.DENIED,
        "AccessDenied AuthorizationError AccountProblem NotAuthorized UnauthorizedOperation"
        " Unauthorized UnauthorizedAccess InvalidSecurity InvalidPayer NotSignedUp OptInRequired"
        " CrossLocationLoggingProhibited InvalidAccessPoint",
        "allow {action} on it, in this profile's policy and, across accounts, in the {owner}'s",
    ),
    _Row(
        Cause.DENIED,
        "AllAccessDisabled",
        "change the policy that denies {action}: an explicit deny overrides every permission",
        ("explicit deny",),
    ),
    _Row(
        Cause.DENIED,
        "InvalidObjectState",
        "restore the object from its archive storage class; let no lifecycle rule move it there",
    ),
    _Row(
        Cause.CLOCK_SKEW,
        "RequestTimeTooSkewed RequestExpired RequestInTheFuture",
        "set this machine's clock right (NTP): it shows {ours}, and the service's {theirs}",
        ("Signature expired", "Signature not yet current"),
    ),
    _Row(
        Cause.WRONG_REGION,
        "PermanentRedirect TemporaryRedirect Redirect AuthorizationHeaderMalformed"
        " IllegalLocationConstraint InvalidRegion",
        "set region{region}: it is in another region",
        ("Credential should be scoped to a valid",),
    ),
    _Row(
        Cause.TOO_LARGE,
        "EntityTooLarge MaxMessageLengthExceeded BatchRequestTooLong RequestEntityTooLarge"
        " MessageTooLong RequestHeaderSectionTooLarge MetadataTooLarge",
        "raise the limit of that bucket, topic, queue or stream",
        ("Message too long", "Message must be shorter than", "must have length less than or"),
    ),
    _Row(
        Cause.THROTTLED,
        "SlowDown Throttling Throttled RequestThrottled RequestLimitExceeded TooManyRequests"
        " BandwidthLimitExceeded ProvisionedThroughputExceeded LimitExceeded OverLimit"
        " PriorRequestNotComplete ReducePriority KMSThrottling KMS.Throttling KmsThrottled",
        "wait; it is tried again, more slowly; if this lasts, lengthen diff.interval or raise"
        " the quota",
    ),
    _Row(
        Cause.EXPIRED,
        "ExpiredToken TokenRefreshRequired ExpiredSession",
        "wait; the session is over, and the next try takes a new one; if this lasts, replace the"
        " keys of profile {who} or of its base",
    ),
    _Row(Cause.NO_SUCH_BUCKET, "NoSuchBucket", "create the bucket or correct its name"),
    _Row(Cause.NO_SUCH_KEY, "NoSuchKey NoSuchVersion", "find out what deleted the object"),
    _Row(
        Cause.NO_SUCH_UPLOAD,
        "NoSuchUpload",
        "wait; the writer checks whether the object exists, and uploads it again if not",
    ),
    _Row(
        Cause.NO_CREDENTIALS,
        "InvalidAccessKeyId InvalidClientTokenId UnrecognizedClient InvalidToken InvalidSignature"
        " SignatureDoesNotMatch MissingAuthenticationToken IncompleteSignature"
        " MissingSecurityHeader AuthFailure",
        "give profile {who}, or its base, an access key, secret and token that are known in that"
        " region",
    ),
    _Row(
        Cause.NO_CREDENTIALS,
        "CredentialRetrievalError InvalidConfigError",
        "mount the token file, correct credential_process, or unset what names it"
        " (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_..., the profile in ~/.aws)",
    ),
    _Row(
        Cause.NO_CREDENTIALS,
        "NoCredentialsError PartialCredentialsError MetadataRetrievalError TokenRetrievalError"
        " NoAuthTokenError SSOError UnknownCredentialError InfiniteLoopConfigError ProfileNotFound"
        " ConfigNotFound",
        "give this program credentials: a role of its container or instance, AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    _Row(
        Cause.ROLE,
        "",
        "let the role trust that caller (ARN and external_id in its trust policy), and allow the"
        " caller sts:AssumeRole on it",
    ),
    _Row(
        Cause.PRECONDITION,
        "PreconditionFailed",
        "wait; another writer changed or made the object, and it is read again",
    ),
    _Row(
        Cause.CONFLICT,
        "ConditionalRequestConflict OperationAborted ConcurrentModification",
        "wait; another request for this object was under way, and this one is tried again",
    ),
    _Row(
        Cause.NOT_IMPLEMENTED,
        "NotImplemented UnsupportedOperation Unsupported",
        "use a service that supports this, or remove the setting that asks for it",
    ),
    _Row(
        Cause.GONE,
        "NotFound ResourceNotFound QueueDoesNotExist NonExistentQueue QueueDeletedRecently"
        " EndpointDisabled",
        "create it or correct {named_by}: that region and account have none of this name",
    ),
    _Row(
        Cause.SERVER,
        "InternalError InternalFailure InternalServerError InternalServer ServiceUnavailable"
        " ServiceFailure RequestTimeout IncompleteBody RequestAborted",
        "wait; the request may have been carried out, which is checked, and it is tried again; a"
        " notice may come twice",
    ),
    _Row(
        Cause.CHECKSUM,
        "BadDigest InvalidDigest XAmzContentChecksumMismatch XAmzContentSHA256Mismatch"
        " FlexibleChecksumError",
        "wait; the bytes are sent again; if this lasts, check proxies and this machine's memory",
    ),
    _Row(
        Cause.CONNECT,
        "EndpointConnectionError ConnectTimeoutError ProxyConnectionError",
        "check region and endpoint, DNS, the way out of this network, and the certificates;"
        " nothing was sent, and it is tried again",
    ),
    _Row(
        Cause.LOST,
        "",
        "wait; no answer came; the request may have been carried out, which is checked, and is"
        " tried again; a notice may come twice",
    ),
    _Row(
        Cause.OTHER,
        "ValidationError ParamValidationError",
        "read about this error in the service's documentation",
    ),
    _Row(Cause.OTHER, "InvalidStorageClass", "set storage_class to one that this store has"),
    _Row(
        Cause.OTHER,
        "400",  # the answer to a HEAD has no body, and so no code
        "give the profile a region: a HEAD is refused without a reason, and mostly because the"
        " session token isn't known in the region that was asked",
    ),
)
_BY_NAME = {name: row for row in _TABLE for name in row.names.split()}
_BY_CAUSE = {row.cause: row for row in reversed(_TABLE)}
_BY_STATUS = {
    301: Cause.WRONG_REGION,
    307: Cause.WRONG_REGION,
    401: Cause.DENIED,
    403: Cause.DENIED,
    404: Cause.GONE,
    409: Cause.CONFLICT,
    412: Cause.PRECONDITION,
    413: Cause.TOO_LARGE,
    429: Cause.THROTTLED,
    501: Cause.NOT_IMPLEMENTED,
}

# Service Authorization Reference, "Actions, resources, and condition keys for Amazon S3".
_S3_ACTIONS = {
    "CompleteMultipartUpload": "PutObject",
    "CopyObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "DeleteObjects": "DeleteObject",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "ListParts": "ListMultipartUploadParts",
    "UploadPart": "PutObject",
    "UploadPartCopy": "PutObject",
}
_TLS_NEVER_SENT = (
    "CERTIFICATE_VERIFY_FAILED",
    "HANDSHAKE_FAILURE",
    "UNKNOWN_CA",
    "WRONG_VERSION_NUMBER",
    "hostname",
)
_ABOUT_A_BUCKET = {"HeadBucket", "ListObjectsV2", "ListMultipartUploads", "GetBucketLocation"}
_NAMED_BY = {"sns": "topic_arn", "sqs": "queue_url", "kinesis": "stream"}
_ACTION = re.compile(r"not authorized to perform: ([a-z0-9-]+:\w+)")
_EXPECTED_REGION = re.compile(r"expecting '([a-z0-9-]+)'")


@dataclass(frozen=True)
class Explained:
    """A failed call, classified and explained."""

    kind: Cause
    message: str
    """One line, with the cure."""
    status: int | None
    """The HTTP status; None without an answer."""
    code: str | None
    """The service's error code, if it gave one."""
    sent: bool
    """True if the request, or a part of it, may have reached the service."""


@dataclass(frozen=True)
class _Facts:
    row: _Row
    words: str
    """The service's own words, or those of a failure on the way to it."""
    sent: bool
    status: int | None = None
    code: str | None = None
    request_id: str | None = None
    region: str | None = None
    theirs: str = "another time"
    """The time by the service's clock."""


def failures() -> tuple[type[Exception], ...]:
    """The exceptions of a client's call: ``except failures() as failure``. Imports botocore.

    If an answer breaks off, some versions of botocore let urllib3's exception through.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (ClientError, BotoCoreError, ResponseParserError, HTTPError)


def iam_action(service: str, operation: str) -> str:
    """The action that a policy has to allow: ``s3:ListBucket`` for S3's ListObjectsV2."""
    return f"{service}:{_S3_ACTIONS.get(operation, operation) if service == 's3' else operation}"


def shown(time: datetime) -> str:
    """A time as AWS writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def explain(
    failure: Exception, *, service: str, operation: str, credentials: str | None, resource: str
) -> Explained:
    """Classify ``failure``, one of failures(), and explain it.

    ``operation`` is the API's (PutObject), ``credentials`` the profile's name, ``resource``
    the object of the call: an s3:// URI, an ARN, a queue's URL.
    """
    action, who = iam_action(service, operation), credentials or "ambient"
    begin = f"{action} on {resource} as profile {who}: "
    role = getattr(failure, "explained", None)
    if isinstance(role, Explained):  # a RoleRefused, which has its own advice
        kind = Cause.CONNECT if role.kind in PASSING else Cause.ROLE
        message = f"{begin}its role wasn't assumed: {role.message}"
        return Explained(kind, message, None, None, sent=False)
    facts = _facts(failure, service, operation)
    kind = facts.row.cause
    advice = _BY_CAUSE[Cause.ROLE].advice if _is_role(facts, action) else facts.row.advice
    named = _ACTION.search(facts.words)
    cure = advice.format(
        action=named.group(1) if named else action,
        owner="bucket" if service == "s3" else f"{service} resource",
        named_by=_NAMED_BY.get(service, "its name"),
        who=who,
        theirs=facts.theirs,
        ours=shown(datetime.now(UTC)),
        region=f' = "{facts.region}"' if facts.region else " to that of the bucket or resource",
    )
    message = f"{begin}{_cause(facts)}. What to do: {cure} ({PAGE}#{kind})"
    return Explained(kind, message, facts.status, facts.code, facts.sent)


def _is_role(facts: _Facts, action: str) -> bool:
    return action == "sts:AssumeRole" and facts.row is _BY_CAUSE[Cause.DENIED]


def _cause(facts: _Facts) -> str:
    cause = " ".join(facts.words.split()).rstrip(".")
    if facts.code is not None and facts.code != str(facts.status):
        cause = f"{facts.code}: {cause}"
    if facts.status is not None:
        request = f", request {facts.request_id}" if facts.request_id else ""
        cause += f" (HTTP {facts.status}{request})"
    return cause


def _facts(failure: Exception, service: str, operation: str) -> _Facts:
    from botocore.exceptions import ClientError

    if not isinstance(failure, ClientError):
        return _of_way(failure)
    asked = failure.operation_name
    if not asked.startswith("AssumeRole") or asked == operation:
        return _of_answer(failure, service, operation)
    # botocore itself assumes a role: that of a web identity, or of a file's role_arn.
    answer = _of_answer(failure, "sts", asked)
    kind = Cause.CONNECT if answer.row.cause in PASSING else Cause.ROLE
    words = f"sts:{asked} was refused: {answer.words}"
    return replace(answer, row=_BY_CAUSE[kind], words=words, sent=False)


def _of_answer(failure: Any, service: str, operation: str) -> _Facts:
    """A refusal in the service's own words."""
    error = failure.response.get("Error", {})
    metadata = failure.response.get("ResponseMetadata", {})
    headers = {name.lower(): value for name, value in metadata.get("HTTPHeaders", {}).items()}
    status = int(metadata.get("HTTPStatusCode", 0))
    code = str(error.get("Code") or status)
    words = str(error.get("Message") or "no reason given")
    expected = _EXPECTED_REGION.search(words)
    region = (
        error.get("Region")
        or headers.get("x-amz-bucket-region")
        or (expected.group(1) if expected else None)
    )
    rows = (row for row in _TABLE if any(part in words for part in row.words))
    row = next(rows, None) or _by_code(code, status, region)
    if service == "s3" and row.cause is Cause.GONE:
        about_bucket = operation in _ABOUT_A_BUCKET
        row = _BY_CAUSE[Cause.NO_SUCH_BUCKET if about_bucket else Cause.NO_SUCH_KEY]
    # botocore leaves the request's id out if a body isn't of the expected form.
    request_id = metadata.get("RequestId") or headers.get("x-amz-request-id")
    return _Facts(
        row,
        words,
        True,
        status,
        code,
        request_id or headers.get("x-amzn-requestid"),
        region,
        error.get("ServerTime") or headers.get("date") or "another time",
    )


def _by_code(code: str, status: int, region: str | None) -> _Row:
    name = code.removeprefix("AWS.SimpleQueueService.").removesuffix("Exception")
    if name == "AuthorizationHeaderMalformed" and region is None:
        # The message names the region if that is wrong; otherwise the access key is wrong.
        return _BY_CAUSE[Cause.NO_CREDENTIALS]
    if name in _BY_NAME and code != "400":
        return _BY_NAME[name]
    if name.upper().startswith("KMS"):
        return _BY_CAUSE[Cause.KMS]
    if status == 400 and region is not None:
        return _BY_CAUSE[Cause.WRONG_REGION]
    if code == "400":
        return _BY_NAME[code]
    return _BY_CAUSE[_BY_STATUS.get(status, Cause.SERVER if status >= 500 else Cause.OTHER)]


def _of_way(failure: Exception) -> _Facts:
    """A failure on the way to the service, without an answer."""
    words = str(failure)
    names = [kind.__name__ for kind in type(failure).__mro__]
    row = next((_BY_NAME[name] for name in names if name in _BY_NAME), _BY_CAUSE[Cause.LOST])
    if "SSLError" in names and any(part in words for part in _TLS_NEVER_SENT):
        row = _BY_CAUSE[Cause.CONNECT]
    return _Facts(row, words, sent=row.cause not in _NEVER_SENT)
