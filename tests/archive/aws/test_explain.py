"""Refusals told apart: the services' own answers, as they come over the wire."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore import exceptions

from laredo_archive.aws import explain as table
from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import PAGE, Cause, explain, failures
from laredo_archive.aws.profile import Profile
from tests.support.archive.answering import REQUEST_ID, Answer, Answering, answering
from tests.support.repository import ROOT

OBJECT = {"Bucket": "archive-of-users", "Key": "users/manifest.json"}
PART = {**OBJECT, "UploadId": "upload", "PartNumber": 1, "Body": b"part"}
PARTS = {"Parts": [{"PartNumber": 1, "ETag": "e"}]}
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/u"
TOPIC = "arn:aws:sns:us-east-1:123456789012:users"

# By operation: the service, the client's method and its arguments.
CALLS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "PutObject": ("s3", "put_object", {**OBJECT, "Body": b"{}"}),
    "GetObject": ("s3", "get_object", OBJECT),
    "HeadObject": ("s3", "head_object", OBJECT),
    "HeadBucket": ("s3", "head_bucket", {"Bucket": "archive-of-users"}),
    "UploadPart": ("s3", "upload_part", PART),
    "CompleteMultipartUpload": (
        "s3",
        "complete_multipart_upload",
        {**OBJECT, "UploadId": "upload", "MultipartUpload": PARTS},
    ),
    "Publish": ("sns", "publish", {"TopicArn": TOPIC, "Message": "{}"}),
    "SendMessage": ("sqs", "send_message", {"QueueUrl": QUEUE, "MessageBody": "{}"}),
    "PutRecord": (
        "kinesis",
        "put_record",
        {"StreamName": "users", "Data": b"{}", "PartitionKey": "public.users"},
    ),
}
LONG = "Message must be shorter than 1048576 bytes."
SCOPE = "Credential should be scoped to a valid region."
USER = "User: arn:aws:iam::123456789012:user/laredo is not authorized to perform: "
MALFORMED = "The authorization header is malformed; "
ELSEWHERE = {"x-amz-bucket-region": "eu-west-1"}

# Operation, status, error code (None: no body), message, cause, cure.
Row = tuple[str, int, str | None, str, Cause, str]
ROWS: list[Row] = [
    ("PutObject", 403, "AccessDenied", USER + "s3:PutObject on r", Cause.DENIED, "s3:PutObject on"),
    ("PutObject", 403, "AccessDenied", USER + "s3:PutObjectTagging", Cause.DENIED, "Tagging on it"),
    ("PutObject", 403, "AccessDenied", "with an explicit deny in", Cause.DENIED, "overrides"),
    ("PutObject", 403, "AccessDenied", USER + "kms:GenerateDataKey", Cause.KMS, "kms_key_id"),
    ("PutObject", 400, "KMS.DisabledException", "k is disabled.", Cause.KMS, "be enabled"),
    ("PutObject", 404, "NoSuchBucket", "", Cause.NO_SUCH_BUCKET, "create the bucket"),
    ("GetObject", 404, "NoSuchKey", "", Cause.NO_SUCH_KEY, "what deleted"),
    ("UploadPart", 404, "NoSuchUpload", "", Cause.NO_SUCH_UPLOAD, "uploads it again"),
    ("PutObject", 400, "ExpiredToken", "", Cause.EXPIRED, "keys of profile writer"),
    ("PutObject", 403, "RequestTimeTooSkewed", "", Cause.CLOCK_SKEW, "2019-11-02T15:56:35Z"),
    ("PutObject", 301, "PermanentRedirect", "", Cause.WRONG_REGION, "set region to that of"),
    (
        "PutObject",
        400,
        "AuthorizationHeaderMalformed",
        MALFORMED + "expecting 'eu-central-1'",
        Cause.WRONG_REGION,
        'set region = "eu-central-1"',
    ),
    (
        "PutObject",
        400,
        "AuthorizationHeaderMalformed",
        MALFORMED + "a non-empty Access Key must be provided",
        Cause.NO_CREDENTIALS,
        "give profile writer",
    ),
    ("PutObject", 403, "InvalidAccessKeyId", "", Cause.NO_CREDENTIALS, "an access key"),
    ("PutObject", 403, "SignatureDoesNotMatch", "", Cause.NO_CREDENTIALS, "an access key"),
    ("PutObject", 412, "PreconditionFailed", "", Cause.PRECONDITION, "read again"),
    ("PutObject", 409, "ConditionalRequestConflict", "", Cause.CONFLICT, "tried again"),
    ("PutObject", 409, "OperationAborted", "", Cause.CONFLICT, "tried again"),
    ("PutObject", 501, "NotImplemented", "", Cause.NOT_IMPLEMENTED, "that supports this"),
    ("PutObject", 503, "SlowDown", "", Cause.THROTTLED, "more slowly"),
    ("PutObject", 500, "InternalError", "", Cause.SERVER, "may have been carried out"),
    ("CompleteMultipartUpload", 200, "InternalError", "", Cause.SERVER, "tried again"),
    ("PutObject", 400, "RequestTimeout", "", Cause.SERVER, "tried again"),
    ("PutObject", 400, "BadDigest", "", Cause.CHECKSUM, "sent again"),
    ("UploadPart", 400, "XAmzContentChecksumMismatch", "", Cause.CHECKSUM, "sent again"),
    ("PutObject", 400, "EntityTooLarge", "", Cause.TOO_LARGE, "raise the limit"),
    ("GetObject", 403, "InvalidObjectState", "", Cause.DENIED, "archive storage class"),
    ("PutObject", 400, "InvalidStorageClass", "", Cause.OTHER, "set storage_class"),
    # A HEAD's answer has no body.
    ("HeadObject", 404, None, "", Cause.NO_SUCH_KEY, "what deleted"),
    ("HeadBucket", 404, None, "", Cause.NO_SUCH_BUCKET, "create the bucket"),
    ("HeadObject", 403, None, "", Cause.DENIED, "allow s3:GetObject on it"),
    ("HeadObject", 412, None, "", Cause.PRECONDITION, "read again"),
    ("HeadObject", 503, None, "", Cause.SERVER, "tried again"),
    ("HeadObject", 400, None, "elsewhere", Cause.WRONG_REGION, 'set region = "eu-west-1"'),
    ("HeadBucket", 301, None, "elsewhere", Cause.WRONG_REGION, 'set region = "eu-west-1"'),
    ("HeadObject", 400, None, "", Cause.OTHER, "session token isn't known"),
    # A store that resembles S3, with codes of its own.
    ("PutObject", 429, "Busy", "", Cause.THROTTLED, "more slowly"),
    ("PutObject", 507, "StorageFull", "", Cause.SERVER, "tried again"),
    ("PutObject", 413, None, "", Cause.TOO_LARGE, "raise the limit"),
    # SNS, SQS and Kinesis.
    ("Publish", 404, "NotFound", "Topic does not exist", Cause.GONE, "correct topic_arn"),
    ("Publish", 403, "AuthorizationError", USER + "SNS:Publish", Cause.DENIED, "sns:Publish on it"),
    ("Publish", 400, "InvalidParameter", "Message too long", Cause.TOO_LARGE, "raise the limit"),
    ("Publish", 400, "KMSDisabled", "", Cause.KMS, "be enabled"),
    ("Publish", 403, "SignatureDoesNotMatch", "Signature expired: x", Cause.CLOCK_SKEW, "NTP"),
    ("Publish", 403, "InvalidClientTokenId", "", Cause.NO_CREDENTIALS, "known in that region"),
    ("SendMessage", 400, "com.amazonaws.sqs#QueueDoesNotExist", "", Cause.GONE, "queue_url"),
    ("SendMessage", 400, "AWS.SimpleQueueService.NonExistentQueue", "", Cause.GONE, "queue_url"),
    ("SendMessage", 400, "InvalidParameterValueException", LONG, Cause.TOO_LARGE, "the limit"),
    ("SendMessage", 403, "com.amazonaws.sqs#RequestThrottled", "", Cause.THROTTLED, "quota"),
    ("SendMessage", 400, "com.amazonaws.sqs#KmsThrottled", "", Cause.THROTTLED, "quota"),
    ("SendMessage", 403, "AccessDeniedException", "", Cause.DENIED, "allow sqs:SendMessage on it"),
    ("PutRecord", 400, "ResourceNotFoundException", "", Cause.GONE, "correct stream"),
    ("PutRecord", 400, "ProvisionedThroughputExceededException", "", Cause.THROTTLED, "quota"),
    ("PutRecord", 400, "InvalidSignatureException", SCOPE, Cause.WRONG_REGION, "set region"),
    ("PutRecord", 400, "ValidationException", "must have length less than or", Cause.TOO_LARGE, ""),
    ("PutRecord", 400, "KMSAccessDeniedException", "", Cause.KMS, "kms:GenerateDataKey"),
    ("PutRecord", 400, "UnrecognizedClientException", "", Cause.NO_CREDENTIALS, "that region"),
    ("PutRecord", 500, "InternalFailure", "", Cause.SERVER, "may come twice"),
]


def answer_of(service: str, status: int, code: str | None, message: str) -> Answer:
    """The refusal in the service's own form."""
    if code is None:
        return Answer(status, headers=ELSEWHERE if message else {})
    if service in ("sqs", "kinesis"):
        kind = {"x-amzn-RequestId": REQUEST_ID, "Content-Type": "application/x-amz-json-1.0"}
        return Answer(status, json.dumps({"__type": code, "message": message}), kind)
    error = f"<Code>{code}</Code><Message>{message}</Message>"
    if service == "sns":
        start = '<ErrorResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">'
        request = f"<RequestId>{REQUEST_ID}</RequestId>"
        return Answer(status, f"{start}<Error>{error}</Error>{request}</ErrorResponse>")
    time = "<ServerTime>2019-11-02T15:56:35Z</ServerTime>"
    return Answer(status, f"<Error>{error}{time}<RequestId>{REQUEST_ID}</RequestId></Error>")


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering(Answer()) as told:
        yield told


