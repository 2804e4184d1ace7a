"""laredo-archive on s3:// URIs: whatever it does in a directory, by whoever may read, in one line
what is wrong; and copies that are killed."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from laredo_archive import failpoint
from laredo_archive.maintain.copy import copy
from laredo_archive.maintain.verify import verify
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.local import LocalDestination
from tests.support import drawn
from tests.support.archive.archiving import ONE as BASE
from tests.support.archive.archiving import TABLE, anybodys, opened, rebased
from tests.support.archive.building import Builder, row, state
from tests.support.archive.command_line import lines, rows, run, wrong_hash
from tests.support.archive.s3_way import IGNORES_ALL
from tests.support.archive.several_epochs import ONE, TWO, several_epochs
from tests.support.aws import AwsServer
from tests.support.faults.fault import Fault, Rule, answer
from tests.support.faults.proxy import FaultProxy
from tests.support.processes import completed


@pytest.fixture
def proxy(moto: AwsServer) -> Iterator[FaultProxy]:
    with FaultProxy(moto.endpoint) as proxy:
        yield proxy


def copied(local: Path, moto: AwsServer) -> str:
    """An archive in a bucket, below two prefixes."""
    uri = f"s3://{moto.new_bucket()}/eu/users"
    copy(location.find(str(local)), location.parse(uri, S3Access(endpoint=moto.endpoint)))
    return uri


@pytest.fixture(scope="module")
def place(moto: AwsServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that is read."""
    return copied(several_epochs(tmp_path_factory.mktemp("place")).write(), moto)


@pytest.fixture
def own_place(local: Path, moto: AwsServer) -> str:
    """One that is changed."""
    return copied(local, moto)


def test_everything_reads_there_as_it_does_here_and_asks_for_objects_only(
    place: str, environment: dict[str, str], proxy: FaultProxy, tmp_path: Path
) -> None:
    """Whoever may s3:GetObject can do all that reads; nothing else is even tried."""
    for denied in ("Put*", "Delete*", "Create*", "Upload*", "Complete*", "Abort*", "List*"):
        proxy.add(Rule(answer(403, "AccessDenied"), denied, times=None))

    def there(*arguments: object) -> list[str]:
        return rows(run(*arguments, env=environment))

    assert there("cat", place) == lines(TWO)
    assert there("cat", f"{place}/", "--as-of", "0/64") == lines(ONE)
    assert there("cat", f"{place}/manifest.json") == lines(TWO)
    assert there("cat", place.replace("s3://", "s3a://")) == lines(TWO)
    listed = [json.loads(line) for line in there("ls", place)]
    assert len(listed) == 7
    assert listed[0]["keys"] == ["users/epoch=1/snapshot-0_64.jsonl"]
    changes = there("diff", place, "--from", "0/64", "--to", "0/C8")
    assert [json.loads(line)["key"] for line in changes] == ["10", "2", "3"]
    assert f"{place}/manifest.json: sound; 7 files" in there("verify", place)[0]
    target = tmp_path / "out.jsonl"
    assert "3 rows of public.users" in there("export", place, target)[0]
    assert target.read_text().split("\n")[:-1] == lines(TWO)
    there("copy", place, tmp_path / "copied")
    assert {seen.operation.name for seen in proxy.log} == {"GetObject", "HeadObject"}


