"""Sinks of notices: SNS topics, SQS queues and Kinesis streams."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from laredo_archive.aws.clients import AwsClients
from laredo_archive.aws.explain import Cause, explain, failures, iam_action
from laredo_archive.aws.profile import AMBIENT, AwsError
from laredo_snapshotter.config_outputs import KinesisSink, SinkConfig, SnsSink, SqsSink
from laredo_snapshotter.errors import SinkError, SinkRefused
from laredo_snapshotter.events.notices import Notice

Answer = TypeVar("Answer", bound=Mapping[str, Any])


class Sink(Protocol):
    """A service that is notified of artifacts. One thread at a time uses it."""

    @property
    def name(self) -> str:
        """The topic's ARN, the queue's URL, the stream's name or ARN: its key in ``notified``."""

    def send(self, notice: Notice) -> None:
        """Send ``notice``; when it returns, the service has it. May take a minute.

        :raises SinkError: if it hasn't, or may not have.
        """

    def check(self) -> str:
        """Check that the sink exists; return its description. Sends nothing.

        :raises SinkError: if it doesn't, or can't be asked.
        """


_CONNECTIONS = 64
"""Kept open at most: all tables that cut together notify a sink at the same time."""

_NOT_THE_NOTICE = frozenset(
    {
        Cause.THROTTLED,
        Cause.DENIED,
        Cause.EXPIRED,
        Cause.CLOCK_SKEW,
        Cause.NO_CREDENTIALS,
        Cause.ROLE,
        Cause.KMS,
        Cause.GONE,
        Cause.CONNECT,
        Cause.LOST,
        Cause.SERVER,
    }
)
"""Failures that aren't about the notice itself."""


class Asking:
    """Calls one AWS service about one sink, with the sink's credentials profile."""

    def __init__(
        self,
        clients: AwsClients,
        service: Literal["sns", "sqs", "kinesis"],
        config: SinkConfig,
        *,
        region: str | None,
        endpoint: str | None = None,
    ) -> None:
        """``region`` and ``endpoint``: the name's own, for a configuration that has none."""
        self.name = config.name
        self._clients = clients
        self._service = service
        self._credentials = config.credentials
        self._region = config.region or region
        self._endpoint = config.endpoint or endpoint

    def ask(self, operation: str, request: Callable[[Any], Answer], expected: str) -> Answer:
        """Send ``request`` to the service, and return its answer, which has the field ``expected``.

        :raises SinkError: with the request, its caller, the answer, and the cure.
        """
        try:
            client = self._client()
        except AwsError as unasked:
            raise SinkRefused(self.name, f"{self.name}: {unasked}") from unasked
        try:
            answer = request(client)
        except failures() as failure:
            raise self._error(operation, failure) from failure
        except (LookupError, TypeError, ValueError, AttributeError) as odd:
            # What botocore's parsers make of an answer of another kind.
            raise self._not_the_service(operation, expected) from odd
        if expected not in answer:
            raise self._not_the_service(operation, expected)
        return answer

    def _not_the_service(self, operation: str, expected: str) -> SinkError:
        # boto3 takes a foreign body for an answer without fields, as long as the status is 200.
        return SinkError(
            self.name,
            f"{iam_action(self._service, operation)} on {self.name} as profile"
            f" {self._credentials or AMBIENT.name}: the answer isn't the service's: it has no"
            f" {expected}. What to do: it is tried again; if this lasts, see what answers on the"
            " way (an endpoint that is another service's, a proxy)",
        )

    def _client(self) -> Any:
        return self._clients.client(
            self._service,
            credentials=self._credentials,
            region=self._region,
            endpoint=self._endpoint,
            connections=_CONNECTIONS,
        )

    def _error(self, operation: str, failure: Exception) -> SinkError:
        explained = explain(
            failure,
            service=self._service,
            operation=operation,
            credentials=self._credentials,
            resource=self.name,
        )
        refused = SinkError if explained.kind in _NOT_THE_NOTICE else SinkRefused
        return refused(self.name, explained.message, explained.kind.name)


# SNS topics, standard and FIFO.


class SnsTopic:
    """A sink that notifies of artifacts by sns:Publish.

    A FIFO topic (its name ends with .fifo) keeps the order of each table's notices.
    """

    def __init__(self, config: SnsSink, clients: AwsClients) -> None:
        self.name = config.name
        region = config.topic_arn.split(":")[3]
        self._asking = Asking(clients, "sns", config, region=region)

    def send(self, notice: Notice) -> None:
        """SNS API reference, Publish.

        :raises SinkError: if it hasn't, or may not have.
        """
        self._asking.ask(
            "Publish",
            lambda sns: sns.publish(
                TopicArn=self.name,
                Message=notice.to_json(),
                MessageAttributes=notice.attributes(),
                **notice.fifo_parameters(self.name),
            ),
            "MessageId",
        )

    def check(self) -> str:
        """SNS API reference, GetTopicAttributes.

        :raises SinkError: if it isn't there, or can't be asked.
        """
        answer: Mapping[str, Mapping[str, str]] = self._asking.ask(
            "GetTopicAttributes",
            lambda sns: sns.get_topic_attributes(TopicArn=self.name),
            "Attributes",
        )
        confirmed = answer["Attributes"].get("SubscriptionsConfirmed", "0")
        return f"topic with {confirmed} confirmed subscriptions"


