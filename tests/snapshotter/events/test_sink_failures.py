"""Failures between a sink and its service, and their messages."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from laredo_archive.aws import clients as clients_
from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.profile import Profile
from laredo_snapshotter.config_outputs import KinesisSink, SinkConfig, SnsSink, SqsSink
from laredo_snapshotter.errors import SinkError, SinkRefused
from laredo_snapshotter.events.sinks import build
from tests.snapshotter.events.recording import ACCOUNT, REGION, Recorder
from tests.support.aws import AwsServer
from tests.support.faults.fault import (
    Exchange,
    Fault,
    Rule,
    answer,
    delay,
    drop,
    reset,
    truncate_answer,
)
from tests.support.faults.http1 import Head, Message
from tests.support.faults.proxy import FaultProxy
from tests.support.faults.weather import THROTTLED
from tests.support.writer.noticing import notice

CONFIGS: dict[str, SinkConfig] = {
    "sns": SnsSink(type="sns", topic_arn=f"arn:aws:sns:{REGION}:{ACCOUNT}:t"),
    "sqs": SqsSink(type="sqs", queue_url=f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/q"),
    "kinesis": KinesisSink(type="kinesis", stream=f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/s"),
}
OPERATIONS = {"sns": "Publish", "sqs": "SendMessage", "kinesis": "PutRecord"}


@pytest.fixture(params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def config_of(kind: str, endpoint: str, credentials: str | None = None) -> SinkConfig:
    return CONFIGS[kind].model_copy(update={"endpoint": endpoint, "credentials": credentials})


def check_message(failure: SinkError, kind: str, profile: str = "ambient") -> None:
    """Profile, action, resource, and what to do."""
    name = re.escape(CONFIGS[kind].name)
    said = rf"{kind}:{OPERATIONS[kind]} on {name} as profile {profile}: .+\. What to do: .+"
    assert re.fullmatch(said, str(failure)), str(failure)
    assert failure.name == CONFIGS[kind].name


def foreign(body: bytes) -> Fault:
    """Something on the way answers with a whole body that isn't the service's."""

    async def happen(exchange: Exchange) -> None:
        await exchange.forward()
        head = Head("HTTP/1.1 200 OK", (("Content-Type", "text/html"),))
        await exchange.respond(Message(head, body))

    return Fault(f"200 {body!r}", happen)


REFUSALS: dict[str, tuple[Fault, type[SinkError], str]] = {
    "denied": (answer(403, "AccessDeniedException"), SinkError, "allow {action} on it"),
    "denied sns": (answer(403, "AuthorizationError"), SinkError, "allow {action} on it"),
    "expired": (answer(403, "ExpiredTokenException"), SinkError, "session is over"),
    "skewed": (answer(403, "RequestExpired"), SinkError, "clock right"),
    "bad key": (answer(403, "InvalidClientTokenId"), SinkError, "access key"),
    "kms": (answer(400, "KMSAccessDeniedException"), SinkError, "key"),
    "invalid": (answer(400, "InvalidParameterException"), SinkRefused, "documentation"),
    "too long": (
        answer(400, "InvalidParameterValue", message="Reason: Message must be shorter than 9."),
        SinkRefused,
        "raise the limit",
    ),
    "500 before": (answer(500, "InternalFailure"), SinkError, "may come twice"),
    "500 after": (answer(500, "InternalFailure", after=True), SinkError, "tried again"),
    "503": (answer(503, "ServiceUnavailable"), SinkError, "tried again"),
    "dropped before": (drop(), SinkError, "tried again"),
    "dropped after": (drop(after=True), SinkError, "may come twice"),
    "reset before": (reset(), SinkError, "tried again"),
    "reset after": (reset(after=True), SinkError, "tried again"),
    "empty after": (foreign(b""), SinkError, "tried again"),
    "foreign json after": (foreign(b"{}"), SinkError, "tried again"),
    "foreign list after": (foreign(b"[7]"), SinkError, "tried again"),
    "foreign page after": (foreign(b"<html>log in</html>"), SinkError, "tried again"),
    "half an answer": (truncate_answer(0.5), SinkError, "tried again"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_each_refusal_has_its_message(
    refusal: str, kind: str, proxy: FaultProxy, recorder: Recorder, clients: AwsClients
) -> None:
    fault, expected, advice = REFUSALS[refusal]
    sink = build(config_of(kind, proxy.endpoint), clients)
    proxy.add(Rule(fault, operation=OPERATIONS[kind]))
    with pytest.raises(SinkError) as failed:
        sink.send(notice())
    assert type(failed.value) is expected
    check_message(failed.value, kind)
    assert advice.format(action=f"{kind}:{OPERATIONS[kind]}") in str(failed.value)
    before = len(recorder.taken[sink.name])
    assert before == (1 if "after" in refusal or "half" in refusal else 0)
    sink.send(notice())
    assert len(recorder.taken[sink.name]) == before + 1, "it goes on as if nothing had been"


def test_throttled_away_and_slow(
    kind: str, proxy: FaultProxy, clients: AwsClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients_, "READ_TIMEOUT_S", 0.2)
    sink = build(config_of(kind, proxy.endpoint), clients)
    for fault in (THROTTLED[OPERATIONS[kind]], delay(2.0)):
        proxy.add(Rule(fault))
        before = len(proxy.requests())
        with pytest.raises(SinkError) as failed:
            sink.send(notice())
        check_message(failed.value, kind)
        assert len(proxy.requests()) == before + 1, "repeating is the notifier's business"
    with proxy.away(), pytest.raises(SinkError) as failed:
        sink.send(notice())
    check_message(failed.value, kind)
    assert proxy.endpoint in str(failed.value)


def test_tables_that_tell_at_the_same_time_keep_their_connections(
    proxy: FaultProxy, clients: AwsClients, caplog: pytest.LogCaptureFixture
) -> None:
    many = 40
    sink = build(config_of("sqs", proxy.endpoint), clients)
    proxy.add(Rule(delay(0.5), times=many))
    with ThreadPoolExecutor(many) as threads:
        list(threads.map(sink.send, [notice()] * many))
    assert caplog.messages == [], "urllib3 says so when it throws one away"


def test_no_region(monkeypatch: pytest.MonkeyPatch, clients: AwsClients) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    sink = build(KinesisSink(type="kinesis", stream="s"), clients)
    with pytest.raises(SinkRefused, match="s: no region for kinesis as profile ambient: set"):
        sink.send(notice())


def as_announcer(endpoint: str) -> AwsClients:
    """Clients that take on a role, which they ask for there."""
    role = Profile(
        "announcer",
        "assume_role",
        role_arn=f"arn:aws:iam::{ACCOUNT}:role/announcer",
        endpoint=endpoint,
        region=REGION,
    )
    return AwsClients({"announcer": role})


def test_each_sink_is_told_as_its_own_profile(
    kind: str, recorder: Recorder, ministack: AwsServer
) -> None:
    clients = as_announcer(ministack.endpoint)
    build(config_of(kind, recorder.endpoint, "announcer"), clients).send(notice())
    build(config_of(kind, recorder.endpoint), clients).send(notice())
    as_role, ambient = recorder.taken[CONFIGS[kind].name]
    assert ambient.access_key == "AKIATESTTESTTESTTEST"
    assert as_role.access_key.startswith("ASIA")


def test_a_role_that_is_refused(kind: str, recorder: Recorder, ministack: AwsServer) -> None:
    with FaultProxy(ministack.endpoint) as sts:
        sts.add(Rule(answer(403, "AccessDenied"), operation="AssumeRole", times=None))
        clients = as_announcer(sts.endpoint)
        sink = build(config_of(kind, recorder.endpoint, "announcer"), clients)
        with pytest.raises(SinkError) as failed:
            sink.send(notice())
    check_message(failed.value, kind, "announcer")
    assert "role/announcer" in str(failed.value)
    assert not recorder.taken[sink.name]


def test_a_record_is_put_after_the_one_before(proxy: FaultProxy, recorder: Recorder) -> None:
    sink = build(config_of("kinesis", proxy.endpoint), AwsClients())
    proxy.add(Rule(drop(after=True), skip=2), Rule(answer(400, "InvalidArgumentException"), skip=3))
    for number in range(5):
        for _ in range(2):
            try:
                sink.send(notice(number))
                break
            except SinkError:
                continue
    after = [taken.request.get("SequenceNumberForOrdering") for taken in recorder.taken[sink.name]]
    # The third was taken twice: its answer was lost. The fourth forgot the one before.
    assert after == [None, "1", "2", "2", None, "5"]
