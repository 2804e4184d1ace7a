"""Spark reads compressed archives as plain ones, and of a key range only its frames."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter

from laredo_archive.codec import jsonl, protobuf, zstd_frames
from laredo_archive.errors import ArtifactDamaged
from laredo_spark import read_changes, read_table
from tests.support import drawn
from tests.support.archive.building import Builder
from tests.support.spark_reading import Reading, names

FORMATS = ("jsonl", "protobuf")
ROWS = {number: f"name {number}" for number in range(1000, 3000)}
ONE: list[Filter] = [EqualTo(("id",), 2345)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jsonl, protobuf):
        monkeypatch.setattr(module, "SNAPSHOT_BLOCK", 4000)
        monkeypatch.setattr(module, "DIFF_BLOCK", 2000)


def made(directory: Path, format_id: str) -> Path:
    changed = {**ROWS, **dict.fromkeys(range(1000, 3000, 5), "new"), 5000: "inserted"}
    del changed[1077]
    builder = Builder(directory, formats=(format_id,)).base(0x10, names(ROWS))
    builder.diff(0x20, names(changed))
    return builder.diff(0x30, names({7: "alone", **changed}), truncate=True).write()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("plain", drawn.first(1, FORMATS))
def test_the_same_rows_and_changes(spark: SparkSession, tmp_path: Path, plain: str) -> None:
    found = {}
    for format_id in (plain, f"{plain}.zst"):
        archive = str(made(tmp_path / format_id, format_id))
        found[format_id] = [
            sorted(map(str, frame.collect()))
            for frame in (
                read_table(spark, archive, "0/20"),
                read_table(spark, archive, columns=["name"]),
                read_changes(spark, archive, after="0/10"),
                read_changes(spark, archive, after="0/10", key=2345),
            )
        ]
    assert found[plain] == found[f"{plain}.zst"]
    assert [len(rows) for rows in found[plain]] == [2000, 2001, 2404, 3]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("plain", FORMATS)
def test_for_one_key_little_is_decompressed(
    tmp_path: Path, plain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = made(tmp_path, f"{plain}.zst")
    held = 0
    frame_of = zstd_frames._frame

    def counting(*arguments):  # type: ignore[no-untyped-def]
        nonlocal held
        for piece in frame_of(*arguments):
            held += len(piece)
            yield piece

    monkeypatch.setattr(zstd_frames, "_frame", counting)
    reading = Reading(archive, as_of="0/20", push_filters="true")
    assert len(reading.ids()) == 2000
    whole, held = held, 0
    assert reading.ids(ONE) == [2345]
    assert 0 < held < whole / 10


@pytest.mark.usefixtures("small_blocks")
def test_a_changed_frame_is_reported_with_the_object_s_name(tmp_path: Path) -> None:
    archive = made(tmp_path, "jsonl.zst")
    (base,) = archive.glob("epoch=1/snapshot-*.jsonl.zst")
    data = bytearray(base.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    base.write_bytes(data)
    with pytest.raises(ArtifactDamaged, match=r"snapshot-0_10\.jsonl\.zst"):
        Reading(archive, as_of="0/10").ids()
