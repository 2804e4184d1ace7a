"""Archives on S3, through moto's server: no JAR, only boto3 where tasks run."""

from io import BytesIO
from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_archive.arrow.slices import PrefixReader
from laredo_archive.aws.profile import ProfileError
from laredo_archive.codec import jsonl
from laredo_archive.errors import ArtifactMissing, DestinationError
from laredo_spark import read_changes, read_table
from laredo_spark.changes import reader as reader_
from laredo_spark.errors import own_message
from tests.spark.change_stream import Stream
from tests.spark.simple_archive import AT_20, AT_30, AT_40, found, simple
from tests.support import drawn
from tests.support.archive.building import Builder
from tests.support.archive.s3_archive import put, reached
from tests.support.aws import AwsServer
from tests.support.spark_reading import Reading, names

FIRST = {number: f"name {number}" for number in range(100)}
SECOND = {**FIRST, 7: "changed", 200: "new"}


def built(directory: Path, *, shuffled: bool = False) -> Path:
    builder = Builder(directory, formats=("jsonl", "protobuf"), shuffled=shuffled)
    return builder.base(0x10, names(FIRST)).diff(0x20, names(SECOND)).write()


@pytest.mark.parametrize(
    ("scheme", "shuffled"),
    drawn.first(1, [("s3a", True), ("s3", False), ("s3", True), ("s3a", False)]),
)
def test_read_by_tasks(
    spark: SparkSession, moto: AwsServer, tmp_path: Path, scheme: str, shuffled: bool
) -> None:
    bucket = put(moto, built(tmp_path, shuffled=shuffled))
    table = read_table(spark, f"{scheme}://{bucket}/lake/users/", verify=True, **reached(moto))
    assert {row.id: row["name"] for row in table.collect()} == SECOND
    base = read_table(
        spark, f"{scheme}://{bucket}/lake/users", "0/10", format="protobuf", **reached(moto)
    )
    assert {row.id: row["name"] for row in base.collect()} == FIRST


def test_an_object_that_is_gone_or_cut_off(
    spark: SparkSession, moto: AwsServer, tmp_path: Path
) -> None:
    bucket = put(moto, built(tmp_path))
    place = f"s3://{bucket}/lake/users/"
    key = "lake/users/epoch=1/diff-0_10-0_20.jsonl"
    s3 = moto.client("s3")
    data = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    s3.put_object(Bucket=bucket, Key=key, Body=data[:-20])
    with pytest.raises(Exception, match="cut off") as raised:
        read_table(spark, place, partitions=1, **reached(moto)).collect()
    assert (own_message(raised.value) or "").startswith(f"s3://{bucket}/{key}: cut off: it has ")
    s3.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(ArtifactMissing, match=rf"s3://{bucket}/{key}: the manifest names"):
        Reading(place, **reached(moto)).rows()


@pytest.mark.thorough
def test_many_diffs_in_slices(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task's slices are fetched while others are read, and no further than they reach."""
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 2000)
    monkeypatch.setattr(jsonl, "DIFF_BLOCK", 500)
    builder = Builder(tmp_path)
    state = {number: f"name {number}" for number in range(300)}
    builder.base(0x10, names(state))
    for number in range(40):
        state |= dict.fromkeys(range(number, 300, 7), f"diff {number}")
        builder.diff(0x20 + number, names(state))
    bucket = put(moto, builder.write())
    made = Reading(f"s3://{bucket}/lake/users/", partitions=5, **reached(moto))
    reader, parts = made.partitions()
    assert len(parts) == 5
    assert sum(not part.whole for one in parts for part in one.reads[0].diffs) > 100
    lines = [line for part in parts for batch in reader.read(part) for line in batch.to_pylist()]
    assert len(lines) == 300 and {line["id"]: line["name"] for line in lines} == state
    key = "lake/users/epoch=1/diff-0_30-0_31.jsonl"
    moto.client("s3").delete_object(Bucket=bucket, Key=key)
    with pytest.raises(ArtifactMissing, match=rf"s3://{bucket}/{key}: the manifest names"):
        made.rows()


def test_changes_and_a_stream_of_them(spark: SparkSession, moto: AwsServer, tmp_path: Path) -> None:
    bucket = put(moto, simple(tmp_path / "archive").write())
    given = {**reached(moto), "max_diffs_per_trigger": "2"}
    changes = read_changes(spark, f"s3a://{bucket}/lake/users/", **given)
    assert found(changes) == AT_20 + AT_30 + AT_40
    stream = Stream(spark, f"s3://{bucket}/lake/users/manifest.json", tmp_path, **given)
    stream.run()
    assert stream.found() == AT_20 + AT_30 + AT_40


@pytest.mark.thorough
def test_changes_of_many_diffs_in_slices(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The diffs of a task are fetched ahead; of a large one only the pieces that are asked for."""
    monkeypatch.setattr(jsonl, "DIFF_BLOCK", 500)
    monkeypatch.setattr(reader_, "TASK_BYTES", 5000)
    builder = Builder(tmp_path).base(0x10, names({}))
    state: dict[int, str] = {}
    for number in range(20):
        state |= dict.fromkeys(range(number, 300, 7 if number % 10 else 1), f"diff {number}")
        builder.diff(0x20 + number, names(state))
    archive = builder.write()
    place = f"s3://{put(moto, archive)}/lake/users/"
    asked: tuple[list[dict[str, object]], ...] = (
        [{"partitions": 3}, {"key": "120"}],
        [{}, {"key": "0"}],
    )
    for given in chain(*drawn.in_turn(asked, 0)):
        here = Reading(archive, mode="changes", **given).rows()
        there = Reading(place, mode="changes", **given, **reached(moto)).rows()
        assert here == there
        assert here
    source, tasks = Reading(place, mode="changes", partitions=3, **reached(moto)).partitions()
    assert len(tasks) == 3
    key = "lake/users/epoch=1/diff-0_32-0_33.jsonl"
    moto.client("s3").delete_object(Bucket=place.split("/")[2], Key=key)
    with pytest.raises(ArtifactMissing, match=f"{key}: the manifest names"):
        [line for task in tasks for line in source.read(task)]


def test_a_slice_ends_where_it_says() -> None:
    source = PrefixReader(BytesIO(b"abcdef"), 4)
    assert [source.read(3), source.read(3), source.read()] == [b"abc", b"d", b""]


def test_no_such_bucket_says_whose_rights_and_what(moto: AwsServer) -> None:
    with pytest.raises(DestinationError, match="nobody-has-this-bucket") as raised:
        Reading("s3://nobody-has-this-bucket/users/", **reached(moto))
    assert "\n" not in str(raised.value)


def test_a_profile_and_a_role(
    moto: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto takes any key, so what was asked for is what tells: STS, by the profile's key."""
    bucket = put(moto, built(tmp_path))
    credentials = tmp_path / "credentials"
    credentials.write_text(
        "[analyst]\naws_access_key_id = AKIAANALYST\naws_secret_access_key = x\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.endpoint)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    place = f"s3://{bucket}/lake/users/"
    asked = {**reached(moto), "profile": "analyst"}
    assert Reading(place, **asked).ids() == sorted(SECOND)
    role = {"role_arn": "arn:aws:iam::123456789012:role/reader", "external_id": "seven"}
    assert Reading(place, **asked, **role).ids() == sorted(SECOND)
    with pytest.raises(ProfileError, match="nobody"):
        Reading(place, **{**asked, "profile": "nobody"})
