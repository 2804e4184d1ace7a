"""SNS topics, standard and FIFO."""

from collections.abc import Mapping

from laredo_archive.aws.clients import AwsClients
from laredo_snapshotter.config_outputs import SnsSink
from laredo_snapshotter.events.notice import Notice
from laredo_snapshotter.events.sink import Asking


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