def test_a_place_without_an_archive_says_so_also_to_who_may_not_list(
    place: str, environment: dict[str, str], proxy: FaultProxy
) -> None:
    above = place.removesuffix("/users")
    told = run("cat", above, env=environment)
    assert told.stderr == (
        f"laredo-archive: {above}/: no archive there (no manifest.json). There is one at {place}/\n"
    )
    proxy.add(Rule(answer(403, "AccessDenied"), "List*", times=None))
    untold = run("cat", above, env=environment)
    assert "no archive there (no manifest.json). Give the directory" in untold.stderr
    assert (told.returncode, untold.returncode) == (1, 1)


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (answer(404, "NoSuchBucket"), "create the bucket or correct its name"),
        (answer(301, "PermanentRedirect"), "it is in another region"),
    ],
    ids=str,
)
def test_what_the_service_refuses_is_one_line(
    place: str, environment: dict[str, str], proxy: FaultProxy, refused: Fault, told: str
) -> None:
    proxy.add(Rule(refused, "GetObject", times=None))
    done = run("cat", place, env=environment)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"laredo-archive: s3:GetObject on {place}/manifest.json as profile ")
    assert told in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["cat", "s3://"], "isn't a bucket's name"),
        (["cat", "gs://b/users"], "gs:// isn't known here; give a directory, or a URI"),
        (["cat", "s3://b/users", "--profile", "nobody"], "profile (nobody) could not be found"),
        (["cat", "s3://b/users", "--role-arn", "auditor"], "is no role's ARN"),
        (["cat", "s3://b/users", "--endpoint-url", "minio:9000"], "isn't an http:// or https://"),
    ],
)
def test_what_can_t_be_a_place_is_one_line(arguments: list[str], told: str) -> None:
    done = run(*arguments)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert told in line


def test_an_external_id_is_for_a_role(local: Path) -> None:
    assert run("cat", local, "--external-id", "x").returncode == 2


