"""``.schema(...)`` chooses columns, by name and in its order; what the table hasn't is refused."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from laredo_spark import register
from laredo_spark.errors import own_message
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
