"""``count_rows``: the manifest's number where it has one, else Spark's count."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_archive.errors import NoSuchBoundary
from laredo_spark import count_rows, read_table
from laredo_spark.errors import OptionRefused
from tests.support.archive.building import Builder
from tests.support.spark_reading import names as _state

FIRST = {number: f"name {number}" for number in range(100)}
SECOND = {**FIRST, 7: "changed", 200: "new", 201: "new"}
THIRD = {1: "alone"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    builder = Builder(tmp_path).base(0x10, _state(FIRST)).diff(0x20, _state(SECOND))
    return builder.diff(0x30, _state(THIRD), truncate=True).write()


def without_rows(archive: Path) -> None:
    """As writers that count nothing leave it."""
    manifest = archive / "manifest.json"
    found = json.loads(manifest.read_text())
    for artifact in found["artifacts"]:
        artifact.pop("rows", None)
    manifest.write_text(json.dumps(found))


BOUNDARIES = [("0/10", FIRST), ("0/2F", SECOND), ("0/30", THIRD), (None, THIRD)]


@pytest.mark.parametrize(("as_of", "names"), BOUNDARIES)
def test_no_artifact_is_read(
    spark: SparkSession, archive: Path, as_of: str | None, names: dict[int, str]
) -> None:
    artifacts = list(archive.rglob("*.jsonl"))
    assert len(artifacts) == 3
    for artifact in artifacts:
        artifact.unlink()
    assert count_rows(spark, str(archive), as_of) == len(names)


@pytest.mark.parametrize(("as_of", "names"), BOUNDARIES)
def test_without_the_writers_number_rows_are_counted(
    spark: SparkSession, archive: Path, as_of: str | None, names: dict[int, str]
) -> None:
    without_rows(archive)
    assert count_rows(spark, str(archive), as_of) == len(names)


def test_one_key_is_counted(spark: SparkSession, archive: Path) -> None:
    assert count_rows(spark, str(archive), "0/20", key="200") == 1
    assert count_rows(spark, str(archive), "0/20", key="300") == 0


def test_a_boundary_that_is_not_there_is_refused(spark: SparkSession, archive: Path) -> None:
    with pytest.raises(NoSuchBoundary):
        count_rows(spark, str(archive), "0/15", exact=True)


def test_no_columns_are_refused(spark: SparkSession, archive: Path) -> None:
    """Spark would be given batches without rows, and count none."""
    with pytest.raises(OptionRefused, match=r"columns.*count_rows"):
        read_table(spark, str(archive), columns=[])
