"""Roles: who takes them on, what a request is then signed with, and when that is renewed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest
from structlog.testing import capture_logs

from laredo_archive.aws.clients import AwsClients, Called
from laredo_archive.aws.credentials import ATTEMPTS
from laredo_archive.aws.explain import Cause, Explained, explain, failures
from laredo_archive.aws.profile import Profile
from tests.support.archive.answering import Answer, Answering, Asked, answering
from tests.support.aws import AwsServer

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LISTING = Answer(body="<ListBucketResult><Name>b</Name></ListBucketResult>")
STS = "https://sts.amazonaws.com/doc/2011-06-15/"
ARN = "arn:aws:iam::123456789012:role/"


def session(key: str, until: datetime) -> Answer:
    """An answer of AssumeRole."""
    return Answer(
        body=f'<AssumeRoleResponse xmlns="{STS}"><AssumeRoleResult><Credentials>'
        f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>"
        f"<SessionToken>token-of-{key}</SessionToken>"
        f"<Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>"
        "</AssumeRoleResult></AssumeRoleResponse>"
    )


def refusal(status: int, code: str, message: str) -> Answer:
    return Answer(
        status,
        f'<ErrorResponse xmlns="{STS}"><Error><Type>Sender</Type><Code>{code}</Code>'
        f"<Message>{message}</Message></Error></ErrorResponse>",
    )


DENIED = refusal(
    403,
    "AccessDenied",
    "User: arn:aws:iam::111122223333:user/laredo is not authorized to perform: sts:AssumeRole on"
    f" resource: {ARN}writer",
)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sts() -> Iterator[Answering]:
    with answering(session("KEY1", START + timedelta(hours=1))) as server:
        yield server


@pytest.fixture
def store() -> Iterator[Answering]:
    with answering(LISTING) as server:
        yield server


def writer(sts: Answering, name: str = "writer", **more: str) -> dict[str, Profile]:
    return {name: Profile(name, "assume_role", role_arn=ARN + name, endpoint=sts.endpoint, **more)}


def ask(clients: AwsClients, store: Answering, credentials: str | None = "writer") -> None:
    client = clients.client(
        "s3",
        credentials=credentials,
        region="us-east-1",
        endpoint=store.endpoint,
        addressing="path",
    )
    client.list_objects_v2(Bucket="b")


def refused(clients: AwsClients, store: Answering, credentials: str = "writer") -> Explained:
    asked = len(store.asked)
    with pytest.raises(failures()) as caught:
        ask(clients, store, credentials)
    assert len(store.asked) == asked, "it was asked after all"
    return explain(
        caught.value,
        service="s3",
        operation="ListObjectsV2",
        credentials=credentials,
        resource="s3://b/",
    )


def key_of(asked: Asked) -> str:
    return asked.headers["Authorization"].split("Credential=")[1].split("/")[0]


def keys(server: Answering) -> list[str]:
    return [key_of(asked) for asked in server.asked]


def parameters(asked: Asked) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}


@pytest.fixture
def ambient_key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AMBIENT")
    return "AMBIENT"


def test_a_request_is_signed_with_the_roles_session(
    sts: Answering, store: Answering, clock: Clock, ambient_key: str
) -> None:
    profiles = writer(sts, external_id="customer-7", session_name="users-archive")
    clients = AwsClients(profiles, now=clock)
    ask(clients, store)
    ask(clients, store)
    assert keys(sts) == [ambient_key]
    assert parameters(sts.asked[0]) == {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": ARN + "writer",
        "RoleSessionName": "users-archive",
        "ExternalId": "customer-7",
    }
    assert keys(store) == ["KEY1", "KEY1"]
    assert store.asked[0].headers["X-Amz-Security-Token"] == "token-of-KEY1"


def test_a_session_is_named_after_the_host_unless_told(
    sts: Answering, store: Answering, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "writer_1:" + "x" * 80)
    ask(AwsClients(writer(sts), now=clock), store)
    asked = parameters(sts.asked[0])
    assert asked["RoleSessionName"] == ("laredo-writer-1-" + "x" * 80)[:64]
    assert "ExternalId" not in asked


def test_a_role_is_taken_on_by_its_base(
    sts: Answering, store: Answering, clock: Clock, ambient_key: str
) -> None:
    until = START + timedelta(hours=1)
    sts.tell(session("FIRST", until), session("SECOND", until), session("THIRD", until))
    inner = writer(sts, "inner")
    middle = {"middle": Profile("middle", "assume_role", role_arn=ARN + "middle", base="inner")}
    outer = {"outer": Profile("outer", "assume_role", role_arn=ARN + "outer", base="middle")}
    ask(AwsClients({**outer, **inner, **middle}, now=clock), store, "outer")
    assert keys(sts) == [ambient_key, "FIRST", "SECOND"]
    assert [parameters(asked)["RoleArn"] for asked in sts.asked] == [
        ARN + "inner",
        ARN + "middle",
        ARN + "outer",
    ]
    assert keys(store) == ["THIRD"]


def test_profiles_do_not_know_of_each_other(
    sts: Answering, store: Answering, clock: Clock, ambient_key: str
) -> None:
    until = START + timedelta(hours=1)
    clients = AwsClients({**writer(sts), **writer(sts, "reader")}, now=clock)
    sts.tell(session("WRITER", until), session("READER", until))
    for credentials in ("writer", "reader", None, "writer", "reader", None):
        ask(clients, store, credentials)
    assert keys(store) == ["WRITER", "READER", ambient_key] * 2


def test_a_session_is_renewed_well_before_it_ends(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    clients = AwsClients(writer(sts), now=clock)
    ask(clients, store)
    sts.tell(session("KEY2", START + timedelta(hours=2)))
    clock.now = START + timedelta(minutes=44)
    ask(clients, store)
    clock.now = START + timedelta(minutes=46)
    ask(clients, store)
    clock.now = START + timedelta(minutes=100)
    ask(clients, store)
    assert keys(store) == ["KEY1", "KEY1", "KEY2", "KEY2"]
    assert len(sts.asked) == 2


def test_while_sts_is_away_the_old_session_serves_as_long_as_it_can(
    sts: Answering, store: Answering, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clients = AwsClients(writer(sts), now=clock)
    ask(clients, store)
    sts.tell(refusal(503, "ServiceUnavailable", "later"))
    clock.now = START + timedelta(minutes=46)
    ask(clients, store)
    assert len(sts.asked) == 1 + ATTEMPTS
    clock.now = START + timedelta(minutes=51)
    caplog.clear()
    with capture_logs() as logged:
        explained = refused(clients, store)
    assert [entry["event"] for entry in logged] == [
        *["role requested again"] * (ATTEMPTS - 1),
        "role not assumed",
    ]
    assert logged[-1]["profile"] == "writer"
    assert [record.exc_info for record in caplog.records] == [None]
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)
    assert f"sts:AssumeRole on {ARN}writer (credentials.writer)" in explained.message
    sts.tell(session("KEY2", START + timedelta(hours=2)))
    ask(clients, store)
    assert keys(store) == ["KEY1", "KEY1", "KEY2"]


def test_a_passing_failure_of_sts_is_tried_again(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    calls: list[Called] = []
    sts.tell(
        refusal(400, "Throttling", "Rate exceeded"),
        Answer(cut=0),
        session("KEY1", START + timedelta(hours=1)),
    )
    ask(AwsClients(writer(sts), on_call=calls.append, now=clock), store)
    assert [(call.operation, call.credentials, call.status) for call in calls] == [
        ("AssumeRole", "ambient", 400),
        ("AssumeRole", "ambient", None),
        ("AssumeRole", "ambient", 200),
        ("ListObjectsV2", "writer", 200),
    ]


def test_a_refused_role_is_told_once_with_all_names(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    sts.tell(DENIED)
    explained = refused(AwsClients(writer(sts), now=clock), store)
    assert (explained.kind, explained.sent) == (Cause.ROLE, False)
    assert len(sts.asked) == 1
    message = explained.message
    assert message.startswith("s3:ListBucket on s3://b/ as profile writer: its role wasn't assumed")
    assert f"sts:AssumeRole on {ARN}writer (credentials.writer) as profile ambient: " in message
    assert "user/laredo is not authorized" in message
    assert "let the role trust that caller" in message
    assert message.count("What to do") == 1


def test_a_refused_base_is_told_through_all_roles(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    sts.tell(DENIED)
    outer = {"outer": Profile("outer", "assume_role", role_arn=ARN + "outer", base="writer")}
    explained = refused(AwsClients({**writer(sts), **outer}, now=clock), store, "outer")
    assert (explained.kind, explained.sent) == (Cause.ROLE, False)
    assert "(credentials.outer) as profile writer: its role wasn't" in explained.message
    assert "(credentials.writer) as profile ambient: AccessDenied" in explained.message
    assert len(sts.asked) == 1


def test_a_role_above_one_that_waits_for_sts_does_not_ask_for_it_again(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    sts.tell(refusal(503, "ServiceUnavailable", "later"))
    outer = {"outer": Profile("outer", "assume_role", role_arn=ARN + "outer", base="writer")}
    explained = refused(AwsClients({**writer(sts), **outer}, now=clock), store, "outer")
    assert (explained.kind, explained.sent) == (Cause.CONNECT, False)
    assert len(sts.asked) == ATTEMPTS


def test_a_session_that_a_service_calls_expired_is_renewed_with_the_next_call(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    expired = (
        "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    )
    store.tell(Answer(400, expired), LISTING)
    until = START + timedelta(hours=1)
    sts.tell(session("KEY1", until), session("KEY2", until))
    clients = AwsClients(writer(sts), now=clock)
    with pytest.raises(failures()):
        ask(clients, store)
    ask(clients, store)
    ask(clients, store)
    assert keys(store) == ["KEY1", "KEY2", "KEY2"]


def test_a_session_that_has_ended_as_it_comes_is_a_wrong_clock(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    clock.now = START + timedelta(hours=3)
    explained = refused(AwsClients(writer(sts), now=clock), store)
    assert (explained.kind, explained.sent) == (Cause.ROLE, False)
    assert "ends at 2026-03-01T13:00:00Z" in explained.message
    assert "this machine's clock shows 2026-03-01T15:00:00Z" in explained.message


def test_threads_share_one_client_and_one_session(
    sts: Answering, store: Answering, clock: Clock
) -> None:
    clients = AwsClients(writer(sts), now=clock)
    together = threading.Barrier(8)
    made = []

    def one() -> None:
        together.wait()
        made.append(clients.client("s3", credentials="writer", endpoint=store.endpoint))
        ask(clients, store)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(one) for _ in range(8)]:
            done.result()
    assert len({id(client) for client in made}) == 1
    assert keys(store) == ["KEY1"] * 8
    assert len(sts.asked) == 1


def test_a_role_in_another_account_is_who_its_client_is(moto: AwsServer) -> None:
    base = Profile("base", "assume_role", role_arn=ARN + "base", endpoint=moto.endpoint)
    auditor = Profile(
        "auditor",
        "assume_role",
        role_arn="arn:aws:iam::999988887777:role/auditor",
        base="base",
        session_name="audit",
    )
    clients = AwsClients({"base": base, "auditor": auditor})
    identity = clients.identity("auditor")
    assert identity.account == "999988887777"
    assert identity.arn == "arn:aws:sts::999988887777:assumed-role/auditor/audit"
    bucket = moto.new_bucket()
    s3 = clients.client("s3", credentials="auditor", endpoint=moto.endpoint, addressing="path")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
