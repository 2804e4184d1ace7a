"""A byte that has changed: what is read is what was written, or one error with file and cure."""

from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest

from laredo_archive.codec import jsonl, parquet, protobuf
from laredo_archive.errors import ArtifactDamaged
from laredo_archive.manifest import key_ranges
from tests.support.archive.building import Builder
from tests.support.spark_reading import Reading, manifest_of, names

FIRST = {number: f"name {number}" for number in range(100, 160)}
LATER = {**FIRST, **dict.fromkeys(range(110, 150), "written later")}
TRIED = 40
"""Bytes of each file."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in (jsonl, protobuf, parquet):
        monkeypatch.setattr(codec, "SNAPSHOT_BLOCK", 700)
    for codec in (jsonl, protobuf):
        monkeypatch.setattr(codec, "DIFF_BLOCK", 700)


def written(directory: Path, format_id: str) -> Path:
    diffs = "jsonl" if format_id == "parquet" else format_id
    builder = Builder(directory, formats=(diffs,), base_formats=(format_id,))
    return builder.base(0x10, names(FIRST)).diff(0x20, names(LATER)).write()


def file_of(archive: Path, kind: str) -> Path:
    [found] = archive.glob(f"epoch=1/{kind}-*")
    return found


def outcome(reading: Reading, file: Path) -> list[str] | None:
    """The rows; None if that was refused as it should be."""
    try:
        return sorted(map(str, reading.rows()))
    except ArtifactDamaged as damaged:
        assert damaged.uri.endswith(f"/epoch=1/{file.name}")
        assert "estore it from another destination" in str(damaged)
        return None


@pytest.mark.parametrize("kind", ["snapshot", "diff"])
@pytest.mark.parametrize("format_id", ["jsonl", "protobuf", "parquet"])
def test_any_byte_of_a_file_that_is_read_in_ranges(
    tmp_path: Path, format_id: str, kind: str
) -> None:
    archive = written(tmp_path, format_id)
    file = file_of(archive, kind)
    whole = file.read_bytes()
    reading = Reading(archive, partitions="5")
    _, partitions = reading.partitions()
    assert len(partitions) >= 4
    expected = sorted(map(str, reading.rows()))
    changes = cycle([0x01, 0x80, 0x10, 0xFF, 0x04])
    refused = 0
    for at in Random(7).sample(range(len(whole)), TRIED):
        data = bytearray(whole)
        data[at] ^= next(changes)
        file.write_bytes(data)
        found = outcome(reading, file)
        assert found in (None, expected), at
        refused += found is None
    assert refused > TRIED * 0.9


@pytest.mark.parametrize("format_id", ["jsonl", "protobuf", "parquet"])
def test_another_file_under_its_name(tmp_path: Path, format_id: str) -> None:
    """Rows as they should look, and pages that fit their own checksums."""
    archive = written(tmp_path, format_id)
    reading = Reading(archive, partitions="5")
    builder = Builder(tmp_path / "other", base_formats=(format_id,))
    other = builder.base(0x10, names({n: f"nome {n}" for n in FIRST})).write()
    file = file_of(archive, "snapshot")
    data, others = file.read_bytes(), file_of(other, "snapshot").read_bytes()
    file.write_bytes(others[: len(data)].ljust(len(data), b"0"))
    assert outcome(reading, file) is None


@pytest.mark.parametrize("format_id", ["jsonl", "protobuf", "parquet"])
def test_an_archive_whose_manifest_names_no_blocks(tmp_path: Path, format_id: str) -> None:
    archive = written(tmp_path, format_id)
    expected = Reading(archive, partitions="5").rows()

    def forget(described: dict[str, Any]) -> None:
        for artifact in described["artifacts"]:
            for entry in artifact["formats"].values():
                del entry["blocks"]

    manifest_of(archive, forget)
    assert Reading(archive, partitions="5").rows() == expected
    assert len(expected) == len(LATER)


def test_a_part_is_made_of_blocks_only_where_both_ends_are_blocks(tmp_path: Path) -> None:
    archive = written(tmp_path, "jsonl")
    _, partitions = Reading(archive, partitions="5").partitions()
    part = partitions[2].reads[0].base
    assert part.blocks[0].start == part.start
    assert part.blocks[-1].stop == part.stop
    inside = key_ranges.ObjectSlice(part.format_id, part.entry, part.start, part.stop - 1)
    assert inside.blocks == []
    assert (
        key_ranges.ObjectSlice(part.format_id, part.entry, part.start + 1, part.stop).blocks == []
    )
