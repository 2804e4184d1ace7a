"""The kinds of failed calls: the services' error codes, sorted by what has to be done about them.

Amazon S3 API reference, "Error responses"; the "Errors" of SNS Publish, SQS SendMessage,
Kinesis PutRecord and STS AssumeRole in their API references; and each service's "Common
errors". A store that only resembles S3 has codes of its own: then the HTTP status decides.
"""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a call failed. What each asks for is in advice.py."""

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
    """None were found, or none that the service knows."""
    ROLE = "role"
    """The profile's role was refused; what was to be called surely wasn't."""
    PRECONDITION = "precondition"
    """412: the object isn't what If-Match or If-None-Match requires."""
    CONFLICT = "conflict"
    """409: another conditional request was under way; nothing was done, try again."""
    NOT_IMPLEMENTED = "not_implemented"
    GONE = "gone"
    """No such topic, queue or stream."""
    TOO_LARGE = "too_large"
    SERVER = "server"
    """A failure of the service's own: it may have done what was asked, or not."""
    CONNECT = "connect"
    """The request surely never reached the service."""
    LOST = "lost"
    """The request was sent, or a part of it, and no answer came that could be read."""
    CHECKSUM = "checksum"
    """What arrived isn't what was sent."""
    OTHER = "other"


PASSING = frozenset({Cause.THROTTLED, Cause.SERVER, Cause.CONNECT, Cause.LOST})
"""What may be otherwise a moment later."""

_CODES: dict[Cause, str] = {
    Cause.THROTTLED: """
        SlowDown Throttling ThrottlingException Throttled ThrottledException RequestThrottled
        RequestThrottledException RequestLimitExceeded BandwidthLimitExceeded TooManyRequests
        TooManyRequestsException ProvisionedThroughputExceededException LimitExceededException
        KMSThrottling KMSThrottlingException KmsThrottled KMS.ThrottlingException OverLimit
        AWS.SimpleQueueService.OverLimit PriorRequestNotComplete ReducePriority
    """,
    Cause.DENIED: """
        AccessDenied AccessDeniedException AuthorizationError AuthorizationErrorException
        AllAccessDisabled AccountProblem NotAuthorized UnauthorizedOperation Unauthorized
        UnauthorizedAccess InvalidSecurity InvalidPayer NotSignedUp OptInRequired
        CrossLocationLoggingProhibited InvalidAccessPoint
    """,
    Cause.EXPIRED: "ExpiredToken ExpiredTokenException TokenRefreshRequired ExpiredSession",
    Cause.CLOCK_SKEW: "RequestTimeTooSkewed RequestExpired RequestInTheFuture",
    Cause.NO_SUCH_BUCKET: "NoSuchBucket",
    Cause.NO_SUCH_KEY: "NoSuchKey NoSuchVersion",
    Cause.NO_SUCH_UPLOAD: "NoSuchUpload",
    Cause.WRONG_REGION: """
        PermanentRedirect TemporaryRedirect Redirect AuthorizationHeaderMalformed
        IllegalLocationConstraintException InvalidRegionException
    """,
    Cause.KMS: """
        KMS.DisabledException KMS.NotFoundException KMS.KMSInvalidStateException
        KMS.InvalidStateException KMS.InvalidKeyUsageException KMS.AccessDeniedException
        KMS.InvalidArnException KMS.UnsupportedOperationException KMSAccessDenied
        KMSAccessDeniedException KMSDisabled KMSDisabledException KMSInvalidState
        KMSInvalidStateException KMSNotFound KMSNotFoundException KMSOptInRequired
        KmsAccessDenied KmsDisabled KmsInvalidKeyUsage KmsInvalidState KmsNotFound
        KmsOptInRequired
    """,
    Cause.NO_CREDENTIALS: """
        InvalidAccessKeyId InvalidClientTokenId UnrecognizedClientException InvalidToken
        SignatureDoesNotMatch InvalidSignatureException MissingAuthenticationToken
        MissingAuthenticationTokenException IncompleteSignature IncompleteSignatureException
        MissingSecurityHeader AuthFailure
    """,
    Cause.PRECONDITION: "PreconditionFailed",
    Cause.CONFLICT: "ConditionalRequestConflict OperationAborted ConcurrentModification",
    Cause.NOT_IMPLEMENTED: "NotImplemented UnsupportedOperation AWS.SimpleQueueService.Unsupported",
    Cause.GONE: """
        NotFound NotFoundException ResourceNotFound ResourceNotFoundException QueueDoesNotExist
        QueueDeletedRecently AWS.SimpleQueueService.NonExistentQueue
        AWS.SimpleQueueService.QueueDeletedRecently EndpointDisabled
    """,
    Cause.TOO_LARGE: """
        EntityTooLarge MaxMessageLengthExceeded BatchRequestTooLong RequestEntityTooLargeException
        AWS.SimpleQueueService.BatchRequestTooLong MessageTooLong RequestHeaderSectionTooLarge
        MetadataTooLarge
    """,
    Cause.SERVER: """
        InternalError InternalErrorException InternalFailure InternalFailureException
        InternalServerError InternalServerException ServiceUnavailable
        ServiceUnavailableException ServiceFailure ServiceFailureException RequestTimeout
        RequestTimeoutException IncompleteBody RequestAbortedException
    """,
    Cause.CHECKSUM: """
        BadDigest InvalidDigest XAmzContentChecksumMismatch XAmzContentSHA256Mismatch
    """,
}

KIND_OF_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}

_KIND_OF_STATUS = {
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

# Messages that are more specific than their code.
_SENTENCES = {
    "Signature expired": Cause.CLOCK_SKEW,
    "Signature not yet current": Cause.CLOCK_SKEW,
    "Credential should be scoped to a valid": Cause.WRONG_REGION,
    "Message too long": Cause.TOO_LARGE,
    "Message must be shorter than": Cause.TOO_LARGE,
    "must have length less than or equal to": Cause.TOO_LARGE,
    "not authorized to perform: kms:": Cause.KMS,
}


def kind_of(
    service: str, operation: str, *, code: str, status: int, words: str, region: str | None
) -> Cause:
    """What a refusal is: by its ``words``, its ``code``, or else by its ``status``.

    ``region`` is the right one, if the answer named it.
    """
    for sentence, kind in _SENTENCES.items():
        if sentence in words:
            return kind
    if code == "AuthorizationHeaderMalformed" and region is None:
        # It names the region when that is what is wrong; else an access key is.
        return Cause.NO_CREDENTIALS
    found = KIND_OF_CODE.get(code) or _by_status(status, region)
    return _missing_in_s3(operation) if service == "s3" and found is Cause.GONE else found


def _by_status(status: int, region: str | None) -> Cause:
    if status == 400 and region is not None:
        # The answer to a HEAD has no body, and so no code: only the header has it.
        return Cause.WRONG_REGION
    return _KIND_OF_STATUS.get(status, Cause.SERVER if status >= 500 else Cause.OTHER)


_OF_THE_BUCKET = {"HeadBucket", "ListObjectsV2", "ListMultipartUploads", "GetBucketLocation"}


def _missing_in_s3(operation: str) -> Cause:
    return Cause.NO_SUCH_BUCKET if operation in _OF_THE_BUCKET else Cause.NO_SUCH_KEY


@dataclass(frozen=True)
class Explained:
    """A failed call, classified and explained."""

    #: Why it failed.
    kind: Cause
    #: One line that says what to do.
    message: str
    #: The HTTP status; None without an answer.
    status: int | None
    #: The service's error code, if it gave one.
    code: str | None
    #: Whether the request, or a part of it, may have reached the service.
    sent: bool
