"""Each kind of sink against servers that other people wrote: what is sent arrives."""

import json

import pytest

from laredo_archive.aws.clients import AwsClients
from laredo_snapshotter.config_outputs import KinesisSink, SinkConfig, SnsSink, SqsSink
from laredo_snapshotter.errors import SinkError
from laredo_snapshotter.events.sinks import build
from tests.support import drawn
from tests.support.aws import REGION, AwsServer
from tests.support.writer.listening import EARS, Ear, StreamEar, TopicEar
from tests.support.writer.noticing import notice

IN_ORDER = ("sns-fifo", "sqs-fifo", "kinesis", "kinesis-by-arn")
ACCOUNT = "000000000000"


@pytest.fixture(params=drawn.first(1, ["moto", "ministack"]))
def server(request: pytest.FixtureRequest) -> AwsServer:
    return request.getfixturevalue(request.param)


def said(ear: Ear) -> list[tuple[str, int, str]]:
    return [heard.artifact for heard in ear.hear()]


@pytest.mark.parametrize("kind", EARS)
def test_what_is_sent_arrives_as_it_is_and_a_check_sends_nothing(
    kind: str, server: AwsServer, clients: AwsClients
) -> None:
    ear = EARS[kind](server)
    sink = build(ear.config, clients)
    assert sink.check().split()[0] in ("topic", "queue", "stream")
    sent = notice(1, epoch=12)
    sink.send(sent)
    [heard] = ear.hear()
    assert heard.body == json.loads(sent.to_json())
    if kind.startswith("kinesis"):
        assert heard.attributes == {"partition_key": "public.users"}
    else:
        assert heard.attributes == {"table": "public.users", "kind": "diff", "epoch": "12"}


@pytest.mark.parametrize("kind", IN_ORDER)
def test_order_is_kept_by_table(kind: str, server: AwsServer, clients: AwsClients) -> None:
    ear = EARS[kind](server)
    sink = build(ear.config, clients)
    for number in range(30):
        sink.send(notice(number))
        sink.send(notice(number, table="public.other"))
    heard = ear.hear()
    for table in ("public.users", "public.other"):
        mine = [one for one in heard if one.body["table"] == table]
        expected = [json.loads(notice(number, table=table).to_json()) for number in range(30)]
        assert [one.body for one in mine] == expected
        assert {one.group for one in mine} == {table}


@pytest.mark.parametrize("kind", ["sns-fifo", "sqs-fifo"])
def test_a_fifo_sink_drops_what_a_restart_sends_again(
    kind: str, server: AwsServer, clients: AwsClients
) -> None:
    ear = EARS[kind](server)
    for _ in range(2):
        sink = build(ear.config, clients)
        for number in range(3):
            sink.send(notice(number))
    assert said(ear) == [("snapshot", 1, "0/10"), ("diff", 1, "0/20"), ("diff", 1, "0/30")]


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ({"kind": ["snapshot"]}, ["public.users 1", "public.other 1", "public.users 2"]),
        ({"table": ["public.other"]}, ["public.other 1", "public.other 1"]),
        ({"epoch": [{"numeric": [">", 1]}]}, ["public.users 2"]),
    ],
    ids=["kind", "table", "epoch"],
)
def test_subscriptions_filter_on_attributes(
    only: dict[str, object], expected: list[str], server: AwsServer, clients: AwsClients
) -> None:
    ear = TopicEar(server, only=only)
    sink = build(ear.config, clients)
    sink.send(notice(0))
    sink.send(notice(1))
    for number in range(2):
        sink.send(notice(number, table="public.other"))
    sink.send(notice(0, epoch=2))
    heard = [f"{one.body['table']} {one.body['epoch']}" for one in ear.hear()]
    assert sorted(heard) == sorted(expected)


def test_a_stream_that_was_made_again_takes_records_again(
    server: AwsServer, clients: AwsClients
) -> None:
    ear = StreamEar(server)
    sink = build(ear.config, clients)
    sink.send(notice(0))
    kinesis = server.client("kinesis")
    kinesis.delete_stream(StreamName=ear.config.stream)
    with pytest.raises(SinkError):
        sink.send(notice(1))
    again = StreamEar(server, name=ear.config.stream)
    sink.send(notice(1))
    assert said(again) == [("diff", 1, "0/20")]


MISSING = {
    "sns": SnsSink(type="sns", topic_arn=f"arn:aws:sns:us-east-1:{ACCOUNT}:nowhere"),
    "sqs": SqsSink(type="sqs", queue_url=f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/nowhere"),
    "kinesis": KinesisSink(type="kinesis", stream="nowhere", region="us-east-1"),
}


@pytest.mark.parametrize("kind", MISSING)
def test_one_that_is_gone_is_told_with_profile_action_and_resource(
    kind: str, server: AwsServer, clients: AwsClients
) -> None:
    config = MISSING[kind].model_copy(update={"endpoint": server.endpoint})
    sink = build(config, clients)
    action = {"sns": "sns:Publish", "sqs": "sqs:SendMessage", "kinesis": "kinesis:PutRecord"}[kind]
    with pytest.raises(SinkError, match=rf"{action} on .*nowhere as profile ambient: .*What to do"):
        sink.send(notice())
    with pytest.raises(SinkError, match=r"nowhere as profile ambient: .*What to do"):
        sink.check()


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("sqs-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.eu-west-1.api.aws", "eu-west-1"),
        ("queue.amazonaws.com", "us-east-1"),
        ("eu-west-2.queue.amazonaws.com", "eu-west-2"),
        ("vpce-1a-2b.sqs.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("localhost:9324", REGION),
    ],
)
def test_a_queues_url_says_where_it_is(host: str, region: str, clients: AwsClients) -> None:
    config = SqsSink(type="sqs", queue_url=f"https://{host}/123456789012/q")
    assert asked_at(config, clients) == (region, f"https://{host}")


def test_an_arn_says_the_region(clients: AwsClients) -> None:
    topic = SnsSink(type="sns", topic_arn=f"arn:aws:sns:eu-west-1:{ACCOUNT}:t")
    assert asked_at(topic, clients) == ("eu-west-1", "https://sns.eu-west-1.amazonaws.com")
    stream = KinesisSink(type="kinesis", stream=f"arn:aws:kinesis:eu-west-3:{ACCOUNT}:stream/s")
    assert asked_at(stream, clients)[0] == "eu-west-3"


@pytest.mark.parametrize("kind", MISSING)
def test_the_configuration_overrides_region_and_endpoint(kind: str, clients: AwsClients) -> None:
    override = {"region": "eu-north-1", "endpoint": "http://localhost:1"}
    config = MISSING[kind].model_copy(update=override)
    assert asked_at(config, clients) == ("eu-north-1", "http://localhost:1")


def asked_at(config: SinkConfig, clients: AwsClients) -> tuple[str, str]:
    client = build(config, clients)._asking._client()  # type: ignore[attr-defined]
    return client.meta.region_name, client.meta.endpoint_url