def test_without_credentials_it_says_which_there_could_be(
    place: str, environment: dict[str, str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del environment[name]
    done = run("cat", place, env=environment)
    (line,) = done.stderr.splitlines()
    assert "give this program credentials" in line


def test_through_a_role_at_a_custom_endpoint(
    place: str, moto: AwsServer, proxy: FaultProxy
) -> None:
    role = "arn:aws:iam::123456789012:role/auditors/reader"
    environment = {**os.environ, "AWS_ENDPOINT_URL_STS": proxy.endpoint}
    options = ("--role-arn", role, "--external-id", "x1", "--region", "us-east-1")
    done = run("cat", place, *options, "--endpoint-url", proxy.endpoint, env=environment)
    assert rows(done) == lines(TWO)
    assert [seen.operation.key for seen in proxy.requests("AssumeRole")] == [role]
    proxy.add(Rule(answer(403, "AccessDenied"), "GetObject", times=None))
    denied = run("cat", place, *options, "--endpoint-url", proxy.endpoint, env=environment)
    assert "as profile role/auditors/reader: AccessDenied" in denied.stderr


def test_what_is_tried_again_is_told_to_who_asks(
    place: str, environment: dict[str, str], proxy: FaultProxy
) -> None:
    proxy.add(Rule(answer(503, "SlowDown"), "GetObject", times=2))
    assert rows(run("cat", place, env=environment)) == lines(TWO)
    proxy.add(Rule(answer(503, "SlowDown"), "GetObject", times=2))
    told = run("--verbose", "cat", place, env=environment)
    assert told.stdout.split("\n")[:-1] == lines(TWO)
    assert told.stderr.count("S3 request retried") == 2


@pytest.mark.parametrize("command", ["gc", "copy"])
def test_a_store_that_can_t_swap_is_refused(
    own_place: str, local: Path, environment: dict[str, str], proxy: FaultProxy, command: str
) -> None:
    place = own_place
    proxy.add(Rule(IGNORES_ALL, "Put*|Complete*", times=None))
    arguments = [command, local, place] if command == "copy" else [command, place]
    refused = run(*arguments, env=environment)
    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 1
    assert "conditional" in line
    assert not [seen for seen in proxy.requests("PutObject") if "manifest" in seen.operation.key]


# Copies.


def test_copy_says_what_it_did(
    place: str, local: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    target = tmp_path / "back" / "users"
    first = rows(run("copy", place, target, env=environment))
    assert first[0].startswith(f"{target.as_uri()}/manifest.json: public.users up to 0/2BC (epoch")
    assert "7 objects copied" in first[0]
    assert (
        "0 objects copied, 0 B, 0 adopted, 7 unchanged"
        in run("copy", place, target, env=environment).stdout
    )
    assert (target / "epoch=1").exists()
    assert rows(run("cat", target)) == lines(TWO)


def test_each_side_may_have_a_service_of_its_own(
    place: str, proxy: FaultProxy, s3_server: AwsServer
) -> None:
    """From one server to another; the environment names neither."""
    target = f"s3://{s3_server.new_bucket()}/users"
    done = run(
        "copy", place, target, "--endpoint-url", proxy.endpoint,
        "--to-endpoint-url", s3_server.endpoint, "--to-region", "us-east-1",
    )  # fmt: skip
    assert "7 objects copied" in rows(done)[0]
    found = location.find(target, S3Access(endpoint=s3_server.endpoint))
    assert verify(Archive(found)).problems == []


def test_what_is_written_is_encrypted_and_stored_as_asked(
    local: Path, moto: AwsServer, environment: dict[str, str]
) -> None:
    bucket = moto.new_bucket()
    done = run(
        "copy", local, f"s3://{bucket}/users", "--to-sse", "aws:kms", "--to-kms-key-id", "alias/k",
        "--to-storage-class", "STANDARD_IA", env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    head = moto.client("s3").head_object(Bucket=bucket, Key="users/epoch=1/snapshot-0_64.jsonl")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/k")
    assert head["StorageClass"] == "STANDARD_IA"


def test_refusals_and_stops_are_one_line(
    place: str, local: Path, environment: dict[str, str], proxy: FaultProxy, tmp_path: Path
) -> None:
    with opened([LocalDestination(tmp_path / "other")]) as writer:
        rebased(writer, 10, BASE, continues=False)
    refused = run("copy", place, tmp_path / "other" / TABLE, env=environment)
    assert refused.returncode == 1
    assert "it is the archive of public.t, not of public.users" in refused.stderr
    wrong_hash(local)
    stopped = run("copy", local, place.replace("eu/users", "us/users"), env=environment)
    (line,) = stopped.stderr.splitlines()
    assert stopped.returncode == 1
    assert "snapshot-0_258.jsonl: its sha256 is" in line
    assert "of 7 objects are in place and stay" in line
    assert line.endswith("Run the same command to continue")


@pytest.mark.parametrize(
    "point", drawn.first(1, ["copy.uploaded:2", "s3.upload.part", "copy.objects", "s3.swap.sent"])
)
def test_a_copy_that_was_killed_goes_on(point: str, s3_server: AwsServer, tmp_path: Path) -> None:
    end = 2000 if point == "s3.upload.part" else 1010
    large = state(*(row(number, "x" * 9000) for number in range(1000, end)))
    built = Builder(tmp_path).base(100, large).diff(200, large | dict([row(1, "a")]))
    source = built.diff(300, large).write()
    target = f"s3://{s3_server.new_bucket()}/users"
    environment = {**os.environ, "AWS_ENDPOINT_URL": s3_server.endpoint}
    killed = run("copy", source, target, env=environment | {failpoint.VARIABLE: point}, alone=True)
    assert killed.returncode == -signal.SIGKILL
    done = run("copy", source, target, env=environment)
    assert done.returncode == 0, done.stderr
    found = location.find(target, S3Access(endpoint=s3_server.endpoint))
    assert verify(Archive(found)).problems == []
    named = {entry.key for entry in found.manifest.named()} | {found.manifest_key}
    # Not only: ministack keeps what came of a PUT that was broken off, which S3 refuses.
    assert {info.key for info in found.destination.list("")} >= named
    found.destination.collect_unfinished("", timedelta(0), anybodys)


def test_a_copy_killed_at_every_point_in_a_directory(tmp_path: Path) -> None:
    done = completed([sys.executable, "-m", "tests.support.archive.killed_copy", tmp_path])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20, "points of a copy"
