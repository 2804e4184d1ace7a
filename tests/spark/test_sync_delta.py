"""``sync_table(to="delta")`` where Delta Lake isn't; tests/spark/delta has it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_spark import sync_table
from laredo_spark.sync.delta import fits
from laredo_spark.sync.errors import DeltaMissing
from tests.support.archive.building import Builder
from tests.support.spark_reading import names


def test_without_delta(spark: SparkSession, tmp_path: Path) -> None:
    archive = Builder(tmp_path / "archive").base(0x10, names({1: "a"})).write()
    with pytest.raises(DeltaMissing, match=r"laredo-snapshotter\[delta\]") as raised:
        sync_table(spark, str(archive), to="delta", target=tmp_path / "target")
    assert "PySpark 4.2 and delta-spark 4.4.0 fit together" in str(raised.value)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("version", "fit"), [("4.2.0", True), ("4.1.1", True), ("4.2.1", False), ("4.3.0", False)]
)
def test_which_spark_a_delta_is_for(version: str, fit: bool) -> None:
    assert fits(version, "pyspark<=4.2.0,>=4.0.1") is fit


@pytest.mark.parametrize(
    ("version", "requirement", "fit"),
    [
        ("4.2.0", "pyspark<=4.2", True),
        ("4.2", "pyspark>=4.2.0", True),
        ("4.2.0-amzn-1", "pyspark<=4.2.0", True),
        ("4.2.0.dev1", "pyspark>=4.2", True),
        ("4.2.1", "pyspark~=4.2.0", True),
        ("4.3.0", "pyspark~=4.2.0", False),
        ("4.2.0", "pyspark!=4.2.0,>=4.0", False),
        ("4.2.0", "pyspark==4.1.*", False),
        ("4.2.0", "pyspark==4.1.0; extra == 'old'", True),
        ("4.2.0", "pyspark>=4.0.1,<4.3rc1", True),
        ("unknown", "pyspark>=4.0.1", False),
    ],
)
def test_requirements_are_compared_as_pip_does(version: str, requirement: str, fit: bool) -> None:
    assert fits(version, requirement) is fit
