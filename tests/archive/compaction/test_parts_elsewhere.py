"""Merged diffs and their parts on another destination: one added later, one behind, a copy."""

import gzip
import tracemalloc
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from laredo_archive.errors import ArtifactDamaged, ArtifactMissing, CopyStopped
from laredo_archive.maintain.copy import copy
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest import rules
from laredo_archive.manifest.model import Artifact, FormatEntry, Manifest, Parts
from laredo_archive.manifest.parser import DEEPEST_PARTS
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from laredo_model.position import Position
from tests.support.archive import several_epochs
from tests.support.archive.archiving import PREFIX, ScriptedDestination, memory, opened
from tests.support.archive.long_archive import LongArchive, collected, compacted, rows_at, spoil

pytestmark = pytest.mark.usefixtures("short_lists")


def all_there(destination: ScriptedDestination, long: LongArchive) -> None:
    manifest = destination.manifest
    assert list(rules.check(manifest)) == []
    # A collector takes nothing that is needed.
    for _ in range(3):
        collected(destination)
    for position, state in long.states.items():
        assert rows_at(destination, position) == state


def shape(manifest: Manifest) -> list[tuple[int, int | None]]:
    return [(a.to_position, a.parts and a.parts.count) for a in manifest.artifacts]


def test_a_destination_that_is_added_gets_the_parts_too() -> None:
    one, two = memory(2)
    long = compacted(LongArchive(opened([one])))
    opened([one, two], "w2")
    assert shape(two.manifest) == shape(one.manifest)
    all_there(two, long)
    all_there(one, long)


def test_a_destination_that_comes_back_keeps_its_diffs() -> None:
    one, two = memory(2)
    long = compacted(LongArchive(opened([one, two])), rounds=3)
    long.archive = opened([one], "w2")
    compacted(long, rounds=5)
    puts = len(two.requests)
    opened([one, two], "w3")
    assert shape(two.manifest) == shape(one.manifest)
    put = {key for what, key in two.requests[puts:] if what == "put"}
    assert not {key for key in put if key.endswith("diff-0_A-0_14.jsonl")}, "it was there"
    all_there(two, long)


def test_a_copy_has_every_boundary(long: LongArchive, tmp_path: Path) -> None:
    source, target = tmp_path / "first" / PREFIX, tmp_path / "copies" / "t"
    long.archive = opened([LocalDestination(tmp_path / "first")], "w2")
    for _ in range(2):
        copy(location.find(str(source)), location.parse(str(target)))
        copied = Archive.at(str(target))
        for position, state in long.states.items():
            at = copied.boundary(position, exact=True)  # type: ignore[arg-type]
            assert several_epochs.rows_at(copied, at) == state
        compacted(long, rounds=3)


def test_a_copy_of_an_archive_whose_list_is_damaged_stops(
    long: LongArchive, tmp_path: Path
) -> None:
    source = tmp_path / "first" / PREFIX
    victim = sorted(source.glob("epoch=1/parts-*"))[-1]
    spoil(victim, victim.read_bytes()[:-1] + b"?")
    with pytest.raises(CopyStopped, match="parts-"):
        copy(location.find(str(source)), location.parse(str(tmp_path / "copy")))
    assert not (tmp_path / "copy" / "manifest.json").exists()


def repeated(value: str) -> bytes:
    """A list that unpacks to a thousand times its size."""
    listed = ",".join([value] * (60_000_000 // len(value)))
    return gzip.compress(f'{{"parts_version":1,"diffs":[{listed}]}}'.encode(), 9)


def test_a_list_is_no_bomb(tmp_path: Path) -> None:
    """Some kilobytes that unpack to what gigabytes of objects are made of."""
    data = repeated("{}")
    (tmp_path / "parts").write_bytes(data)
    entry = FormatEntry("parts", len(data), "parts", sha256=sha256(data).hexdigest())
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactDamaged, match="when unpacked"):
            merged_.read(LocalDestination(tmp_path), "parts", entry, PREFIX)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 64 * len(data) + (8 << 20)


def test_lists_within_lists_have_a_bound(written: tuple[Path, LongArchive], tmp_path: Path) -> None:
    """Each file names the next one, whose diffs begin a position later."""
    destination = LocalDestination(tmp_path)
    manifest = Archive.at(str(written[0] / "first" / PREFIX)).manifest
    base, plain = manifest.artifacts[0], replace(manifest.artifacts[1], parts=None)
    start, levels = base.to_position, 2000

    def diff(begin: int, end: int, parts: Parts | None = None) -> Artifact:
        ends = Position(start + begin), Position(start + end)
        return replace(plain, from_position=ends[0], to_position=ends[1], parts=parts)

    last = diff(levels, levels + 1)
    for level in reversed(range(levels)):
        data = merged_.to_bytes([diff(level, level + 1), last])
        (tmp_path / f"{level}").write_bytes(data)
        digest = sha256(data).hexdigest()
        listed = FormatEntry(f"{level}", len(data), f"{level}", sha256=digest)
        last = diff(level, levels + 1, Parts(levels - level + 1, file=listed))
    hostile = replace(manifest, artifacts=(base, last))
    files = merged_.PartsFiles(destination, str, PREFIX)
    with pytest.raises(ArtifactDamaged, match=f"/{DEEPEST_PARTS}: .*{DEEPEST_PARTS} levels"):
        merged_.unfolded(hostile, merged_.everywhere, files.diffs_of)


@pytest.mark.parametrize("damage", ["gone", "cut", "other", "bomb"])
def test_a_list_that_is_not_whole_is_named(long: LongArchive, tmp_path: Path, damage: str) -> None:
    archive = Archive.at(str(tmp_path / "first" / PREFIX))
    merged = next(a for a in archive.manifest.artifacts if a.parts and a.parts.file)
    assert merged.parts is not None and merged.parts.file is not None
    path = tmp_path / "first" / merged.parts.file.key
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        spoil(path, path.read_bytes()[:-4])
    elif damage == "bomb":
        spoil(path, b"\0" * (64 << 20))
    else:
        spoil(path, merged_.to_bytes(archive.manifest.artifacts[1:2]))
    inside = next(p for p in long.states if (merged.from_position or 0) < p < merged.to_position)
    with pytest.raises((ArtifactMissing, ArtifactDamaged), match=path.name):
        archive.boundary(inside)  # type: ignore[arg-type]
    # What isn't inside is read all the same.
    assert archive.boundary().position == long.head
    assert archive.boundary(merged.to_position).position == merged.to_position
