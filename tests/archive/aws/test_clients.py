"""The clients: which one is given, where it asks, and what is told about its requests."""

import sys
from pathlib import Path

import pytest

from laredo_archive.aws.clients import AwsClients, Called
from laredo_archive.aws.explain import Cause, explain, failures
from laredo_archive.aws.profile import AwsError, Profile, ProfileError, RegionUnknown
from tests.support.archive.answering import Answer, answering
from tests.support.aws import AwsServer
from tests.support.processes import completed

ROLE = "arn:aws:iam::123456789012:role/writer"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)


def test_every_request_is_told_with_its_profile_and_status(moto: AwsServer) -> None:
    calls: list[Called] = []
    clients = AwsClients(on_call=calls.append)
    bucket = moto.new_bucket()
    s3 = clients.client("s3", endpoint=moto.endpoint, addressing="path")
    s3.put_object(Bucket=bucket, Key="k", Body=b"data")
    with pytest.raises(failures()) as caught:
        s3.get_object(Bucket=bucket, Key="other")
    told = [(call.service, call.operation, call.credentials, call.status) for call in calls]
    assert told == [("s3", "PutObject", "ambient", 200), ("s3", "GetObject", "ambient", 404)]
    assert all(0 < call.seconds < 60 for call in calls)
    explained = explain(
        caught.value,
        service="s3",
        operation="GetObject",
        credentials=None,
        resource=f"s3://{bucket}/other",
    )
    assert explained.kind is Cause.NO_SUCH_KEY


def test_the_same_arguments_give_the_same_client() -> None:
    clients = AwsClients({"other": Profile("other", "ambient")})
    first = clients.client("s3", region="eu-west-1")
    assert clients.client("s3", region="eu-west-1", credentials="ambient") is first
    others = [
        clients.client("s3", region="eu-west-2"),
        clients.client("s3", region="eu-west-1", credentials="other"),
        clients.client("s3", region="eu-west-1", endpoint="http://127.0.0.1:1"),
        clients.client("s3", region="eu-west-1", addressing="path"),
        clients.client("s3", region="eu-west-1", connections=3),
    ]
    assert len({id(client) for client in [first, *others]}) == 6


def test_no_checksum_is_sent_that_nobody_asked_for() -> None:
    with answering(Answer(headers={"ETag": '"e"'})) as server:
        AwsClients().client("s3", endpoint=server.endpoint).put_object(
            Bucket="bkt", Key="k", Body=b"data"
        )
        headers = {name.lower() for name in server.asked[0].headers}
    assert not {name for name in headers if "checksum" in name or name == "x-amz-trailer"}


def test_the_region_is_the_places_then_the_profiles_then_the_environments(
    nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"home": Profile("home", "ambient", region="eu-central-1")}

    def region(clients: AwsClients, **where: str) -> str:
        return clients.client("sqs", **where).meta.region_name  # type: ignore[arg-type]

    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert region(AwsClients()) == "us-west-2"
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert region(AwsClients()) == "us-east-2"
    assert region(AwsClients(home), credentials="home") == "eu-central-1"
    assert region(AwsClients(home), credentials="home", region="eu-north-1") == "eu-north-1"


def test_an_unknown_region_is_an_error_unless_there_is_an_endpoint(nowhere: None) -> None:
    with pytest.raises(RegionUnknown, match="no region for kinesis as profile ambient"):
        AwsClients().client("kinesis")
    assert AwsClients().client("kinesis", endpoint="http://127.0.0.1:1").meta.region_name


def test_a_role_is_asked_for_where_its_partition_is(nowhere: None) -> None:
    regions = {}
    for partition in ("aws", "aws-cn", "aws-us-gov"):
        arn = ROLE.replace("aws", partition)
        clients = AwsClients({"w": Profile("w", "assume_role", role_arn=arn)})
        clients.client("s3", credentials="w", region="eu-west-1")
        (sts,) = [c for wanted, c in clients._clients.items() if wanted.service == "sts"]
        regions[partition] = sts.meta.region_name
    assert regions == {"aws": "us-east-1", "aws-cn": "cn-north-1", "aws-us-gov": "us-gov-west-1"}


@pytest.mark.parametrize("where", [{"region": "eu west"}, {"endpoint": "s3.example.com"}])
def test_a_place_that_cannot_be_one_is_refused(where: dict[str, str]) -> None:
    with pytest.raises(AwsError, match="no client for s3") as caught:
        AwsClients().client("s3", **{"region": "eu-west-1", **where})  # type: ignore[arg-type]
    assert next(iter(where.values())) in str(caught.value)


def test_a_named_profile_is_of_the_file_and_expired_keys_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "credentials"
    keys = "[prod]\naws_access_key_id = {0}\naws_secret_access_key = x\n"
    files.write_text(keys.format("OLD"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    clients = AwsClients({"prod": Profile("prod", "ambient", aws_profile="prod")})
    expired = Answer(400, "<Error><Code>ExpiredToken</Code><Message>over</Message></Error>")
    with answering(Answer(headers={"ETag": '"e"'})) as server:
        s3 = clients.client("s3", credentials="prod", endpoint=server.endpoint)
        s3.delete_object(Bucket="bkt", Key="k")
        files.write_text(keys.format("NEW"))
        s3.delete_object(Bucket="bkt", Key="k")
        server.tell(expired, Answer())
        with pytest.raises(failures()):
            s3.delete_object(Bucket="bkt", Key="k")
        s3.delete_object(Bucket="bkt", Key="k")
        used = [asked.headers["Authorization"].split("/")[0] for asked in server.asked]
    assert [name.rpartition("=")[2] for name in used] == ["OLD", "OLD", "OLD", "NEW"]


def test_a_profile_that_is_not_in_the_files_is_refused() -> None:
    clients = AwsClients({"prod": Profile("prod", "ambient", aws_profile="prdo")})
    with pytest.raises(ProfileError, match=r"credentials\.prod: the AWS .*prdo"):
        clients.client("s3", credentials="prod", region="eu-west-1")


def test_boto3_is_imported_only_when_a_client_is_made() -> None:
    code = """
import sys
from laredo_archive.aws import clients, explain, profile
clients.AwsClients({"p": profile.Profile("p", "ambient")})
print([name for name in sys.modules if name.split(".")[0] in ("boto3", "botocore", "s3transfer")])
"""
    done = completed([sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
