"""What S3 answers when it refuses, and what that has to be taken for."""

from dataclasses import dataclass

from laredo_archive.aws.kinds import Cause
from tests.archive.aws.answering import REQUEST_ID, Answer


@dataclass(frozen=True)
class Case:
    operation: str
    answer: Answer
    kind: Cause
    says: tuple[str, ...]


DENIED_USER = "User: arn:aws:iam::123456789012:user/laredo is not authorized to perform: "


def s3(code: str, message: str, more: str = "") -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message>{more}"
        f"<RequestId>{REQUEST_ID}</RequestId><HostId>hostid=</HostId></Error>"
    )


CASES = [
    # S3, with a body.
    Case(
        "PutObject",
        Answer(
            403,
            s3(
                "AccessDenied",
                DENIED_USER + "s3:PutObject on resource: &quot;arn:aws:s3:::archive-of-users/users/"
                "manifest.json&quot; because no identity-based policy allows the s3:PutObject"
                " action",
            ),
        ),
        Cause.DENIED,
        ("AccessDenied: User: arn:aws:iam", "allow s3:PutObject on it", "bucket's too", "HTTP 403"),
    ),
    Case(
        "PutObject",
        Answer(403, s3("AccessDenied", DENIED_USER + "s3:PutObjectTagging on resource: x")),
        Cause.DENIED,
        ("allow s3:PutObjectTagging on it",),
    ),
    Case(
        "DeleteObject",
        Answer(
            403,
            s3(
                "AccessDenied",
                DENIED_USER + "s3:DeleteObject on resource: x with an explicit deny in a service"
                " control policy",
            ),
        ),
        Cause.DENIED,
        ("a policy denies s3:DeleteObject expressly",),
    ),
    Case(
        "GetObject",
        Answer(403, s3("AccessDenied", "Access Denied")),
        Cause.DENIED,
        ("without s3:ListBucket an object that isn't there",),
    ),
    Case(
        "PutObject",
        Answer(
            403,
            s3(
                "AccessDenied",
                DENIED_USER + "kms:GenerateDataKey on resource:"
                " arn:aws:kms:us-east-1:123456789012:key/k because no resource-based policy allows"
                " the kms:GenerateDataKey action",
            ),
        ),
        Cause.KMS,
        ("kms:GenerateDataKey and kms:Decrypt", "kms_key_id"),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3("KMS.DisabledException", "arn:aws:kms:us-east-1:123456789012:key/k is disabled."),
        ),
        Cause.KMS,
        ("be enabled", "is disabled (HTTP 400"),
    ),
    Case(
        "PutObject",
        Answer(400, s3("KMS.NotFoundException", "Invalid keyId 'k'")),
        Cause.KMS,
        ("has to exist in that region",),
    ),
    Case(
        "PutObject",
        Answer(404, s3("NoSuchBucket", "The specified bucket does not exist")),
        Cause.NO_SUCH_BUCKET,
        ("create the bucket or correct its name",),
    ),
    Case(
        "GetObject",
        Answer(404, s3("NoSuchKey", "The specified key does not exist.")),
        Cause.NO_SUCH_KEY,
        ("lifecycle rule",),
    ),
    Case(
        "UploadPart",
        Answer(404, s3("NoSuchUpload", "The specified upload does not exist.")),
        Cause.NO_SUCH_UPLOAD,
        ("finished or aborted",),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "ExpiredToken",
                "The provided token has expired.",
                "<Token-0>FwoG</Token-0>",
            ),
        ),
        Cause.EXPIRED,
        ("the session of writer is over", "its base"),
    ),
    Case(
        "PutObject",
        Answer(
            403,
            s3(
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
                "<RequestTime>20191102T153031Z</RequestTime><ServerTime>2019-11-02T15:56:35Z"
                "</ServerTime><MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>",
            ),
        ),
        Cause.CLOCK_SKEW,
        (
            "the service's clock says 2019-11-02T15:56:35Z",
            "this machine's shows 2019-11-02T15:30:31Z",
        ),
    ),
    Case(
        "PutObject",
        Answer(
            301,
            s3(
                "PermanentRedirect",
                "The bucket you are attempting to access must be addressed using the specified"
                " endpoint. Please send all future requests to this endpoint.",
                "<Endpoint>archive-of-users.s3.eu-west-1.amazonaws.com</Endpoint>"
                "<Bucket>archive-of-users</Bucket>",
            ),
            {"x-amz-bucket-region": "eu-west-1"},
        ),
        Cause.WRONG_REGION,
        ('it is in eu-west-1: set region = "eu-west-1"',),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "AuthorizationHeaderMalformed",
                "The authorization header is malformed; the region 'us-east-1' is wrong; expecting"
                " 'eu-central-1'",
                "<Region>eu-central-1</Region>",
            ),
        ),
        Cause.WRONG_REGION,
        ('set region = "eu-central-1"',),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "AuthorizationHeaderMalformed",
                "The authorization header is malformed; the region 'us-east-1' is wrong; expecting"
                " 'eu-central-1'",
            ),
        ),
        Cause.WRONG_REGION,
        ('set region = "eu-central-1"',),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "AuthorizationHeaderMalformed",
                "The authorization header is malformed; a non-empty Access Key (AKID) must be"
                " provided in the credential.",
            ),
        ),
        Cause.NO_CREDENTIALS,
        ("give credentials.writer, or its base, keys that are valid",),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "IllegalLocationConstraintException",
                "The me-south-1 location constraint is incompatible for the region specific"
                " endpoint this request was sent to.",
            ),
        ),
        Cause.WRONG_REGION,
        ("it is in another region",),
    ),
    Case(
        "PutObject",
        Answer(
            403,
            s3(
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
            ),
        ),
        Cause.NO_CREDENTIALS,
        ("it was deleted",),
    ),
    Case(
        "PutObject",
        Answer(
            403,
            s3(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided.",
            ),
        ),
        Cause.NO_CREDENTIALS,
        ("secret key doesn't fit",),
    ),
    Case(
        "PutObject",
        Answer(400, s3("InvalidToken", "The provided token is malformed or otherwise invalid.")),
        Cause.NO_CREDENTIALS,
        ("has to be opted into",),
    ),
    Case(
        "PutObject",
        Answer(
            412,
            s3(
                "PreconditionFailed",
                "At least one of the pre-conditions you specified did not hold",
                "<Condition>If-None-Match</Condition>",
            ),
        ),
        Cause.PRECONDITION,
        ("someone else changed or made the object",),
    ),
    Case(
        "PutObject",
        Answer(
            409,
            s3(
                "ConditionalRequestConflict",
                "The conditional request cannot succeed due to a conflicting operation against"
                " this resource.",
            ),
        ),
        Cause.CONFLICT,
        ("it is tried again",),
    ),
    Case(
        "PutObject",
        Answer(
            409,
            s3(
                "OperationAborted",
                "A conflicting conditional operation is currently in progress against this"
                " resource. Please try again.",
            ),
        ),
        Cause.CONFLICT,
        ("it is tried again",),
    ),
    Case(
        "PutObject",
        Answer(
            501,
            s3(
                "NotImplemented",
                "A header you provided implies functionality that is not implemented",
                "<Header>If-None-Match</Header>",
            ),
        ),
        Cause.NOT_IMPLEMENTED,
        ("use one that does",),
    ),
    Case(
        "PutObject",
        Answer(503, s3("SlowDown", "Please reduce your request rate.")),
        Cause.THROTTLED,
        ("more slowly",),
    ),
    Case(
        "PutObject",
        Answer(500, s3("InternalError", "We encountered an internal error. Please try again.")),
        Cause.SERVER,
        ("may have been done",),
    ),
    Case(
        "CompleteMultipartUpload",
        Answer(200, s3("InternalError", "We encountered an internal error. Please try again.")),
        Cause.SERVER,
        ("s3:PutObject", "may have been done"),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "RequestTimeout",
                "Your socket connection to the server was not read from or written to within the"
                " timeout period. Idle connections will be closed.",
            ),
        ),
        Cause.SERVER,
        ("it is tried again",),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3(
                "BadDigest",
                "The SHA256 you specified did not match the calculated checksum.",
            ),
        ),
        Cause.CHECKSUM,
        ("changed on the way",),
    ),
    Case(
        "UploadPart",
        Answer(
            400,
            s3(
                "XAmzContentChecksumMismatch",
                "The value specified in the x-amz-checksum-sha256 header does not match",
            ),
        ),
        Cause.CHECKSUM,
        ("changed on the way",),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size"),
        ),
        Cause.TOO_LARGE,
        ("raise the limit",),
    ),
    Case(
        "GetObject",
        Answer(
            403,
            s3(
                "InvalidObjectState",
                "The operation is not valid for the object's storage class",
                "<StorageClass>GLACIER</StorageClass>",
            ),
        ),
        Cause.DENIED,
        ("archive storage class",),
    ),
    Case(
        "PutObject",
        Answer(400, s3("InvalidStorageClass", "The storage class you specified is not valid")),
        Cause.OTHER,
        ("storage_class isn't one of this store's",),
    ),
    # S3's HEAD: no body, so no code.
    Case("HeadObject", Answer(404), Cause.NO_SUCH_KEY, ("s3:GetObject on",)),
    Case(
        "HeadBucket",
        Answer(404),
        Cause.NO_SUCH_BUCKET,
        ("s3:ListBucket on", "create the bucket"),
    ),
    Case("HeadObject", Answer(403), Cause.DENIED, ("allow s3:GetObject on it",)),
    Case("HeadObject", Answer(412), Cause.PRECONDITION, ("it is read again",)),
    Case("HeadObject", Answer(503), Cause.SERVER, ("HTTP 503",)),
    Case(
        "HeadObject",
        Answer(400, headers={"x-amz-bucket-region": "eu-west-1"}),
        Cause.WRONG_REGION,
        ('set region = "eu-west-1"',),
    ),
    Case(
        "HeadBucket",
        Answer(301, headers={"x-amz-bucket-region": "eu-west-1"}),
        Cause.WRONG_REGION,
        ('set region = "eu-west-1"',),
    ),
    Case("HeadObject", Answer(400), Cause.OTHER, ("s3:GetObject on", "session token isn't known")),
    # A store that resembles S3, with codes of its own.
    Case("PutObject", Answer(429, s3("Busy", "later")), Cause.THROTTLED, ("Busy: later",)),
    Case("PutObject", Answer(507, s3("StorageFull", "no room")), Cause.SERVER, ("no room",)),
    Case("PutObject", Answer(413, "<html>too big</html>"), Cause.TOO_LARGE, ("HTTP 413",)),
    Case("PutObject", Answer(502, "<html>Bad Gateway</html>"), Cause.SERVER, ("HTTP 502",)),
]
