"""Kinesis data streams."""

from collections.abc import Mapping
from typing import Any

from laredo_archive.aws.clients import AwsClients
from laredo_snapshotter.config_outputs import KinesisSink
from laredo_snapshotter.errors import SinkRefused
from laredo_snapshotter.events.notice import Notice
from laredo_snapshotter.events.sink import Asking

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
