"""examples/aws: the policies allow what is really asked of AWS, and nothing more."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from laredo_archive.aws.profile import Profile
from laredo_archive.maintain import collect
from laredo_archive.maintain.verify import verify
from laredo_archive.reader import Archive
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.local import LocalDestination
from laredo_archive.storage.s3.destination import S3Destination
from laredo_archive.write.table_archive import TableArchive
from laredo_snapshotter.check import check_bucket, check_profile, check_sink
from laredo_snapshotter.events.sinks import build
from tests.end_to_end.aws_rights.asked import NotingClients, rights
from tests.end_to_end.aws_rights.example import Example, example_on
from tests.end_to_end.aws_rights.policy import EXAMPLES, Policy, Right
from tests.support.archive.archiving import (
    ONE,
    PREFIX,
    TABLE,
    THREE,
    TWO,
    base_of,
    diffed,
    rebased,
    rows,
)
from tests.support.aws import AwsServer
from tests.support.writer.noticing import notice

ACCOUNT = "123456789012"
AUDITOR = "arn:aws:iam::999988887777:role/auditor"
PROGRAM = "arn:aws:iam::111122223333:role/laredo-program"
LARGE = rows(*((number, "x" * 1_000_000) for number in range(10)))
"""More than a part."""


@pytest.fixture
def example(moto: AwsServer) -> Iterator[Example]:
    with example_on(moto) as made:
        yield made


def clients_of(example: Example) -> NotingClients:
    auditor = Profile("auditor", "assume_role", role_arn=AUDITOR, endpoint=example.place.endpoint)
    collector = replace(example.profiles["archive"], name="collector")
    return NotingClients({**example.profiles, "auditor": auditor, "collector": collector})


@pytest.fixture
def clients(example: Example) -> Iterator[NotingClients]:
    made = clients_of(example)
    yield made
    made.close()


@dataclass
class WriterSession:
    """Requests and rights of a writer, from its start to its end."""

    clients: NotingClients
    rights: set[Right]


@pytest.fixture(scope="module")
def life(moto: AwsServer, tmp_path_factory: pytest.TempPathFactory) -> WriterSession:
    with example_on(moto) as example:
        clients = clients_of(example)
        written(example, clients, tmp_path_factory.mktemp("beside"))
        clients.close()
        return WriterSession(clients, needed(example, clients, "archive"))


def archive_of(*destinations: Any) -> TableArchive:
    return TableArchive.open(destinations, TABLE, key_prefix=PREFIX, keep_epochs=1, sinks=["sink"])


def written(example: Example, clients: NotingClients, beside: Path) -> None:
    """All that a writer does: check, write, bring level, give up an upload, collect, tell."""
    destination = example.destination(clients)
    for findings in (
        check_profile(clients, example.place.credentials),
        check_bucket(clients, example.place),
        *(check_sink(clients, sink) for sink in example.sinks),
    ):
        for finding in findings:
            assert finding.good, finding
    destination.probe()
    archive = archive_of(destination)
    rebased(archive, 10, LARGE)
    diffed(archive, 10, 20, LARGE, ONE)
    rebased(archive_of(destination, LocalDestination(beside)), 20, ONE)
    given_up = destination.upload("public.t/epoch=1/snapshot-0_FF.jsonl")
    for line in LARGE.values():
        given_up.write(line)
    given_up.abort()
    collected(destination)
    for sink in example.sinks:
        build(sink, clients).send(notice())


def collected(destination: S3Destination) -> None:
    """Garbage is entered, dated and deleted; nothing is too young, for times in whole seconds."""
    policy = collect.Policy(timedelta(seconds=-2), timedelta(seconds=-2))
    runs = [collect.collect(destination, TABLE, key_prefix=PREFIX, policy=policy) for _ in range(3)]
    assert any(run.deleted for run in runs)


def needed(example: Example, clients: NotingClients, credentials: str) -> set[Right]:
    return {
        right
        for asked in clients.as_whom(credentials)
        for right in rights(asked, ACCOUNT, example.kms_key)
    }


def test_the_writer_may_do_what_it_does_and_no_more(life: WriterSession) -> None:
    policy = Policy.read("writer-policy.json")
    assert [right for right in life.rights if not policy.allows(right)] == []
    assert policy.allowed_actions - {right.action for right in life.rights} == set()


def test_nothing_is_asked_past_the_recording(life: WriterSession) -> None:
    told = [(call.service, call.operation, call.credentials) for call in life.clients.calls]
    recorded = [(one.service, one.operation, one.credentials) for one in life.clients.asked]
    assert sorted(told) == sorted(recorded)


def test_whoever_runs_the_program_may_take_on_the_writers_role(
    example: Example, clients: NotingClients
) -> None:
    example.destination(clients).get("manifest.json")
    [right] = needed(example, clients, "ambient")
    base, trust = Policy.read("base-policy.json"), Policy.read("trust-policy.json")
    assert base.allows(right)
    assert base.allowed_actions == {right.action}
    assert trust.allows(right, PROGRAM)
    assert not trust.allows(right, AUDITOR)
    assert not trust.allows(right._replace(context=(("sts:ExternalId", "guessed"),)), PROGRAM)
    assert not trust.allows(right._replace(context=()), PROGRAM)


def test_the_collector_may_do_what_it_does_and_no_more(
    example: Example, clients: NotingClients
) -> None:
    archive = archive_of(example.destination(clients))
    rebased(archive, 10, ONE)
    base_of(archive, 20, TWO)
    unfinished = example.destination(clients).upload("public.t/epoch=1/snapshot-0_FE.jsonl")
    for line in LARGE.values():
        unfinished.write(line)
    # `laredo-archive gc` tags nothing.
    collecting = S3Destination(replace(example.place, credentials="collector", tags={}), clients)
    collected(collecting)
    policy = Policy.read("collector-policy.json")
    asked = needed(example, clients, "collector")
    assert [right for right in asked if not policy.allows(right)] == []
    assert policy.allowed_actions - {right.action for right in asked} == set()
    unfinished.abort()


def test_the_auditor_may_read_from_another_account_and_nothing_else(
    example: Example, clients: NotingClients
) -> None:
    writing = archive_of(example.destination(clients))
    rebased(writing, 10, ONE)
    diffed(writing, 10, 20, ONE, THREE)
    access = S3Access(
        clients,
        "auditor",
        region=example.place.region,
        endpoint=example.place.endpoint,
        addressing="path",
    )
    archive = Archive.at(f"{example.place.uri}public.t/", access=access)
    assert verify(archive).sound
    list(archive.found.destination.list("public.t/"))
    asked = needed(example, clients, "auditor")
    own, bucket, key = (
        Policy.read(name)
        for name in ("reader-policy.json", "bucket-policy.json", "key-policy.json")
    )
    assert [right for right in asked if not own.allows(right)] == []
    assert own.allowed_actions - {right.action for right in asked} == set()
    # Across accounts the owner of each resource has to allow it as well.
    for right in asked:
        owners = key if right.action.startswith("kms:") else bucket
        assert owners.allows(right, AUDITOR), right
        assert not owners.allows(right, PROGRAM), right
    for right in needed(example, clients, "archive"):
        if right.action in {"s3:PutObject", "s3:DeleteObject"}:
            assert not own.allows(right)
            assert not bucket.allows(right, AUDITOR)


def test_the_bucket_lets_nobody_overwrite_by_mistake(life: WriterSession) -> None:
    bucket = Policy.read("bucket-policy.json")
    assert [right for right in life.rights if bucket.denies(right)] == []
    for right in life.rights:
        context = dict(right.context)
        if context.get("s3:ObjectCreationOperation") == "true":
            blind = {k: v for k, v in context.items() if not k.endswith("-match")}
            assert bucket.denies(right._replace(context=tuple(blind.items())))
        if right.action.startswith("s3:"):
            plain = {**context, "aws:SecureTransport": "false"}
            assert bucket.denies(right._replace(context=tuple(plain.items())))


def test_an_action_more_would_be_noticed_and_one_less_too(
    example: Example, clients: NotingClients
) -> None:
    example.destination(clients).get("public.t/manifest.json")
    policy = Policy.read("writer-policy.json")
    asked = needed(example, clients, "archive")
    assert all(policy.allows(right) for right in asked)
    assert not all(policy.without("s3:GetObject").allows(right) for right in asked)
    elsewhere = replace(example.place, prefix="other/")
    S3Destination(elsewhere, clients).get("manifest.json")
    assert not all(policy.allows(right) for right in needed(example, clients, "archive"))


def test_s3_takes_the_lifecycle_and_it_touches_nothing_that_is_read(
    example: Example, moto: AwsServer
) -> None:
    rules = json.loads((EXAMPLES / "lifecycle.json").read_text())
    s3 = moto.client("s3", region_name=str(example.place.region))
    s3.put_bucket_lifecycle_configuration(Bucket=example.place.bucket, LifecycleConfiguration=rules)
    kept = s3.get_bucket_lifecycle_configuration(Bucket=example.place.bucket)["Rules"]
    assert {rule["ID"] for rule in kept} == {rule["ID"] for rule in rules["Rules"]}
    for rule in kept:
        assert rule["Filter"] == {"Prefix": example.place.prefix}
        assert rule.get("Expiration", {}).keys() <= {"ExpiredObjectDeleteMarker"}
        assert "Transitions" not in rule
    days = [
        rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
        for rule in kept
        if "AbortIncompleteMultipartUpload" in rule
    ]
    assert [timedelta(days=count) > collect.Policy().cut_off for count in days] == [True]


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_readme_says_what_each_file_is_for(path: Path) -> None:
    assert path.name in (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", [path.name for path in sorted(EXAMPLES.glob("*-policy.json"))])
def test_iam_takes_the_policy(name: str, moto: AwsServer) -> None:
    document = (EXAMPLES / name).read_text()
    statements = json.loads(document)["Statement"]
    iam = moto.client("iam")
    if any("Principal" in statement for statement in statements):
        # One of a resource: IAM itself keeps only those of identities.
        assert all(statement["Sid"] and statement["Principal"] for statement in statements)
    else:
        arn = iam.create_policy(PolicyName=name, PolicyDocument=document)["Policy"]["Arn"]
        iam.delete_policy(PolicyArn=arn)
