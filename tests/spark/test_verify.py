"""``verify=True``: Spark's own functions against the manifest's rows and checksum."""

import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from laredo_model.checksum import StateChecksum
from laredo_spark import read_table
from laredo_spark.errors import NotEqual, NotProvable
from laredo_spark.read import unsorted
from tests.support import drawn
from tests.support.archive.building import Builder
from tests.support.spark_reading import manifest_of, names

FIRST = {number: f"name {number} é \U0001f600" for number in range(100)}
SECOND = {**FIRST, 7: "changed", 200: 'new "quoted" \\ '}
del SECOND[50]


def test_the_sum_of_md5s(spark: SparkSession) -> None:
    """Also where the parts carry into one another, and beyond 2^128."""
    chance = random.Random(5)
    lines = [f'{{"id":{chance.random()}}}' for _ in range(300)]
    expected = StateChecksum()
    expected.add([line.encode() for line in lines])
    total = sum(int(hashlib.md5(line.encode()).hexdigest(), 16) for line in lines)
    assert total > 1 << 130
    frame = spark.createDataFrame([(line,) for line in lines], "line string").repartition(3)
    assert unsorted.state_of(frame) == expected
    assert unsorted.state_of(frame.where("false")) == StateChecksum()


@pytest.mark.parametrize("shuffled", drawn.first(1, [True, False]), ids=["unsorted", "sorted"])
def test_every_boundary(spark: SparkSession, tmp_path: Path, shuffled: bool) -> None:
    builder = Builder(tmp_path, formats=("jsonl", "protobuf"), shuffled=shuffled)
    builder.base(0x10, names(FIRST)).diff(0x20, names(SECOND))
    archive = builder.diff(0x30, names({1: "alone"}), truncate=True).write()
    for as_of, format_id, count in (
        ("0/10", "protobuf", 100),
        ("0/20", "jsonl", 100),
        ("0/30", "jsonl", 1),
    ):
        found = read_table(
            spark, str(archive), as_of, verify=True, format=format_id, columns=["name"]
        )
        assert found.columns == ["name"] and found.count() == count


def _other_checksum(artifact: dict[str, Any]) -> None:
    artifact["state_checksum"] = "00" * 16


def _other_rows(artifact: dict[str, Any]) -> None:
    artifact["rows"] = 101


def _only_rows(artifact: dict[str, Any]) -> None:
    del artifact["state_checksum"]
    artifact["rows"] = 101


@pytest.mark.parametrize(
    ("change", "said"),
    drawn.first(
        2,
        [
            (_other_checksum, rf"has 100 rows with checksum {'00' * 16}, Spark read 100 rows with"),
            (_only_rows, r"has 101 rows, Spark read 100 rows\."),
            (_other_rows, r"has 101 rows with checksum (\w{32}), Spark read 100 rows with .* \1"),
        ],
    ),
)
def test_another_table_than_the_manifest_says(
    spark: SparkSession, tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    archive = Builder(tmp_path).base(0x10, names(FIRST)).diff(0x20, names(SECOND)).write()
    manifest_of(archive, lambda described: change(described["artifacts"][1]))
    with pytest.raises(NotEqual) as raised:
        read_table(spark, str(archive), verify=True)
    assert re.search(said, str(raised.value)), raised.value
    assert "laredo-archive verify" in str(raised.value)
    assert read_table(spark, str(archive), "0/10", verify=True).count() == 100


def test_a_file_whose_rows_look_right(spark: SparkSession, tmp_path: Path) -> None:
    """Read in slices, whose sha256 isn't known, and changed without a trace."""
    archive = Builder(tmp_path).base(0x10, names(FIRST)).write()
    [file] = archive.glob("epoch=1/*.jsonl")
    file.write_bytes(file.read_bytes().replace(b"name 42", b"name 43"))
    manifest_of(
        archive, lambda described: described["artifacts"][0]["formats"]["jsonl"].pop("sha256")
    )
    assert read_table(spark, str(archive)).count() == 100
    with pytest.raises(
        NotEqual, match=r"has 100 rows with checksum .* read 100 rows with checksum"
    ):
        read_table(spark, str(archive), verify=True)


def test_nothing_to_compare_with(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path, plain=True).base(0x10, names(FIRST)).diff(0x20, names(SECOND))
    archive = builder.write()
    with pytest.raises(NotProvable, match=r"at 0/20 .*verify=True has nothing to compare"):
        read_table(spark, str(archive), verify=True)
    # A base says how many rows it has, at least.
    assert read_table(spark, str(archive), "0/10", verify=True).count() == 100