# SQS queues, standard and FIFO.

# AWS General Reference, "Amazon SQS endpoints and quotas"; VPC endpoints have a name in front.
_AWS_HOST = re.compile(
    r"(?:vpce-[\w-]+\.)?sqs(?:-fips)?\.(?P<region>[a-z0-9-]+)"
    r"(?:\.vpce)?\.(?:amazonaws\.com(?:\.cn)?|api\.aws)"
    r"|(?:(?P<older>[a-z0-9-]+)\.)?queue\.amazonaws\.com(?:\.cn)?"
)
_OLDEST_REGION = "us-east-1"


class SqsQueue:
    """A sink that notifies of artifacts by sqs:SendMessage.

    A FIFO queue (its name ends with .fifo) keeps the order of each table's notices.
    """

    def __init__(self, config: SqsSink, clients: AwsClients) -> None:
        self.name = config.name
        region, endpoint = _at(config.queue_url)
        self._asking = Asking(clients, "sqs", config, region=region, endpoint=endpoint)

    def send(self, notice: Notice) -> None:
        """SQS API reference, SendMessage.

        :raises SinkError: if it hasn't, or may not have.
        """
        self._asking.ask(
            "SendMessage",
            lambda sqs: sqs.send_message(
                QueueUrl=self.name,
                MessageBody=notice.to_json(),
                MessageAttributes=notice.attributes(),
                **notice.fifo_parameters(self.name),
            ),
            "MessageId",
        )

    def check(self) -> str:
        """SQS API reference, GetQueueAttributes.

        :raises SinkError: if it isn't there, or can't be asked.
        """
        waiting = "ApproximateNumberOfMessages"
        answer: Mapping[str, Mapping[str, str]] = self._asking.ask(
            "GetQueueAttributes",
            lambda sqs: sqs.get_queue_attributes(QueueUrl=self.name, AttributeNames=[waiting]),
            "Attributes",
        )
        return f"queue with about {answer['Attributes'].get(waiting, '0')} messages"


def is_at_aws(config: SqsSink) -> bool:
    """True if the queue is at AWS, and not at another service with SQS's API."""
    host = urlsplit(config.queue_url).hostname or ""
    return config.endpoint is None and _AWS_HOST.fullmatch(host) is not None


def _at(queue_url: str) -> tuple[str | None, str]:
    """The region and the endpoint that a queue's URL names; not every host names a region."""
    parts = urlsplit(queue_url)
    endpoint = f"{parts.scheme}://{parts.netloc}"
    found = _AWS_HOST.fullmatch(parts.hostname or "")
    if found is None:
        return None, endpoint
    return found["region"] or found["older"] or _OLDEST_REGION, endpoint


# Kinesis data streams.

_WRITABLE = ("ACTIVE", "UPDATING")


class KinesisStream:
    """A sink that notifies of artifacts by kinesis:PutRecord.

    All notices of a table are in one shard, in order: the partition key is the table, and
    each record is put after the one before.
    """

    def __init__(self, config: KinesisSink, clients: AwsClients) -> None:
        self.name = config.name
        is_arn = config.stream.startswith("arn:")
        region = config.stream.split(":")[3] if is_arn else None
        self._stream = {"StreamARN" if is_arn else "StreamName": config.stream}
        self._asking = Asking(clients, "kinesis", config, region=region)
        self._after: str | None = None

    def send(self, notice: Notice) -> None:
        """Kinesis API reference, PutRecord.

        :raises SinkError: if it hasn't, or may not have.
        """
        after = {} if self._after is None else {"SequenceNumberForOrdering": self._after}
        try:
            answer: Mapping[str, Any] = self._asking.ask(
                "PutRecord",
                lambda kinesis: kinesis.put_record(
                    **self._stream,
                    Data=notice.to_json().encode(),
                    PartitionKey=notice.table,
                    **after,
                ),
                "SequenceNumber",
            )
        except SinkRefused:
            # A stream that was deleted and made again doesn't know the record before.
            self._after = None
            raise
        self._after = answer["SequenceNumber"]

    def check(self) -> str:
        """Kinesis API reference, DescribeStreamSummary.

        :raises SinkError: if it isn't there, can't be asked, or takes no records.
        """
        answer: Mapping[str, Mapping[str, Any]] = self._asking.ask(
            "DescribeStreamSummary",
            lambda kinesis: kinesis.describe_stream_summary(**self._stream),
            "StreamDescriptionSummary",
        )
        summary = answer["StreamDescriptionSummary"]
        if summary["StreamStatus"] not in _WRITABLE:
            raise SinkRefused(
                self.name,
                f"{self.name}: the stream is {summary['StreamStatus']} and takes no records;"
                " wait until it is ACTIVE, or name another",
            )
        return f"stream with {summary['OpenShardCount']} open shards"


# Makes the sinks that a configuration names.


def build(config: SinkConfig, clients: AwsClients) -> Sink:
    """The sink that ``config`` names. Nothing is asked of it yet."""
    if isinstance(config, SnsSink):
        return SnsTopic(config, clients)
    if isinstance(config, KinesisSink):
        return KinesisStream(config, clients)
    return SqsQueue(config, clients)
