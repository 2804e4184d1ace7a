"""``.schema(...)`` chooses columns, by name and in its order; what the table hasn't is refused."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from laredo_archive.errors import NoSuchBoundary
from laredo_spark import count_rows, read_table, register
from laredo_spark.errors import OptionRefused, own_message
from tests.support.archive.building import Builder
from tests.support.spark_reading import names as _state

FIRST = {number: f"name {number}" for number in range(40)}
SECOND = {**FIRST, 7: "changed"}


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    formats = ("jsonl", "protobuf")
    builder = Builder(tmp_path, formats=formats, base_formats=(*formats, "parquet"))
    return builder.base(0x10, _state(FIRST)).diff(0x20, _state(SECOND))


def loaded(
    spark: SparkSession, archive: Path, schema: str | StructType, **options: str
) -> DataFrame:
    register(spark)
    reader = spark.read.format("laredo").options(**options)
    return reader.schema(schema).load(str(archive))


@pytest.mark.parametrize("format_id", ["jsonl", "protobuf", "parquet"])
def test_its_columns_in_its_order(spark: SparkSession, builder: Builder, format_id: str) -> None:
    found = loaded(spark, builder.write(), "name string, id bigint", format=format_id)
    expected = [Row(name=name, id=number) for number, name in SECOND.items()]
    assert sorted(found.collect()) == sorted(expected)
    one = loaded(spark, builder.write(), "name string", format=format_id)
    assert sorted(one.collect()) == sorted(Row(name=name) for name in SECOND.values())


def test_a_view_with_columns(spark: SparkSession, builder: Builder) -> None:
    register(spark)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW chosen (name STRING, id BIGINT) USING laredo"
        f" OPTIONS (path '{builder.write()}')"
    )
    assert spark.sql("SELECT * FROM chosen WHERE id = 7").collect() == [Row(name="changed", id=7)]


def test_the_key_needs_no_column(spark: SparkSession, builder: Builder) -> None:
    assert loaded(spark, builder.write(), "name string", key="7").collect() == [Row(name="changed")]


def test_it_stays_at_its_boundary_from_the_first_action(
    spark: SparkSession, builder: Builder
) -> None:
    found = loaded(spark, builder.write(), "name string")
    assert found.count() == len(SECOND)
    builder.diff(0x30, _state({1: "alone"})).write()
    assert found.where("name = 'changed'").count() == 1


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id bigint, nam string", "there is no column nam. The table has struct<id:bigint,"),
        ("id int", "column id is bigint, not int. The table has"),
        (StructType([]), "name each column once, and one at least (count_rows() counts rows)"),
    ],
)
def test_what_the_table_has_not_is_one_error(
    spark: SparkSession, builder: Builder, schema: str | StructType, message: str
) -> None:
    found = loaded(spark, builder.write(), schema)
    with pytest.raises(Exception, match="SchemaUnfit") as failed:
        found.count()
    told = own_message(failed.value)
    assert told is not None and message in told and "\n" not in told


# ``count_rows``: the manifest's number where it has one, else Spark's count.


FIRST_COUNTED = {number: f"name {number}" for number in range(100)}
COUNTED = {**FIRST_COUNTED, 7: "changed", 200: "new", 201: "new"}
ALONE = {1: "alone"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    builder = Builder(tmp_path).base(0x10, _state(FIRST_COUNTED)).diff(0x20, _state(COUNTED))
    return builder.diff(0x30, _state(ALONE), truncate=True).write()


def without_rows(archive: Path) -> None:
    """As writers that count nothing leave it."""
    manifest = archive / "manifest.json"
    found = json.loads(manifest.read_text())
    for artifact in found["artifacts"]:
        artifact.pop("rows", None)
    manifest.write_text(json.dumps(found))


BOUNDARIES = [("0/10", FIRST_COUNTED), ("0/2F", COUNTED), ("0/30", ALONE), (None, ALONE)]


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
