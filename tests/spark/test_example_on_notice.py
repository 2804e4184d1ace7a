"""examples/spark/on_notice.py on moto, with notices as the snapshotter sends them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from examples.spark.on_notice import main
from laredo_archive.manifest import parser
from laredo_archive.manifest.updates import NoticeSource
from laredo_snapshotter.events.notices import Notice
from tests.support.aws import AwsServer
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth

NAME = "mixed"


def uploaded(moto: AwsServer) -> NoticeSource:
    """The golden archive in a bucket."""
    bucket = moto.new_bucket()
    for path in (ARCHIVES / NAME).rglob("*"):
        if path.is_file():
            key = path.relative_to(ARCHIVES).as_posix()
            moto.client("s3").put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    uri = f"s3://{bucket}/{NAME}/manifest.json"
    text = (ARCHIVES / NAME / "manifest.json").read_bytes()
    return NoticeSource(uri, parser.parse(text, uri))


@pytest.mark.thorough
def test_every_notice_is_read_and_written_once(
    spark: SparkSession, moto: AwsServer, tmp_path: Path
) -> None:
    published = uploaded(moto)
    sqs = moto.client("sqs")
    queue = sqs.create_queue(QueueName="notices")["QueueUrl"]
    bodies = [Notice.of(each, published).to_json() for each in published.manifest.artifacts]
    from_a_topic = json.dumps({"Type": "Notification", "Message": bodies[1]})
    for body in (*bodies, bodies[1], from_a_topic):
        sqs.send_message(QueueUrl=queue, MessageBody=body)

    arguments = [queue, str(tmp_path), "--until-empty", "--endpoint", moto.endpoint]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert done.output.count("written") == 6
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    written = tmp_path / "public.mixed" / "epoch=1"
    assert sorted(path.name for path in written.iterdir()) == [
        "diff-0_10-0_20",
        "diff-0_20-0_30",
        "diff-0_30-0_40",
        "snapshot-0_10",
    ]
    assert spark.read.parquet(str(written / "snapshot-0_10")).count() == 0
    first = spark.read.parquet(str(written / "diff-0_10-0_20")).collect()
    added = Truth(TRUTHS / NAME).state("1-0_20")
    assert {row.key for row in first} == added.keys()
    assert {(row.action, row.old) for row in first} == {("INSERT", None)}
    last = spark.read.parquet(str(written / "diff-0_30-0_40")).collect()
    assert sorted((row.action, row.key, row.position) for row in last) == [
        ("DELETE", "1", "0/40"),
        ("INSERT", "3", "0/40"),
    ]
