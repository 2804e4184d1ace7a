"""``read_table`` and ``format("laredo")``: the table at any boundary."""

import json
import re
from itertools import chain
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from laredo_archive.errors import NoSuchBoundary
from laredo_spark import frames, options, read_changes, read_table, register
from laredo_spark.errors import KeyMissing, OptionRefused, own_message
from laredo_spark.frames import PUSH_FILTERS
from laredo_spark.read.table_read import TableRead
from laredo_spark.sync import merging
from tests.support import drawn
from tests.support.archive.building import Builder
from tests.support.spark_reading import names as _state

FIRST = {number: f"name {number}" for number in range(100)}
SECOND = {**FIRST, 7: "changed", 200: "new"}
del SECOND[50]
THIRD = {1: "alone"}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    formats = ("jsonl", "protobuf")
    builder = Builder(tmp_path, formats=formats, base_formats=(*formats, "parquet"))
    builder.base(0x10, _state(FIRST)).diff(0x20, _state(SECOND))
    return builder.diff(0x30, _state(THIRD), truncate=True).write()


def rows(names: dict[int, str]) -> list[Row]:
    return [Row(id=number, name=name, doc='{"a": [1]}') for number, name in sorted(names.items())]


def test_in_another_session_of_the_same_program(spark: SparkSession, archive: Path) -> None:
    """Spark looks for the name in the active session only, which is the first one here."""
    register(spark)
    active = SparkSession.getActiveSession()
    other = spark.newSession()
    register(other)
    register(other)
    assert other.read.format("laredo").load(str(archive)).count() == len(THIRD)
    assert read_table(spark.newSession(), str(archive)).count() == len(THIRD)
    assert SparkSession.getActiveSession() is active


def test_create_table_is_refused_and_the_view_named(spark: SparkSession, archive: Path) -> None:
    register(spark)
    options = f"OPTIONS (path '{archive}')"
    with pytest.raises(AnalysisException, match="write CREATE TEMPORARY VIEW name USING laredo"):
        spark.sql(f"CREATE TABLE held USING laredo {options}")
    spark.sql(f"CREATE TEMPORARY VIEW shown USING laredo {options}")
    assert spark.sql("SELECT count(*) FROM shown").collect() == [(len(THIRD),)]


def test_chosen_columns_and_one_key(spark: SparkSession, archive: Path) -> None:
    found = read_table(spark, str(archive), "0/20", columns=["name"], key="200")
    assert found.collect() == [Row(name="new")]


def test_what_cant_be_read_is_one_error(spark: SparkSession, archive: Path) -> None:
    with pytest.raises(NoSuchBoundary, match="no artifact ends exactly at 0/11"):
        read_table(spark, str(archive), "0/11", exact=True)
    with pytest.raises(OptionRefused, match="the table's columns are id, name, doc"):
        read_table(spark, str(archive), columns=["nam"])


def test_a_dataframe_stays_at_its_boundary(spark: SparkSession, tmp_path: Path) -> None:
    """Also one by its format, which Spark plans anew for every action."""
    builder = Builder(tmp_path).base(0x10, _state(FIRST))
    archive = builder.write()
    register(spark)
    made = [read_table(spark, str(archive)), spark.read.format("laredo").load(str(archive))]
    builder.diff(0x20, _state(THIRD)).write()
    assert [frame.count() for frame in made] == [100, 100]
    joined = made[1].alias("a").join(made[1].alias("b"), "id")
    assert joined.count() == 100
    assert spark.read.format("laredo").load(str(archive)).count() == 1


def test_keys_are_pushed_down_where_the_session_has_it_on(
    spark: SparkSession, archive: Path
) -> None:
    spark.conf.set(PUSH_FILTERS, "true")
    try:
        found = read_table(spark, str(archive), "0/20")
        assert found.where("id = 7").collect() == rows({7: "changed"})
        assert sorted(found.where("id IN (1, 50, 200)").collect()) == rows(
            {1: "name 1", 200: "new"}
        )
        assert found.where("id = 1 OR id = 2").count() == 2
        assert found.where("id = 7 AND name = 'other'").count() == 0
        assert found.where("id IS NULL").count() == 0
        assert found.where("id > 90 AND doc IS NOT NULL").count() == 10
        assert found.count() == len(SECOND)
    finally:
        spark.conf.unset(PUSH_FILTERS)


