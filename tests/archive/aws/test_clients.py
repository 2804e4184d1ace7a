"""The clients: whose credentials a request carries, and what is told about it."""

import pytest

from laredo_archive.aws.clients import Called, Clients
from laredo_archive.aws.explain import explain, failures
from laredo_archive.aws.kinds import Kind
from laredo_archive.aws.profile import Profile
from tests.fix_aws import AwsServer

ROLE = "arn:aws:iam::123456789012:role/writer"


def test_every_request_is_told_with_its_profile_and_status(moto: AwsServer) -> None:
    calls: list[Called] = []
    clients = Clients(on_call=calls.append)
    bucket = moto.new_bucket()
    s3 = clients.client("s3", endpoint=moto.endpoint, addressing="path")
    s3.put_object(Bucket=bucket, Key="k", Body=b"data")
    with pytest.raises(failures()) as caught:
        s3.get_object(Bucket=bucket, Key="other")
    told = [(call.service, call.operation, call.credentials, call.status) for call in calls]
    assert told == [
        ("s3", "PutObject", "ambient", 200),
        ("s3", "GetObject", "ambient", 404),
    ]
    explained = explain(
        caught.value,
        service="s3",
        operation="GetObject",
        credentials=None,
        resource=f"s3://{bucket}/other",
    )
    assert explained.kind is Kind.NO_SUCH_KEY


@pytest.mark.parametrize("server", ["moto", "ministack"])
def test_a_role_is_who_its_client_is(server: str, request: pytest.FixtureRequest) -> None:
    endpoint = request.getfixturevalue(server).endpoint
    profile = Profile(
        "writer", "assume_role", role_arn=ROLE, session_name="tests", endpoint=endpoint
    )
    clients = Clients({"writer": profile})
    assert clients.identity("writer").arn.endswith("assumed-role/writer/tests")
