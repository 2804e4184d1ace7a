"""A DataFrame shows one boundary, or says clearly why it can't any more."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter

from laredo_archive.codec import jsonl, protobuf, zstd_frames
from laredo_archive.errors import ArtifactDamaged, FormatUnknown, ManifestNewer
from laredo_model.column import Column
from laredo_spark.errors import (
    BoundaryGone,
    ColumnsChanged,
    OptionRefused,
    SparkReadError,
    own_message,
)
from tests.support.archive.building import Builder
from tests.support.spark_reading import Reading, manifest_of, names

FIRST = {number: f"name {number}" for number in range(100)}


def file_of(archive: Path, kind: str = "snapshot") -> Path:
    [found] = archive.glob(f"epoch=*/{kind}-*.jsonl")
    return found


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path).base(0x10, names(FIRST))


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base of many blocks."""
    monkeypatch.setattr(jsonl, "SNAPSHOT_BLOCK", 500)
    return Builder(tmp_path).base(0x10, names(FIRST)).write()


def test_a_re_base_gives_the_diff_to_the_next_epoch(builder: Builder) -> None:
    """The base is at 0/18; the diff after it, which the DataFrame shows, is relabelled."""
    builder.diff(0x18, names({1: "a"})).diff(0x20, names({2: "b"}))
    archive = builder.write()
    made = Reading(archive)
    diff = builder.artifacts.pop()
    builder.states.pop()
    builder.base(0x18, names({1: "a"}))
    builder.artifacts.append({**diff, "epoch": 2})
    builder.head = 0x20
    builder.artifacts = builder.artifacts[2:]  # and retention takes the first epoch
    builder.write()
    assert made.ids() == [2]


def test_retention_removed_it(builder: Builder) -> None:
    archive = builder.write()
    made = Reading(archive)
    builder.artifacts.clear()
    builder.base(0x30, names({1: "a"})).write()
    with pytest.raises(BoundaryGone, match=r"0/10 \(epoch 1.*Make it again"):
        made.rows()


def test_retention_removes_the_files_while_tasks_read(builder: Builder) -> None:
    archive = builder.write()
    reader, partitions = Reading(archive).partitions()
    file = file_of(archive)
    builder.artifacts.clear()
    builder.base(0x30, names({1: "a"})).write()
    file.unlink()
    with pytest.raises(BoundaryGone, match=rf"manifest.json: .*{file.name}, which 0/10"):
        list(reader.read(partitions[0]))


def test_another_archive_at_the_same_place(builder: Builder, tmp_path: Path) -> None:
    made = Reading(builder.write())
    other = Builder(tmp_path, history="7400000000000000001:1:16384")
    other.base(0x10, names({1: "another"})).write()
    with pytest.raises(BoundaryGone, match="history 7300"):
        made.rows()


def test_a_file_that_was_placed_anew_under_another_name(builder: Builder) -> None:
    archive = builder.write()
    reader, partitions = Reading(archive).partitions()
    file = file_of(archive)
    file.rename(file.with_name("snapshot-0_10-abc.jsonl"))

    def renamed(described: dict[str, Any]) -> None:
        entry = described["artifacts"][0]["formats"]["jsonl"]
        entry["key"] = entry["key"].replace("0_10", "0_10-abc")

    manifest_of(archive, renamed)
    rows = [
        line for part in partitions for batch in reader.read(part) for line in batch.to_pylist()
    ]
    assert sorted(line["id"] for line in rows) == list(FIRST)


def test_a_copy_under_another_name(builder: Builder, tmp_path: Path) -> None:
    """The manifest's keys begin with a directory that isn't there."""
    archive = builder.write()
    moved = archive.rename(tmp_path / "elsewhere")
    assert Reading(moved).ids() == list(FIRST)
    (moved / "manifest.json").rename(moved / "other-manifest.json")
    assert Reading((moved / "other-manifest.json").as_uri()).ids() == list(FIRST)


def test_other_columns_than_when_it_was_made(builder: Builder) -> None:
    archive = builder.write()
    made = Reading(archive)

    def widened(described: dict[str, Any]) -> None:
        described["artifacts"][0]["columns"][1] = Column("name", "int4", ordinal=2).to_json()

    manifest_of(archive, widened)
    with pytest.raises(ColumnsChanged, match=r"name:string.*name:int.*Make it again"):
        made.rows()


@pytest.mark.parametrize("parts", [1, 8])
def test_a_file_is_cut_off(large: Path, parts: int) -> None:
    file = file_of(large)
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(
        ArtifactDamaged, match=r"snapshot-0_10.jsonl: .*(cut off|the file ends).*estore it"
    ):
        Reading(large, partitions=parts).rows()


def test_a_file_has_grown(builder: Builder) -> None:
    archive = builder.write()
    file = file_of(archive)
    file.write_bytes(file.read_bytes() + b'{"id":100,"name":"x","doc":null}\n')
    with pytest.raises(ArtifactDamaged, match="more than the 4380 bytes in the manifest"):
        Reading(archive, partitions=1).rows()


def test_a_value_that_isnt_of_its_type_names_the_file(builder: Builder) -> None:
    archive = builder.write()

    def other_type(described: dict[str, Any]) -> None:
        described["artifacts"][0]["columns"][1]["type"] = "int4"

    manifest_of(archive, other_type)
    with pytest.raises(
        ArtifactDamaged, match=r"0_10.jsonl: column name: name 0 isn't of type int4"
    ):
        Reading(archive).rows()


def test_formats_and_versions_that_arent_known(builder: Builder) -> None:
    archive = builder.write()

    def only_avro(described: dict[str, Any]) -> None:
        formats = described["artifacts"][0]["formats"]
        formats["avro"] = formats.pop("jsonl")

    manifest_of(archive, only_avro)
    with pytest.raises(FormatUnknown, match="the artifact exists as avro only"):
        Reading(archive).rows()
    manifest_of(archive, lambda described: described.update(manifest_version=3))
    with pytest.raises(ManifestNewer, match="manifest_version is 3"):
        Reading(archive)


def test_options(builder: Builder) -> None:
    archive = builder.write()
    for name, value, advice in [
        ("format", "avro", "write one of jsonl, protobuf, parquet"),
        ("mode", "rows", "write one of table"),
        ("exact", "yes", "write true or false"),
        ("partitions", "0", "a number from 1 up"),
        ("as_of", "yesterday", "neither a position"),
        ("key_fields", "nam", "the table's columns are id, name, doc"),
    ]:
        with pytest.raises(OptionRefused, match=rf"option {name} = '{value}': .*{advice}"):
            Reading(archive, **{name: value})


def test_the_one_message_in_an_exception_of_sparks() -> None:
    shown = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        "  File x, line 1\nlaredo_archive.errors.ArtifactDamaged: file:///a/b: cut off: it has 3"
        " bytes\n\tat org.apache.spark.api.python.BasePythonRunner"
    )
    assert own_message(RuntimeError(shown)) == "file:///a/b: cut off: it has 3 bytes"
    assert own_message(SparkReadError("as it is")) == "as it is"
    assert own_message(RuntimeError("of another")) is None


# Spark reads compressed archives as plain ones, and of a key range only its frames.


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