def test_damage_that_a_task_finds_is_one_message(spark: SparkSession, archive: Path) -> None:
    [file] = archive.glob("epoch=1/snapshot-*.jsonl")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(Exception, match="cut off") as raised:
        read_table(spark, str(archive), "0/10", partitions=1).collect()
    message = own_message(raised.value)
    assert message is not None and message.startswith(f"file://{file}: cut off: it has ")
    assert message.endswith("Restore it from another destination, or read that one")
    assert "The above exception" not in str(raised.value)


def test_what_goes_wrong_by_its_format_is_one_message(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    register(spark)
    for given, expected in [
        ({"path": str(tmp_path / "elsewhere")}, "no archive there"),
        ({"path": str(archive), "as_of": "0/5"}, "0/5 is before its first boundary, 0/10"),
        ({"path": str(archive), "colums": "id"}, "did you mean columns?"),
        ({}, "option path = '': is required"),
    ]:
        with pytest.raises(AnalysisException) as raised:
            spark.read.format("laredo").options(**given).load()
        assert expected in (own_message(raised.value) or ""), raised.value


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("format_id", "plain"),
    drawn.first(1, [("protobuf", True), ("jsonl", False), ("jsonl", True), ("protobuf", False)]),
)
def test_files_without_order_are_joined(
    spark: SparkSession, tmp_path: Path, format_id: str, plain: bool
) -> None:
    builder = Builder(tmp_path, shuffled=True, plain=plain, formats=(format_id,))
    builder.base(0x10, _state(FIRST)).diff(0x20, _state(SECOND))
    builder.diff(0x30, _state(THIRD), truncate=True)
    archive = builder.diff(0x40, _state({**THIRD, 2: "two"})).write()
    last = {**THIRD, 2: "two"}
    asked = ([("0/20", SECOND), ("0/40", last)], [("0/10", FIRST), ("0/30", THIRD)])
    for as_of, names in chain(*drawn.in_turn(asked, 0)):
        found = read_table(spark, str(archive), as_of, key_fields=["id"])
        assert sorted(found.select("id", "name", "doc").collect()) == rows(names)
    found = read_table(spark, str(archive), "0/20", columns=["name"], key="200")
    assert found.collect() == [Row(name="new")]


def by_format(spark: SparkSession, path: str) -> object:
    register(spark)
    return spark.read.format("laredo").load(path).collect()


def by_plan(_: SparkSession, path: str) -> object:
    return merging.plan_step("a target", None, TableRead.of(options.parse({"path": path})))


@pytest.mark.parametrize("read", [by_format, read_changes, by_plan])
def test_what_goes_by_keys_refuses_a_table_without_one(
    spark: SparkSession, archive: Path, read: object
) -> None:
    manifest = json.loads((archive / "manifest.json").read_text())
    for artifact in manifest["artifacts"]:
        artifact["key_fields"] = []
        for column in artifact.get("columns", []):
            column["key_ordinal"] = None
    (archive / "manifest.json").write_text(json.dumps(manifest))
    assert callable(read)
    with pytest.raises((KeyMissing, AnalysisException)) as refused:
        read(spark, str(archive))
    assert re.search("has no key.*Read the table with read_table", str(refused.value))


def test_explain_names_the_archive_the_position_and_the_filters(
    spark: SparkSession, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.set(PUSH_FILTERS, "true")
    try:
        read_table(spark, str(archive), "0/2F", columns=["id"]).where("id = 7").explain()
    finally:
        spark.conf.unset(PUSH_FILTERS)
    read_table(spark, str(archive), key="7").explain()
    read_changes(spark, str(archive), "0/10", "0/20").explain()
    table, key, changes = capsys.readouterr().out.split("== Physical Plan ==\n")[1:]
    assert f"BatchScan laredo {archive.as_uri()}/ as of 0/20[id#" in table
    assert "(id#" in table
    assert " = 7)" in table
    assert f"BatchScan laredo {archive.as_uri()}/ as of 0/30, key 7[id#" in key
    assert f"BatchScan laredo changes of {archive.as_uri()}/ after 0/10 until 0/20[" in changes


def test_spark_is_given_no_more_names_than_it_can_keep(spark: SparkSession, archive: Path) -> None:
    session = spark.newSession()
    assert frames.named(session, "laredo first", most=1) == "laredo first"
    assert frames.named(session, "laredo second", most=1) == "laredo"
    assert frames.named(session, "laredo first", most=1) == "laredo first"
    assert frames.named(spark.newSession(), "laredo second", most=1) == "laredo second"
