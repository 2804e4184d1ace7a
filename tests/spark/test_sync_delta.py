"""``sync_table(to="delta")`` where Delta Lake isn't; tests/spark/delta has it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone calls it
from pyspark.sql.types import LongType, StructField, StructType

from laredo_spark import options, sync_table
from laredo_spark.read.table_read import TableRead
from laredo_spark.session import quoted
from laredo_spark.sync.delta import fits
from laredo_spark.sync.errors import DeltaMissing, IcebergMissing, IcebergUnfit, TargetRefused
from laredo_spark.sync.iceberg import IcebergSync, IcebergTable, parts_of, refuse_other_spark
from laredo_spark.sync.merging import refuse_substituted, refuse_twins
from tests.support.archive.building import Builder
from tests.support.spark_reading import names


def test_without_delta(spark: SparkSession, tmp_path: Path) -> None:
    archive = Builder(tmp_path / "archive").base(0x10, names({1: "a"})).write()
    with pytest.raises(DeltaMissing, match=r"laredo-snapshotter\[delta\]") as raised:
        sync_table(spark, str(archive), to="delta", target=tmp_path / "target")
    assert "PySpark 4.2 and delta-spark 4.4.0 fit together" in str(raised.value)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("version", "requirement", "fit"),
    [
        ("4.1.1", "pyspark<=4.2.0,>=4.0.1", True),
        ("4.2.0", "pyspark<=4.2.0,>=4.0.1", True),
        ("4.2.1", "pyspark<=4.2.0,>=4.0.1", False),
        ("4.3.0", "pyspark<=4.2.0,>=4.0.1", False),
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


# ``sync_table(to="iceberg")`` where Iceberg isn't; tests/spark/iceberg has it.


def test_without_iceberg(spark: SparkSession, tmp_path: Path) -> None:
    archive = Builder(tmp_path / "archive").base(0x10, names({1: "a"})).write()
    with pytest.raises(IcebergMissing, match=r"laredo-snapshotter\[iceberg\]") as raised:
        sync_table(spark, str(archive), to="iceberg", target="lake.db.users")
    assert "runtimes of Iceberg for Spark 4.0 and 4.1" in str(raised.value)


@pytest.mark.parametrize(
    ("version", "fit"),
    [("4.1.4", True), ("4.1.1-amzn-0", True), ("4.0.2", False), ("4.3.0", False)],
)
def test_which_spark_a_runtime_is_for(version: str, fit: bool) -> None:
    jars = (
        "spark://127.0.0.1:4/jars/x.jar\n"
        "/ivy/jars/org.apache.iceberg_iceberg-spark-runtime-4.1_2.13-1.12.0.jar:/other.jar"
    )
    refuse_other_spark(version, "/jars/iceberg-core-1.12.0.jar")
    if fit:
        refuse_other_spark(version, jars)
    else:
        with pytest.raises(IcebergUnfit, match=rf"Iceberg 1.12.0 is for Spark 4.1, .* {version}"):
            refuse_other_spark(version, jars)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("lake.db.users", ("lake", "db", "users")),
        ("lake.a.b.`odd. ``name`", ("lake", "a", "b", "odd. `name")),
        ("lake.users", None),
        ("lake.db.", None),
        ("lake.db..users", None),
        ("lake.db.users x", None),
        ("lake.db.`users", None),
        ("/data/users", None),
        ("s3://lake/db.a.users", None),
        ("", None),
    ],
)
def test_names_of_tables(target: str, parts: tuple[str, ...] | None) -> None:
    if parts is not None:
        assert parts_of(target) == parts
    else:
        with pytest.raises(TargetRefused, match=r"CATALOG\.NAMESPACE\.TABLE"):
            parts_of(target)


def test_names_that_spark_takes_for_others(spark: SparkSession, tmp_path: Path) -> None:
    name = "${env:HOME}"
    read = spark.createDataFrame([(1,)], StructType([StructField(name, LongType())]))
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        read.where(f"{quoted(name)} = 1")
    assert read.where(F.col(quoted(name)) == 1).count() == 1
    with pytest.raises(TargetRefused, match=r"the name '\$\{env:HOME\}' has .* = false for this"):
        refuse_substituted(spark, "target", ("id", name))
    with pytest.raises(TargetRefused, match="'Name' and 'name' differ only in case"):
        refuse_twins(spark, "target", ("id", "Name", "name"))
    archive = Builder(tmp_path / "archive").base(0x10, names({1: "a"})).write()
    given, target = {"path": str(archive)}, f"lake.{quoted(name)}.t"
    sync = IcebergSync(
        spark, given, TableRead.of(options.parse(given)), IcebergTable(spark, target)
    )
    with pytest.raises(TargetRefused, match="for this session"):
        sync.run(rebuild=False)
    spark.conf.set("spark.sql.variable.substitute", "false")
    try:
        assert read.where(f"{quoted(name)} = 1").count() == 1
        refuse_substituted(spark, target, (target, name))
    finally:
        spark.conf.unset("spark.sql.variable.substitute")
