"""Refusals told apart: the services' own answers, as they come over the wire."""

from collections.abc import Iterator
from typing import Any

import pytest

from laredo_archive.aws import kinds
from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import explain, failures
from laredo_archive.aws.kinds import Cause, Explained
from laredo_archive.aws.profile import Profile
from tests.archive.aws import refusals, refusals_of_sinks
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


ALL = [*refusals.CASES, *refusals_of_sinks.CASES]


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering(Answer()) as told:
        yield told


@pytest.fixture(scope="module")
def clients() -> Iterator[AwsClients]:
    kept = AwsClients({"writer": WRITER})
    yield kept
    kept.close()


def refused(clients: AwsClients, server: Answering, operation: str) -> Explained:
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


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.operation}-{case.kind}")
def test_an_answer_is_told_apart(
    clients: AwsClients, server: Answering, case: refusals.Case
) -> None:
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
    without_answer = {Cause.CONNECT, Cause.LOST, Cause.ROLE}
    assert {case.kind for case in ALL} == set(Cause) - without_answer


def test_no_code_means_two_things() -> None:
    named = [code for codes in kinds._CODES.values() for code in codes.split()]
    assert len(named) == len(set(named)) == len(kinds.KIND_OF_CODE)
