"""``sync_table(to="delta")`` into a bucket, by Spark's own connector."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_spark import sync_table
from laredo_spark.sync.errors import TargetRefused
from laredo_spark.sync.sync import SyncOutcome
from tests.support.archive.building import Builder
from tests.support.aws import REGION, AwsServer
from tests.support.spark_reading import Reading, names

FIRST = {number: f"name {number}" for number in range(100)}


@pytest.fixture
def bucket(spark: SparkSession, moto: AwsServer) -> Iterator[str]:
    settings = {
        "fs.s3a.endpoint": moto.endpoint,
        "fs.s3a.endpoint.region": REGION,
        "fs.s3a.path.style.access": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield moto.new_bucket()
    for name in settings:
        spark.conf.unset(name)


def test_equal_at_each_boundary(
    spark: SparkSession, moto: AwsServer, bucket: str, tmp_path: Path
) -> None:
    builder = Builder(tmp_path / "archive").base(0x10, names(FIRST))
    target = f"s3a://{bucket}/lake/users"

    def sync() -> SyncOutcome:
        done = sync_table(spark, str(builder.write()), to="delta", target=target)
        rows = spark.read.format("delta").load(target).collect()
        found = sorted((row.asDict() for row in rows), key=lambda row: row["id"])
        assert found == sorted(Reading(builder.write()).rows(), key=lambda row: row["id"])
        assert len(found) == done.rows == len(builder.states[-1])
        return done.outcome

    assert sync() is SyncOutcome.REBUILT
    changed = {number: name for number, name in FIRST.items() if number != 8}
    builder.diff(0x20, names({**changed, 7: "new", 999: "more"}))
    assert (sync(), sync()) == (SyncOutcome.MERGED, SyncOutcome.UNCHANGED)
    builder.base(0x40, names({1: "after a gap"}), continues=False)
    assert sync() is SyncOutcome.REBUILT
    written = moto.client("s3").list_objects_v2(Bucket=bucket, Prefix="lake/users/_delta_log/")
    commits = [one["Key"] for one in written["Contents"] if one["Key"].endswith(".json")]
    assert len(commits) == len(("first", "merge", "gap"))


def test_another_ones_table_is_refused(spark: SparkSession, bucket: str, tmp_path: Path) -> None:
    target = f"s3a://{bucket}/users"
    spark.range(3).write.format("delta").save(target)
    archive = Builder(tmp_path / "archive").base(0x10, names(FIRST)).write()
    with pytest.raises(TargetRefused, match="without a commit of laredo's"):
        sync_table(spark, str(archive), to="delta", target=target)