@pytest.fixture(scope="module")
def clients() -> Iterator[AwsClients]:
    kept = AwsClients({"writer": Profile("writer", "ambient")})
    yield kept
    kept.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}-{row[4]}")
def test_an_answer_is_told_apart(clients: AwsClients, server: Answering, row: Row) -> None:
    operation, status, code, message, cause, cure = row
    service, method, arguments = CALLS[operation]
    server.tell(answer_of(service, status, code, message))
    client = clients.client(
        service, credentials="writer", region="us-east-1", endpoint=server.endpoint
    )
    before = len(server.asked)
    with pytest.raises(failures()) as caught:
        getattr(client, method)(**arguments)
    assert len(server.asked) == before + 1, "a request was repeated, or followed elsewhere"
    explained = explain(
        caught.value, service=service, operation=operation, credentials="writer", resource="the:r"
    )
    assert (explained.kind, explained.sent) == (cause, True), explained.message
    found, _, todo = explained.message.partition(". What to do: ")
    assert " on the:r as profile writer: " in found
    assert cure in todo
    assert todo.endswith(f" ({PAGE}#{cause})")
    assert "\n" not in explained.message
    # A 200 that turns out to be a refusal (CompleteMultipartUpload) counts as a 500.
    status = 500 if status == 200 else status
    assert f"(HTTP {status}, request {REQUEST_ID})" in found


def test_each_name_of_the_table_has_one_meaning() -> None:
    names = [name for row in table._TABLE for name in row.names.split()]
    assert len(names) == len(set(names))
    codes = {"AuthorizationError", "InternalError", "InternalServerError"}
    assert {name for name in names if name.endswith("Error")} - codes <= set(vars(exceptions))


def test_each_cause_has_a_row_and_its_advice_on_the_page() -> None:
    assert set(table._BY_CAUSE) == set(Cause)
    page = (ROOT / PAGE).read_text()
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(Cause)
