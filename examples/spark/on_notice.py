"""A Spark job that starts from the snapshotter's notices in an SQS queue.

For each notice it reads the artifact's rows or changes, and writes them as Parquet below TARGET:

    TARGET/public.users/epoch=2/snapshot-0_19F000/        the table, as of a new base
    TARGET/public.users/epoch=2/diff-0_19F000-0_1A2B3C/   action, position, key, old, new

A notice may come twice, and in any order: each artifact has a directory of its own, which is
replaced as a whole, and a message is deleted after its directory is written. A message that fails
stays in the queue, and comes again after its visibility timeout: give the queue a redrive policy.

    python -m examples.spark.on_notice QUEUE_URL TARGET --until-empty

To keep one table caught up with its archive, call laredo_spark.sync_table at each notice instead.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import click
from pyspark.sql import DataFrame, SparkSession

from laredo_spark import read_changes, read_table

WAIT_SECONDS = 20
"""Long polling's most: SQS API reference, ReceiveMessage."""


@dataclass(frozen=True)
class Notice:
    """Fields of a notice that matter here."""

    table: str
    kind: str
    epoch: int
    from_position: str | None
    to_position: str
    manifest_uri: str

    @classmethod
    def parse(cls, body: str) -> "Notice":
        """From a message, sent by the snapshotter or passed on by an SNS topic."""
        content = json.loads(body)
        if content.get("Type") == "Notification":
            content = json.loads(content["Message"])
        return cls(**{name: content[name] for name in cls.__dataclass_fields__})

    @property
    def directory(self) -> str:
        """Directory for its rows, below TARGET."""
        window = [self.kind, self.from_position, self.to_position]
        name = "-".join(part.replace("/", "_") for part in window if part)
        return f"{self.table}/epoch={self.epoch}/{name}"


def read(spark: SparkSession, notice: Notice, **options: Any) -> DataFrame:
    """The table at a base; the changes of a diff."""
    if notice.kind == "snapshot":
        return read_table(
            spark,
            notice.manifest_uri,
            notice.to_position,
            exact=True,
            epoch=notice.epoch,
            **options,
        )
    return read_changes(
        spark,
        notice.manifest_uri,
        after=notice.from_position,
        until=notice.to_position,
        exact=True,
        **options,
    )


def messages(sqs: Any, queue_url: str, *, until_empty: bool) -> Iterator[Any]:
    """The queue's messages, one after the other; for ever, or until there is none."""
    # Without a wait SQS asks some of its servers only, and an answer may be empty too early.
    wait = 1 if until_empty else WAIT_SECONDS
    while True:
        answer = sqs.receive_message(QueueUrl=queue_url, WaitTimeSeconds=wait)
        yield from answer.get("Messages", [])
        if until_empty and not answer.get("Messages"):
            return


@click.command()
@click.argument("queue_url")
@click.argument("target")
@click.option("--until-empty", is_flag=True, help="End when the queue is empty.")
@click.option("--endpoint", help="Endpoint of SQS and S3, for other clouds and for tests.")
def main(*, queue_url: str, target: str, until_empty: bool, endpoint: str | None) -> None:
    """Write the rows or changes of each notice in QUEUE_URL below TARGET."""
    spark = SparkSession.builder.appName("laredo notices").getOrCreate()
    sqs = boto3.client("sqs", endpoint_url=endpoint)
    options = {"endpoint": endpoint, "addressing": "path"} if endpoint else {}
    for message in messages(sqs, queue_url, until_empty=until_empty):
        notice = Notice.parse(message["Body"])
        rows = read(spark, notice, **options)
        rows.write.mode("overwrite").parquet(f"{target}/{notice.directory}")
        sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=message["ReceiptHandle"])
        click.echo(f"{notice.directory} written")


if __name__ == "__main__":
    main()
