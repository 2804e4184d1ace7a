"""Ends of sinks: they make the topic, queue or stream, and tell what has arrived there."""

import json
from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

from laredo_snapshotter.config_outputs import KinesisSink, SinkConfig, SnsSink, SqsSink
from tests.support.aws import REGION, AwsServer
from tests.support.processes import wait_until


class Heard(NamedTuple):
    """One message: what it says, and its attributes' (or partition key's) text by name."""

    body: dict[str, Any]
    attributes: dict[str, str]
    group: str | None = None

    @property
    def artifact(self) -> tuple[str, int, str]:
        return self.body["kind"], self.body["epoch"], self.body["to_position"]


class Ear(Protocol):
    """A sink that listens."""

    config: SinkConfig
    in_order: bool

    def hear(self) -> list[Heard]:
        """All that has arrived, in order."""


class QueueEar:
    """An SQS queue. What is received is deleted, so that the order of a FIFO queue shows."""

    def __init__(self, server: AwsServer, *, fifo: bool = False) -> None:
        self._sqs = server.client("sqs")
        suffix = ".fifo" if fifo else ""
        attributes = {"FifoQueue": "true"} if fifo else {}
        made = self._sqs.create_queue(QueueName=f"q{token_hex(4)}{suffix}", Attributes=attributes)
        self.url: str = made["QueueUrl"]
        self.in_order = fifo
        self.config = SqsSink(type="sqs", queue_url=self.url, endpoint=server.endpoint)
        self._heard: list[Heard] = []

    @property
    def arn(self) -> str:
        asked = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        return asked["Attributes"]["QueueArn"]

    def hear(self) -> list[Heard]:
        while True:
            answer = self._sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            )
            messages = answer.get("Messages", [])
            if not messages:
                return self._heard
            for message in messages:
                self._heard.append(_heard(message))
                self._sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])


class TopicEar:
    """An SNS topic with one queue behind it, which gets what the filter lets through."""

    def __init__(
        self, server: AwsServer, *, fifo: bool = False, only: dict[str, Any] | None = None
    ) -> None:
        sns = server.client("sns")
        suffix = ".fifo" if fifo else ""
        attributes = {"FifoTopic": "true"} if fifo else {}
        made = sns.create_topic(Name=f"t{token_hex(4)}{suffix}", Attributes=attributes)
        self.arn: str = made["TopicArn"]
        self.in_order = fifo
        self.config = SnsSink(type="sns", topic_arn=self.arn, endpoint=server.endpoint)
        self._queue = QueueEar(server, fifo=fifo)
        wanted = {"RawMessageDelivery": "true"}
        if only is not None:
            wanted["FilterPolicy"] = json.dumps(only)
        sns.subscribe(
            TopicArn=self.arn, Protocol="sqs", Endpoint=self._queue.arn, Attributes=wanted
        )

    def hear(self) -> list[Heard]:
        return self._queue.hear()


class StreamEar:
    """A Kinesis stream of two shards, named by its name or its ARN."""

    def __init__(self, server: AwsServer, *, by_arn: bool = False, name: str | None = None) -> None:
        self._kinesis = server.client("kinesis")
        name = name or f"s{token_hex(4)}"
        wait_until(lambda: self._gone(name), "no other stream has the name")
        self._kinesis.create_stream(StreamName=name, ShardCount=2)
        self._name = name
        summary = wait_until(self._active, "the stream is active")
        self.in_order = True
        self.config = KinesisSink(
            type="kinesis",
            stream=summary["StreamARN"] if by_arn else name,
            endpoint=server.endpoint,
            region=None if by_arn else REGION,
        )

    def _gone(self, name: str) -> bool:
        return name not in self._kinesis.list_streams()["StreamNames"]

    def _active(self) -> Any:
        answer = self._kinesis.describe_stream_summary(StreamName=self._name)
        summary = answer["StreamDescriptionSummary"]
        return summary if summary["StreamStatus"] == "ACTIVE" else None

    def hear(self) -> list[Heard]:
        """By shard; what has the same partition key is in order."""
        shards = self._kinesis.list_shards(StreamName=self._name)["Shards"]
        return [heard for shard in shards for heard in self._of(shard["ShardId"])]

    def _of(self, shard: str) -> list[Heard]:
        begin = self._kinesis.get_shard_iterator(
            StreamName=self._name, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )
        iterator, found = begin["ShardIterator"], []
        while True:
            answer = self._kinesis.get_records(ShardIterator=iterator)
            if not answer["Records"]:
                return found
            for record in answer["Records"]:
                key = record["PartitionKey"]
                found.append(Heard(json.loads(record["Data"]), {"partition_key": key}, key))
            iterator = answer["NextShardIterator"]


EARS: dict[str, Callable[[AwsServer], Ear]] = {
    "sns": TopicEar,
    "sns-fifo": partial(TopicEar, fifo=True),
    "sqs": QueueEar,
    "sqs-fifo": partial(QueueEar, fifo=True),
    "kinesis": StreamEar,
    "kinesis-by-arn": partial(StreamEar, by_arn=True),
}


def _heard(message: dict[str, Any]) -> Heard:
    attributes = message.get("MessageAttributes", {})
    return Heard(
        json.loads(message["Body"]),
        {name: attribute["StringValue"] for name, attribute in attributes.items()},
        message.get("Attributes", {}).get("MessageGroupId"),
    )
