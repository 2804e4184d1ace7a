"""``read_changes`` and mode = changes: what changed between any two boundaries."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.datasource import EqualTo, Filter

from laredo_archive.codec import jsonl
from laredo_archive.errors import NoSuchBoundary
from laredo_model.column import Column
from laredo_spark import read_changes, read_table, register
from laredo_spark.changes import reader
from laredo_spark.changes.plan import ChangesRead
from laredo_spark.errors import (
    ArchiveBehind,
    BoundaryGone,
    ChangesGone,
    ColumnUnfit,
    OptionRefused,
    own_message,
)
from laredo_spark.options import parse
from tests.spark.simple_archive import (
    AT_20,
    AT_30,
    AT_40,
    FOUR,
    ONE,
    SNAPSHOT_30,
    THREE,
    TWO,
    found,
    simple,
    sorted_changes,
)
from tests.support import drawn
from tests.support.archive.building import COLUMNS, HISTORY, START, Builder, row, state
from tests.support.spark_reading import Reading, together

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(
    ("format_id", "shuffled"),
    drawn.first(1, [("jsonl", False), ("protobuf", True), ("jsonl", True), ("protobuf", False)]),
)
def test_all_of_them_through_an_epoch_that_continues(
    spark: SparkSession, tmp_path: Path, format_id: str, shuffled: bool
) -> None:
    archive = simple(tmp_path, formats=(format_id,), shuffled=shuffled).write()
    changes = read_changes(spark, str(archive))
    assert found(changes) == AT_20 + AT_30 + AT_40
    row_type = "struct<id:bigint,name:string,doc:string>"
    assert changes.schema.simpleString() == (
        f"struct<action:string,position:string,key:string,old:{row_type},new:{row_type}>"
    )


BETWEEN: list[tuple[Any, Any, list[Any]]] = [
    ("0/20", "0/30", AT_30),
    ("0/2F", "0/3F", AT_30),
    ("0/30", None, AT_40),
    (START + timedelta(seconds=0x20), START + timedelta(seconds=0x31), AT_30),
    ("0/40", None, []),
    ("head", None, []),
    ("0/20", "0/20", []),
]


def test_between_boundaries(spark: SparkSession, tmp_path: Path) -> None:
    archive = str(simple(tmp_path).write())
    frames = {str(asked): read_changes(spark, archive, *asked) for *asked, _ in BETWEEN}
    rows = together(frames)
    for *asked, expected in BETWEEN:
        assert sorted_changes(row[:-1] for row in rows[str(asked)]) == expected, asked


def test_by_its_format_with_more_columns(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    options = {"mode": "changes", "after": "0/30", "also": "epoch,lsn,time", "columns": "name"}
    changes = spark.read.format("laredo").options(**options).load(simple(tmp_path).write().as_uri())
    at = datetime.fromtimestamp((START + timedelta(seconds=0x40)).timestamp())
    assert found(changes.where("key = '9'")) == [
        ("UPDATE", "0/40", "9", Row(name="alone"), Row(name="Alone"), 2, 0x40, at)
    ]


@pytest.mark.parametrize("format_id", drawn.first(1, ["protobuf", "jsonl"]))
def test_every_type_is_as_in_the_table(spark: SparkSession, format_id: str) -> None:
    place = str(GOLDEN / "archives" / "types")
    options = {"format": format_id, "special_values": "string", "array_dimensions": "grid=0"}
    before, after = (
        {str(row.id): repr(row) for row in read_table(spark, place, at, **options).collect()}
        for at in ("0/10", "0/20")
    )
    changes = read_changes(spark, place, "0/10", "0/20", **options).collect()
    assert {row.action for row in changes} == {"INSERT", "UPDATE", "DELETE"}
    for change in changes:
        assert repr(change.old) == before.get(change.key, "None")
        assert repr(change.new) == after.get(change.key, "None")


def test_a_gap_names_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    archive = str(builder.base(0x30, THREE, continues=False).diff(0x40, FOUR).write())
    with pytest.raises(ChangesGone, match=r"after 0/20 \(epoch 1\).*missed.*on_gap"):
        read_changes(spark, archive)
    assert found(read_changes(spark, archive, until="0/20")) == AT_20
    assert found(read_changes(spark, archive, "0/30")) == AT_40
    changes = read_changes(spark, archive, "0/10", on_gap="snapshot")
    assert found(changes) == AT_20 + SNAPSHOT_30 + AT_40


def test_retention_has_removed_what_comes_next(spark: SparkSession, tmp_path: Path) -> None:
    builder = simple(tmp_path)
    del builder.artifacts[:3]
    archive = str(builder.write())
    with pytest.raises(ChangesGone, match="retention has removed"):
        read_changes(spark, archive, "0/20", history=HISTORY, epoch=1)
    with pytest.raises(ChangesGone, match="the oldest boundary is 0/30"):
        read_changes(spark, archive, "0/20")
    # Where the epoch before ended the next one goes on.
    assert found(read_changes(spark, archive, "0/30", history=HISTORY, epoch=1)) == AT_40
    asked = [{"after": "0/20", "history": HISTORY}, {"after": "0/20"}, {}]
    frames = {str(of): read_changes(spark, archive, on_gap="snapshot", **of) for of in asked}
    assert len(frames) == 3
    for rows in together(frames).values():
        assert sorted_changes(row[:-1] for row in rows) == SNAPSHOT_30 + AT_40
    with pytest.raises(ChangesGone, match="nothing of the history"):
        read_changes(spark, archive, "0/30", history="1:1:1")
    with pytest.raises(ArchiveBehind, match="older copy"):
        read_changes(spark, archive, "0/50", history=HISTORY)


def test_positions_of_another_history_mean_nothing(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    builder.history = "7300000000000000001:2:16384"
    archive = str(builder.base(0x18, THREE, continues=False).diff(0x30, FOUR).write())
    with pytest.raises(ChangesGone, match=r"epoch 2 begins.* of another history"):
        read_changes(spark, archive, "0/10", history=HISTORY)
    with pytest.raises(ChangesGone, match=r"epoch 2 begins.* of another history"):
        read_changes(spark, archive, "0/20", history=HISTORY)
    (truncated, *snapshot) = read_changes(
        spark, archive, "0/20", "0/18", history=HISTORY, on_gap="snapshot"
    ).collect()
    assert (truncated.action, [row.action for row in snapshot]) == ("TRUNCATE", ["SNAPSHOT"])


def test_a_base_in_parquet_stands_for_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE)
    builder.formats = ("parquet",)
    archive = str(builder.base(0x30, THREE, continues=False).write())
    assert found(read_changes(spark, archive, "0/10", on_gap="snapshot")) == SNAPSHOT_30


def test_diffs_that_a_re_base_gave_to_the_next_epoch(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO).base(0x20, TWO, continues=False)
    archive = str(builder.diff(0x30, THREE, truncate=True).diff(0x40, FOUR).write())
    assert found(read_changes(spark, archive, "0/30", history=HISTORY, epoch=1)) == AT_40


def test_a_column_added_reads_as_null_before(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    builder.columns = (
        COLUMNS[0],
        replace(COLUMNS[1], type="varchar"),
        Column("extra", "numeric", -1, True, 3),
    )
    after = {b"1": b'{"id":1,"name":"A","extra":"1.5"}'}
    archive = str(builder.base(0x30, after, continues=False).write())
    changes = found(read_changes(spark, archive, on_gap="snapshot", after="0/10"))
    assert changes[0] == ("DELETE", "0/20", "3", Row(id=3, name="Cy", extra=None), None)
    assert changes[3][4] == Row(id=1, name="A", extra="1.5")
    lines = read_changes(spark, archive, "0/10", on_gap="snapshot", lines=True)
    assert [row.old for row in lines.where("key = '3'").collect()] == [ONE[b"3"].decode()]
    with pytest.raises(ChangesGone, match="the table's columns changed"):
        read_changes(spark, archive)


def test_a_value_that_doesnt_fit_the_columns_new_type(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    builder.columns = (COLUMNS[0], replace(COLUMNS[1], type="int8"), COLUMNS[2])
    archive = str(builder.base(0x30, {}, continues=False).write())
    with pytest.raises(Exception, match=ColumnUnfit.__name__) as failure:
        read_changes(spark, archive, "0/10", on_gap="snapshot").collect()
    message = own_message(failure.value) or ""
    assert "column name: " in message
    assert "when the change was written the column was text (-1)" in message


def test_the_same_changes_however_often_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    builder = Builder(tmp_path).base(0x10, ONE).diff(0x20, TWO)
    changes, late = (read_changes(spark, str(builder.write())) for _ in range(2))
    builder.diff(0x30, THREE, truncate=True).write()
    assert found(changes) == AT_20
    builder.base(0x30, THREE)
    del builder.artifacts[:3]
    builder.write()
    with pytest.raises(Exception, match=BoundaryGone.__name__) as failure:
        late.collect()
    assert "isn't in the archive any more" in (own_message(failure.value) or "")


def test_options_that_cant_be_used(spark: SparkSession, tmp_path: Path) -> None:
    archive = str(simple(tmp_path).write())
    with pytest.raises(OptionRefused, match="changes have after and until"):
        read_changes(spark, archive, as_of="0/20")
    with pytest.raises(OptionRefused, match="epoch, lsn, time"):
        read_changes(spark, archive, also="when")
    with pytest.raises(OptionRefused, match="fail, snapshot"):
        read_changes(spark, archive, on_gap="ignore")
    with pytest.raises(NoSuchBoundary, match="exchange until and after"):
        read_changes(spark, archive, "0/30", "0/20")
    with pytest.raises(NoSuchBoundary, match="ends exactly at 0/21"):
        read_changes(spark, archive, "0/21", exact=True)


LARGE = state(*(row(number, f"name {number}", json.dumps("x" * 900)) for number in range(3000)))


@pytest.mark.parametrize(
    ("format_id", "plain"), [("jsonl", False), ("protobuf", False), ("jsonl", True)]
)
def test_a_large_diff_is_cut_into_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_id: str, plain: bool
) -> None:
    builder = Builder(tmp_path, formats=(format_id,), plain=plain).base(0x10, ONE)
    archive = builder.diff(0x20, LARGE, truncate=True).write()
    (diff,) = archive.rglob("diff-*")
    # A line begins just where the second piece does.
    task_bytes = diff.read_bytes().index(b"\n", 300_000) + 1
    monkeypatch.setattr(reader, "TASK_BYTES", task_bytes)
    monkeypatch.setattr(reader, "LEAST_BYTES", task_bytes)
    asked = parse({"path": str(archive), "mode": "changes"})
    read = ChangesRead.of(asked)
    tasks = reader.partitions(asked, read.archive, read.steps, read.shape, None)
    assert len(tasks) > 5
    seen: list[tuple[str, str | None]] = []
    for task in tasks:
        assert isinstance(task, reader.ChangesPartition)
        for batch in task.batches(read.shape.spark_schema()):
            seen += zip(batch["action"].to_pylist(), batch["key"].to_pylist(), strict=True)
    assert seen == [("TRUNCATE", None), *(("INSERT", key.decode()) for key in LARGE)]


@pytest.fixture
def in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Diffs of many blocks; the second truncates, and a base follows a gap."""
    monkeypatch.setattr(jsonl, "DIFF_BLOCK", 2000)
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 2000)
    some = state(*(row(number, "first") for number in range(1000, 1300)))
    others = state(*(row(number, "second") for number in range(1000, 1300)))
    builder = Builder(tmp_path).base(0x10, {}).diff(0x20, some).diff(0x30, others)
    builder.diff(0x40, some, truncate=True).diff(0x50, others)
    return builder.base(0x60, some, continues=False).diff(0x70, others).write()


