"""``read_table`` and ``format("laredo")``: the table at any boundary."""

from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from laredo_archive.errors import ArchiveMissing, NoSuchBoundary
from laredo_spark import read_table, register
from laredo_spark.errors import OptionRefused
from tests.archive.building import Builder, State, row, state


def _state(names: dict[int, str]) -> State:
    return state(*(row(number, name, '{"a": [1]}') for number, name in names.items()))


FIRST = {number: f"name {number}" for number in range(100)}
SECOND = {**FIRST, 7: "changed", 200: "new"}
del SECOND[50]
THIRD = {1: "alone"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    builder = Builder(tmp_path, formats=("jsonl", "protobuf"))
    builder.base(0x10, _state(FIRST)).diff(0x20, _state(SECOND))
    return builder.diff(0x30, _state(THIRD), truncate=True).write()


def rows(names: dict[int, str]) -> list[Row]:
    return [Row(id=number, name=name, doc='{"a": [1]}') for number, name in sorted(names.items())]


@pytest.mark.parametrize("format_id", ["jsonl", "protobuf"])
@pytest.mark.parametrize(
    ("as_of", "names"),
    [("0/10", FIRST), ("0/1F", FIRST), ("0/20", SECOND), ("0/30", THIRD), (None, THIRD)],
)
def test_at_every_boundary(
    spark: SparkSession, archive: Path, as_of: str | None, names: dict[int, str], format_id: str
) -> None:
    found = read_table(spark, str(archive), as_of, format=format_id)
    assert sorted(found.collect()) == rows(names)
    assert found.schema == StructType(
        [
            StructField("id", LongType()),
            StructField("name", StringType()),
            StructField("doc", StringType()),
        ]
    )


def test_by_its_format(spark: SparkSession, archive: Path) -> None:
    register(spark)
    found = spark.read.format("laredo").option("as_of", "0/20").load(archive.as_uri())
    assert found.where("id = 7").collect() == [Row(id=7, name="changed", doc='{"a": [1]}')]
    assert found.count() == len(SECOND)


def test_chosen_columns_and_one_key(spark: SparkSession, archive: Path) -> None:
    found = read_table(spark, str(archive), "0/20", columns=["name"], key="200")
    assert found.collect() == [Row(name="new")]


def test_what_cant_be_read_is_one_error(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissing, match="no archive there"):
        read_table(spark, str(tmp_path / "elsewhere"))
    with pytest.raises(NoSuchBoundary, match="no artifact ends exactly at 0/11"):
        read_table(spark, str(archive), "0/11", exact=True)
    with pytest.raises(OptionRefused, match="did you mean columns"):
        read_table(spark, str(archive), colums="id")
    with pytest.raises(OptionRefused, match="there are id, name, doc"):
        read_table(spark, str(archive), columns=["nam"])
