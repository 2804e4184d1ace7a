"""Refusals told apart: the services' own answers, as they come over the wire."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from laredo_archive.aws import kinds
from laredo_archive.aws.clients import Clients
from laredo_archive.aws.explain import Explained, explain, failures
from laredo_archive.aws.kinds import Kind
from laredo_archive.aws.profile import Profile
from tests.archive.aws.answering import REQUEST_ID, Answer, Answering, answering

BUCKET = {"Bucket": "archive-of-users"}
OBJECT = {**BUCKET, "Key": "users/manifest.json"}
WRITER = Profile("writer", "ambient")

# What is asked, by operation: the client's method and its arguments.
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PutObject": ("s3", "put_object", {**OBJECT, "Body": b"{}"}),
    "GetObject": ("s3", "get_object", OBJECT),
    "HeadObject": ("s3", "head_object", OBJECT),
    "HeadBucket": ("s3", "head_bucket", BUCKET),
    "ListObjectsV2": ("s3", "list_objects_v2", BUCKET),
    "DeleteObject": ("s3", "delete_object", OBJECT),
    "UploadPart": (
        "s3",
        "upload_part",
        {**OBJECT, "PartNumber": 1, "UploadId": "upload", "Body": b"part"},
    ),
    "CompleteMultipartUpload": (
        "s3",
        "complete_multipart_upload",
        {
            **OBJECT,
            "UploadId": "upload",
            "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": "e"}]},
        },
    ),
    "Publish": (
        "sns",
        "publish",
        {"TopicArn": "arn:aws:sns:us-east-1:123456789012:users", "Message": "{}"},
    ),
    "SendMessage": (
        "sqs",
        "send_message",
        {"QueueUrl": "https://sqs.us-east-1.amazonaws.com/123456789012/u", "MessageBody": "{}"},
    ),
    "PutRecord": (
        "kinesis",
        "put_record",
        {"StreamName": "users", "Data": b"{}", "PartitionKey": "public.users"},
    ),
    "GetCallerIdentity": ("sts", "get_caller_identity", {}),
}


def s3(code: str, message: str, more: str = "") -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{message}</Message>{more}"
        f"<RequestId>{REQUEST_ID}</RequestId><HostId>hostid=</HostId></Error>"
    )


def query(
    code: str, message: str, namespace: str = "http://sns.amazonaws.com/doc/2010-03-31/"
) -> str:
    return (
        f'<ErrorResponse xmlns="{namespace}"><Error><Type>Sender</Type><Code>{code}</Code>'
        f"<Message>{message}</Message></Error>"
        f"<RequestId>{REQUEST_ID}</RequestId></ErrorResponse>"
    )


def json(kind: str, message: str, word: str = "message") -> str:
    return f'{{"__type":"{kind}","{word}":"{message}"}}'


def sqs_headers(legacy: str) -> dict[str, str]:
    return {
        "x-amzn-query-error": f"{legacy};Sender",
        "x-amzn-RequestId": REQUEST_ID,
        "Content-Type": "application/x-amz-json-1.0",
    }


KINESIS = {"x-amzn-RequestId": REQUEST_ID, "Content-Type": "application/x-amz-json-1.1"}


@dataclass(frozen=True)
class Case:
    operation: str
    answer: Answer
    kind: Kind
    says: tuple[str, ...]


DENIED_USER = "User: arn:aws:iam::123456789012:user/laredo is not authorized to perform: "

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
        Kind.DENIED,
        ("AccessDenied: User: arn:aws:iam", "allow s3:PutObject on it", "bucket's too", "HTTP 403"),
    ),
    Case(
        "PutObject",
        Answer(403, s3("AccessDenied", DENIED_USER + "s3:PutObjectTagging on resource: x")),
        Kind.DENIED,
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
        Kind.DENIED,
        ("a policy denies s3:DeleteObject expressly",),
    ),
    Case(
        "GetObject",
        Answer(403, s3("AccessDenied", "Access Denied")),
        Kind.DENIED,
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
        Kind.KMS,
        ("kms:GenerateDataKey and kms:Decrypt", "kms_key_id"),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3("KMS.DisabledException", "arn:aws:kms:us-east-1:123456789012:key/k is disabled."),
        ),
        Kind.KMS,
        ("be enabled", "is disabled (HTTP 400"),
    ),
    Case(
        "PutObject",
        Answer(400, s3("KMS.NotFoundException", "Invalid keyId 'k'")),
        Kind.KMS,
        ("has to exist in that region",),
    ),
    Case(
        "PutObject",
        Answer(404, s3("NoSuchBucket", "The specified bucket does not exist")),
        Kind.NO_SUCH_BUCKET,
        ("create the bucket or correct its name",),
    ),
    Case(
        "GetObject",
        Answer(404, s3("NoSuchKey", "The specified key does not exist.")),
        Kind.NO_SUCH_KEY,
        ("lifecycle rule",),
    ),
    Case(
        "UploadPart",
        Answer(404, s3("NoSuchUpload", "The specified upload does not exist.")),
        Kind.NO_SUCH_UPLOAD,
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
        Kind.EXPIRED,
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
        Kind.CLOCK_SKEW,
        (
            "the service's clock says 2019-11-02T15:56:35Z",
            "this machine's said 2019-11-02T15:30:31Z",
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
        Kind.WRONG_REGION,
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
        Kind.WRONG_REGION,
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
        Kind.WRONG_REGION,
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
        Kind.NO_CREDENTIALS,
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
        Kind.WRONG_REGION,
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
        Kind.NO_CREDENTIALS,
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
        Kind.NO_CREDENTIALS,
        ("secret key doesn't fit",),
    ),
    Case(
        "PutObject",
        Answer(400, s3("InvalidToken", "The provided token is malformed or otherwise invalid.")),
        Kind.NO_CREDENTIALS,
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
        Kind.PRECONDITION,
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
        Kind.CONFLICT,
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
        Kind.CONFLICT,
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
        Kind.NOT_IMPLEMENTED,
        ("use one that does",),
    ),
    Case(
        "PutObject",
        Answer(503, s3("SlowDown", "Please reduce your request rate.")),
        Kind.THROTTLED,
        ("more slowly",),
    ),
    Case(
        "PutObject",
        Answer(500, s3("InternalError", "We encountered an internal error. Please try again.")),
        Kind.SERVER,
        ("may have been done",),
    ),
    Case(
        "CompleteMultipartUpload",
        Answer(200, s3("InternalError", "We encountered an internal error. Please try again.")),
        Kind.SERVER,
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
        Kind.SERVER,
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
        Kind.CHECKSUM,
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
        Kind.CHECKSUM,
        ("changed on the way",),
    ),
    Case(
        "PutObject",
        Answer(
            400,
            s3("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size"),
        ),
        Kind.TOO_LARGE,
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
        Kind.DENIED,
        ("archive storage class",),
    ),
    Case(
        "PutObject",
        Answer(400, s3("InvalidStorageClass", "The storage class you specified is not valid")),
        Kind.OTHER,
        ("storage_class isn't one of this store's",),
    ),
    # S3's HEAD: no body, so no code.
    Case("HeadObject", Answer(404), Kind.NO_SUCH_KEY, ("s3:GetObject on",)),
    Case("HeadBucket", Answer(404), Kind.NO_SUCH_BUCKET, ("s3:ListBucket on", "create the bucket")),
    Case("HeadObject", Answer(403), Kind.DENIED, ("allow s3:GetObject on it",)),
    Case("HeadObject", Answer(412), Kind.PRECONDITION, ("it is read again",)),
    Case("HeadObject", Answer(503), Kind.SERVER, ("HTTP 503",)),
    Case(
        "HeadObject",
        Answer(400, headers={"x-amz-bucket-region": "eu-west-1"}),
        Kind.WRONG_REGION,
        ('set region = "eu-west-1"',),
    ),
    Case(
        "HeadBucket",
        Answer(301, headers={"x-amz-bucket-region": "eu-west-1"}),
        Kind.WRONG_REGION,
        ('set region = "eu-west-1"',),
    ),
    Case("HeadObject", Answer(400), Kind.OTHER, ("s3:GetObject on",)),
    # A store that resembles S3, with codes of its own.
    Case("PutObject", Answer(429, s3("Busy", "later")), Kind.THROTTLED, ("Busy: later",)),
    Case("PutObject", Answer(507, s3("StorageFull", "no room")), Kind.SERVER, ("no room",)),
    Case("PutObject", Answer(413, "<html>too big</html>"), Kind.TOO_LARGE, ("HTTP 413",)),
    Case("PutObject", Answer(502, "<html>Bad Gateway</html>"), Kind.SERVER, ("HTTP 502",)),
    # SNS.
    Case(
        "Publish",
        Answer(404, query("NotFound", "Topic does not exist")),
        Kind.GONE,
        ("sns:Publish on", "no such topic", "topic_arn"),
    ),
    Case(
        "Publish",
        Answer(403, query("AuthorizationError", DENIED_USER + "SNS:Publish on resource: x")),
        Kind.DENIED,
        ("allow sns:Publish on it", "sns resource's too"),
    ),
    Case(
        "Publish",
        Answer(400, query("InvalidParameter", "Invalid parameter: Message too long")),
        Kind.TOO_LARGE,
        ("raise the limit",),
    ),
    Case("Publish", Answer(400, query("Throttling", "Rate exceeded")), Kind.THROTTLED, ("quota",)),
    Case("Publish", Answer(400, query("KMSDisabled", "key k is disabled")), Kind.KMS, ("enabled",)),
    Case(
        "Publish",
        Answer(
            403,
            query(
                "SignatureDoesNotMatch",
                "Signature expired: 20230822T072529Z is now earlier than 20230822T193257Z"
                " (20230822T194757Z - 15 min.)",
            ),
        ),
        Kind.CLOCK_SKEW,
        ("clock says 2023-08-22T19:47:57Z", "said 2023-08-22T07:25:29Z"),
    ),
    Case(
        "Publish",
        Answer(
            403,
            query("InvalidClientTokenId", "The security token included in the request is invalid."),
        ),
        Kind.NO_CREDENTIALS,
        ("deactivated",),
    ),
    Case(
        "Publish",
        Answer(
            403,
            query("ExpiredToken", "The security token included in the request is expired"),
        ),
        Kind.EXPIRED,
        ("is over",),
    ),
    Case("Publish", Answer(500, query("InternalFailure", "oops")), Kind.SERVER, ("oops",)),
    # SQS: JSON, with the code of its older protocol in a header.
    Case(
        "SendMessage",
        Answer(
            400,
            json("com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist."),
            sqs_headers("AWS.SimpleQueueService.NonExistentQueue"),
        ),
        Kind.GONE,
        ("sqs:SendMessage on", "no such queue", "queue_url"),
    ),
    Case(
        "SendMessage",
        Answer(
            400,
            json("com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist."),
        ),
        Kind.GONE,
        ("no such queue",),
    ),
    Case(
        "SendMessage",
        Answer(
            400,
            json(
                "com.amazon.coral.service#InvalidParameterValueException",
                "One or more parameters are invalid. Reason: Message must be shorter than 1048576"
                " bytes.",
            ),
            sqs_headers("InvalidParameterValue"),
        ),
        Kind.TOO_LARGE,
        ("raise the limit",),
    ),
    Case(
        "SendMessage",
        Answer(
            403,
            json("com.amazonaws.sqs#RequestThrottled", "Rate exceeded"),
            sqs_headers("RequestThrottled"),
        ),
        Kind.THROTTLED,
        ("quota",),
    ),
    Case(
        "SendMessage",
        Answer(
            403,
            json(
                "com.amazon.coral.service#AccessDeniedException",
                DENIED_USER + "sqs:sendmessage on resource: arn:aws:sqs:us-east-1:123456789012:u",
            ),
            sqs_headers("AccessDenied"),
        ),
        Kind.DENIED,
        ("allow sqs:sendmessage on it",),
    ),
    Case(
        "SendMessage",
        Answer(
            400,
            json("com.amazonaws.sqs#KmsDisabled", "the key is disabled"),
            sqs_headers("KMS.DisabledException"),
        ),
        Kind.KMS,
        ("be enabled",),
    ),
    # Kinesis.
    Case(
        "PutRecord",
        Answer(
            400,
            json("ResourceNotFoundException", "Stream users under account 123456789012 not found."),
            KINESIS,
        ),
        Kind.GONE,
        ("kinesis:PutRecord on", "no such stream"),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json(
                "ProvisionedThroughputExceededException",
                "Rate exceeded for shard shardId-000000000000 in stream users.",
            ),
            KINESIS,
        ),
        Kind.THROTTLED,
        ("more slowly",),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json(
                "AccessDeniedException",
                DENIED_USER + "kinesis:PutRecord on resource: x because no identity-based policy"
                " allows the kinesis:PutRecord action",
            ),
            KINESIS,
        ),
        Kind.DENIED,
        ("allow kinesis:PutRecord on it",),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json(
                "InvalidSignatureException",
                "Signature not yet current: 20210502T183640Z is still later than 20210502T175140Z"
                " (20210502T173640Z + 15 min.)",
            ),
            KINESIS,
        ),
        Kind.CLOCK_SKEW,
        ("clock says 2021-05-02T17:36:40Z", "said 2021-05-02T18:36:40Z"),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json(
                "InvalidSignatureException",
                "Credential should be scoped to a valid region.",
            ),
            KINESIS,
        ),
        Kind.WRONG_REGION,
        ("set region",),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json(
                "ValidationException",
                "1 validation error detected: Value at 'data' failed to satisfy constraint: Member"
                " must have length less than or equal to 1048576",
            ),
            KINESIS,
        ),
        Kind.TOO_LARGE,
        ("raise the limit",),
    ),
    Case(
        "PutRecord",
        Answer(400, json("KMSAccessDeniedException", "The ciphertext refers to a key"), KINESIS),
        Kind.KMS,
        ("kms:GenerateDataKey",),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json("UnrecognizedClientException", "The security token is invalid."),
            KINESIS,
        ),
        Kind.NO_CREDENTIALS,
        ("region is off",),
    ),
    Case(
        "PutRecord",
        Answer(500, json("InternalFailure", "internal"), KINESIS),
        Kind.SERVER,
        ("may come twice",),
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering(Answer()) as told:
        yield told


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    kept = Clients({"writer": WRITER})
    yield kept
    kept.close()


def refused(clients: Clients, server: Answering, operation: str) -> Explained:
    service, method, arguments = CALLS[operation]
    client = clients.client(
        service, credentials="writer", region="us-east-1", endpoint=server.endpoint
    )
    before = len(server.asked)
    with pytest.raises(failures()) as caught:
        getattr(client, method)(**arguments)
    assert len(server.asked) == before + 1, "a request was repeated, or followed elsewhere"
    return explain(
        caught.value,
        service=service,
        operation=operation,
        credentials="writer",
        resource="the:resource",
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operation}-{case.kind}")
def test_an_answer_is_told_apart(clients: Clients, server: Answering, case: Case) -> None:
    server.tell(case.answer)
    explained = refused(clients, server, case.operation)
    assert (explained.kind, explained.sent) == (case.kind, True), explained.message
    for says in (*case.says, "on the:resource as profile writer: ", ". What to do: "):
        assert says in explained.message
    assert "\n" not in explained.message
    # A 200 that turns out to be a refusal (CompleteMultipartUpload) counts as a 500.
    status = 500 if case.answer.status == 200 else case.answer.status
    assert f"(HTTP {status}, request {REQUEST_ID})" in explained.message


def test_every_kind_of_refusal_has_been_seen() -> None:
    without_answer = {Kind.CONNECT, Kind.LOST, Kind.ROLE}
    assert {case.kind for case in CASES} == set(Kind) - without_answer


def test_no_code_means_two_things() -> None:
    named = [code for codes in kinds._CODES.values() for code in codes.split()]
    assert len(named) == len(set(named)) == len(kinds.KIND_OF_CODE)