def read_bytes(tasks: list[reader.ChangesPartition]) -> int:
    return sum(piece.part.size_bytes for task in tasks for piece in task.pieces)


@pytest.mark.parametrize("key", ["1000", "1100", "1299", "0", "9"])
def test_of_one_key_only_its_blocks_are_read(in_blocks: Path, key: str) -> None:
    asked = {"mode": "changes", "on_gap": "snapshot", "until": "0/70"}
    everything = Reading(in_blocks, **asked)
    expected = [line for line in everything.rows() if line["key"] in (key, None)]
    made = Reading(in_blocks, **asked, key=key)
    assert made.rows() == expected
    assert [line["action"] for line in expected].count("TRUNCATE") == 3
    assert {line["key"] for line in expected} == {None} | ({key} & {"1000", "1100", "1299"})
    # The diff that truncates is read whole; so is a base, for a key before its first.
    assert read_bytes(made.partitions()[1]) < read_bytes(everything.partitions()[1]) * 0.6


def test_a_filter_on_the_key_reads_only_its_blocks(in_blocks: Path) -> None:
    filters: list[Filter] = [EqualTo(("action",), "UPDATE"), EqualTo(("key",), "1100")]
    whole = Reading(in_blocks, mode="changes", until="0/30")
    made = Reading(in_blocks, mode="changes", until="0/30", push_filters="true")
    assert read_bytes(made.partitions(filters)[1]) < read_bytes(whole.partitions()[1]) / 5
    seen = [(line["action"], line["key"]) for line in made.rows(filters)]
    assert ("UPDATE", "1100") in seen
    assert read_bytes(made.partitions(filters[:1])[1]) == read_bytes(whole.partitions()[1])
