"""SQS queues, standard and FIFO."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from laredo_archive.aws.clients import AwsClients
from laredo_snapshotter.config_outputs import SqsSink
from laredo_snapshotter.events.notice import Notice
from laredo_snapshotter.events.sink import Asking

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
