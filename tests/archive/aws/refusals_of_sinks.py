"""What SNS, SQS and Kinesis answer when they refuse, and what that has to be taken for."""

from laredo_archive.aws.kinds import Cause
from tests.archive.aws.answering import REQUEST_ID, Answer
from tests.archive.aws.refusals import DENIED_USER, Case


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


CASES = [
    # SNS.
    Case(
        "Publish",
        Answer(404, query("NotFound", "Topic does not exist")),
        Cause.GONE,
        ("sns:Publish on", "no such topic", "topic_arn"),
    ),
    Case(
        "Publish",
        Answer(403, query("AuthorizationError", DENIED_USER + "SNS:Publish on resource: x")),
        Cause.DENIED,
        ("allow sns:Publish on it", "sns resource's too"),
    ),
    Case(
        "Publish",
        Answer(400, query("InvalidParameter", "Invalid parameter: Message too long")),
        Cause.TOO_LARGE,
        ("raise the limit",),
    ),
    Case(
        "Publish",
        Answer(400, query("Throttling", "Rate exceeded")),
        Cause.THROTTLED,
        ("quota",),
    ),
    Case(
        "Publish",
        Answer(400, query("KMSDisabled", "key k is disabled")),
        Cause.KMS,
        ("enabled",),
    ),
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
        Cause.CLOCK_SKEW,
        ("clock says 2023-08-22T19:47:57Z", "shows 2023-08-22T07:25:29Z"),
    ),
    Case(
        "Publish",
        Answer(
            403,
            query("InvalidClientTokenId", "The security token included in the request is invalid."),
        ),
        Cause.NO_CREDENTIALS,
        ("deactivated", "session token isn't known"),
    ),
    Case(
        "Publish",
        Answer(
            403,
            query("ExpiredToken", "The security token included in the request is expired"),
        ),
        Cause.EXPIRED,
        ("is over",),
    ),
    Case("Publish", Answer(500, query("InternalFailure", "oops")), Cause.SERVER, ("oops",)),
    # SQS: JSON, with the code of its older protocol in a header.
    Case(
        "SendMessage",
        Answer(
            400,
            json("com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist."),
            sqs_headers("AWS.SimpleQueueService.NonExistentQueue"),
        ),
        Cause.GONE,
        ("sqs:SendMessage on", "no such queue", "queue_url"),
    ),
    Case(
        "SendMessage",
        Answer(
            400,
            json("com.amazonaws.sqs#QueueDoesNotExist", "The specified queue does not exist."),
        ),
        Cause.GONE,
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
        Cause.TOO_LARGE,
        ("raise the limit",),
    ),
    Case(
        "SendMessage",
        Answer(
            403,
            json("com.amazonaws.sqs#RequestThrottled", "Rate exceeded"),
            sqs_headers("RequestThrottled"),
        ),
        Cause.THROTTLED,
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
        Cause.DENIED,
        ("allow sqs:sendmessage on it",),
    ),
    Case(
        "SendMessage",
        Answer(
            400,
            json("com.amazonaws.sqs#KmsDisabled", "the key is disabled"),
            sqs_headers("KMS.DisabledException"),
        ),
        Cause.KMS,
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
        Cause.GONE,
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
        Cause.THROTTLED,
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
        Cause.DENIED,
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
        Cause.CLOCK_SKEW,
        ("clock says 2021-05-02T17:36:40Z", "shows 2021-05-02T18:36:40Z"),
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
        Cause.WRONG_REGION,
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
        Cause.TOO_LARGE,
        ("raise the limit",),
    ),
    Case(
        "PutRecord",
        Answer(400, json("KMSAccessDeniedException", "The ciphertext refers to a key"), KINESIS),
        Cause.KMS,
        ("kms:GenerateDataKey",),
    ),
    Case(
        "PutRecord",
        Answer(
            400,
            json("UnrecognizedClientException", "The security token is invalid."),
            KINESIS,
        ),
        Cause.NO_CREDENTIALS,
        ("region is off", "session token isn't known"),
    ),
    Case(
        "PutRecord",
        Answer(500, json("InternalFailure", "internal"), KINESIS),
        Cause.SERVER,
        ("may come twice",),
    ),
]
