"""``sync_table(to="delta")``: without Delta Lake what is missing is said; with it, level."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laredo_spark import sync_table
from laredo_spark.sync_errors import DeltaMissing
from tests.archive.building import Builder
from tests.spark.reading import names


def test_without_delta(spark: SparkSession, tmp_path: Path) -> None:
    archive = Builder(tmp_path / "archive").base(0x10, names({1: "a"})).write()
    with pytest.raises(DeltaMissing, match=r"laredo-snapshotter\[delta\]"):
        sync_table(spark, str(archive), to="delta", target=tmp_path / "target")
    assert not (tmp_path / "target").exists()
