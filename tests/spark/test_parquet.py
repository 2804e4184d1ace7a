"""Parquet bases in Spark's tasks: the table is the one that jsonl gives, with every option."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import EqualTo, Filter, In

from laredo_archive.codec import parquet
from laredo_archive.codec.arrow.types import ArrayTooDeep, UnrepresentableValue
from laredo_archive.errors import ArtifactDamaged, ArtifactMissing
from laredo_model.column import Column
from tests.support.archive.building import Builder, State
from tests.support.archive.s3_archive import put, reached
from tests.support.aws import AwsServer
from tests.support.spark_reading import Reading, names

COLUMNS = (
    Column("id", "int8", -1, False, 1, 1),
    Column("day", "date", -1, True, 2),
    Column("grid", "_int4", -1, True, 3),
    Column("free", "numeric", -1, True, 4),
    Column("doc", "jsonb", -1, True, 5),
)
BOTH = ("jsonl", "parquet")
MANY = {number: f"name {number}" for number in range(1000, 1400)}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make row groups small, so that small files have several."""
    monkeypatch.setattr(parquet, "SNAPSHOT_BLOCK", 2000)


def line(number: int, day: str, grid: str, free: str) -> tuple[bytes, bytes]:
    text = f'{{"id":{number},"day":{day},"grid":{grid},"free":{free},"doc":{{"n": {number}}}}}'
    return b"%d" % number, text.encode()


def typed(count: int, special: str = '"infinity"') -> State:
    """Rows of every kind; each tenth has what a column of its type lacks."""
    found = dict(line(n, '"2024-02-29"', f"[{n},null]", f'"{n}.50"') for n in range(1000, count))
    found |= dict(line(n, special, "[[1],[2]]", '"NaN"') for n in range(1000, count, 10))
    return dict(sorted(found.items()))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    builder = Builder(tmp_path, columns=COLUMNS, base_formats=BOTH)
    state = typed(1100)
    builder.base(0x10, state)
    return builder.diff(0x20, {**state, **dict([line(1005, "null", "null", "null")])}).write()


@pytest.mark.parametrize(
    "given",
    [
        {"special_values": "null", "array_dimensions": "grid=0"},
        {"special_values": "string", "array_dimensions": "grid=0"},
        {"special_values": "null", "array_dimensions": "grid=0", "numeric_as": "decimal(20,5)"},
        {"columns": "free,doc"},
        {"columns": "id", "partitions": "1"},
        {"columns": "free", "partitions": "9"},
        {"columns": "doc", "key": "1005"},
        {"lines": "true", "partitions": "3"},
        {"lines": "true", "as_of": "0/10"},
    ],
)
def test_it_is_read_as_jsonl_is(mixed: Path, given: dict[str, Any]) -> None:
    def rows(format_id: str) -> list[str]:
        return sorted(map(str, Reading(mixed, format=format_id, **given).rows()))

    assert rows("parquet") == rows("jsonl")
    assert len(rows("parquet")) in (1, 100)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"columns": "day"}, "column day: infinity can't be a date32"),
        ({"columns": "grid"}, "column grid: \\[\\[1\\],\\[2\\]\\] doesn't have the 1 dimension"),
    ],
)
def test_what_arrow_lacks_is_the_same_error(
    mixed: Path, given: dict[str, Any], expected: str
) -> None:
    for format_id in BOTH:
        with pytest.raises(UnrepresentableValue, match=f"/users.*: {expected}"):
            Reading(mixed, format=format_id, **given).rows()


def test_what_arrow_lacks_in_a_diff_names_the_archive(tmp_path: Path) -> None:
    builder = Builder(tmp_path, columns=COLUMNS).base(0x10, dict([line(1, "null", "[1]", "null")]))
    state = dict([line(1, "null", "[[1],[2]]", "null")])
    archive = builder.diff(0x20, state).write()
    expected = r"users at 0/20 \(epoch 1\): column grid: .* doesn't have the 1 dimension.*grid=N"
    with pytest.raises(ArrayTooDeep, match=expected):
        Reading(archive).rows()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    builder = Builder(tmp_path, base_formats=("parquet",)).base(0x10, names(MANY))
    return builder.diff(0x20, names({**MANY, 1007: "new"})).write()


def file_of(archive: Path) -> Path:
    return next((archive / "epoch=1").glob("snapshot*"))


@pytest.mark.parametrize(
    ("filters", "ids"),
    [([EqualTo(("id",), 1007)], [1007]), ([In(("id",), (1001, 1399, 7))], [1001, 1399])],
)
def test_filters_on_the_key_fetch_its_row_groups(
    many: Path, filters: list[Filter], ids: list[int]
) -> None:
    reading = Reading(many, push_filters="true")
    _, partitions = reading.partitions(filters)
    bases = [read.base for part in partitions for read in part.reads]
    assert all(base.stop is not None or base.start > 0 for base in bases)
    assert reading.ids(filters) == ids


def test_a_page_that_has_changed(many: Path) -> None:
    file = file_of(many)
    data = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(2).column(1)
    data[column.data_page_offset + column.total_compressed_size - 5] ^= 0x40
    file.write_bytes(data)
    with pytest.raises(ArtifactDamaged, match=f"{file.name}: .*laredo-archive verify"):
        Reading(many, partitions="8").rows()
    with pytest.raises(ArtifactDamaged, match=f"{file.name}: its sha256 is"):
        Reading(many, as_of="0/10", partitions="1").rows()


@pytest.mark.parametrize("partitions", ["1", "8"])
def test_a_file_that_is_cut_off_or_gone(many: Path, partitions: str) -> None:
    file = file_of(many)
    file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(ArtifactDamaged, match=f"{file.name}: "):
        Reading(many, partitions=partitions).rows()
    file.unlink()
    with pytest.raises(ArtifactMissing, match=f"{file.name}: the manifest names this object"):
        Reading(many, partitions=partitions).rows()


@pytest.mark.parametrize("partitions", ["1", "8"])
def test_from_s3(many: Path, moto: AwsServer, partitions: str) -> None:
    bucket = put(moto, many)
    reading = Reading(f"s3://{bucket}/lake/users/", partitions=partitions, **reached(moto))
    found = reading.rows()
    assert {row["id"]: row["name"] for row in found} == {**MANY, 1007: "new"}
    assert len(found) == len(MANY)
    key = f"lake/users/epoch=1/{file_of(many).name}"
    moto.client("s3").delete_object(Bucket=bucket, Key=key)
    with pytest.raises(ArtifactMissing, match=rf"s3://{bucket}/{key}: the manifest names"):
        reading.rows()


@pytest.mark.parametrize("plain", [False, True], ids=["ours", "others"])
def test_files_without_order(tmp_path: Path, plain: bool) -> None:
    builder = Builder(tmp_path, shuffled=True, plain=plain, base_formats=("parquet",))
    builder.base(0x10, names(MANY)).diff(0x20, names({**MANY, 1007: "new"}))
    archive = builder.write()
    found = {row["id"]: row["name"] for row in Reading(archive).rows()}
    assert found == {**MANY, 1007: "new"}
    bases = Reading(archive, mode="base").rows()
    assert len(bases) == len(MANY)
