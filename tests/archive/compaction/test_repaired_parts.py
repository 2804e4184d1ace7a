"""Repairs of what only files of parts name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from laredo_archive.maintain.repair import RepairReport, repair
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest import merged
from laredo_archive.manifest.model import Artifact
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from tests.support import drawn
from tests.support.archive.archiving import PREFIX, opened
from tests.support.archive.long_archive import LongArchive, compacted, rows_at, spoil


class Two:
    """Two destinations of an archive with several levels of parts, whose writer is gone."""

    def __init__(self, directory: Path) -> None:
        self.first, self.second = directory / "first", directory / "second"

    def archive(self) -> Archive:
        return Archive.at(str(self.first / PREFIX))

    def listed(self) -> list[str]:
        """The keys of all objects that only files of parts name."""
        archive = self.archive()
        named = {entry.key for entry in archive.manifest.named()}
        keys = []
        for part in _parts(archive, archive.manifest.artifacts):
            keys += [key for key in part.keys if key not in named]
        assert len(keys) > 50
        return keys

    def lists(self) -> list[str]:
        """The keys of all files of parts, those that files name behind those that they are in."""
        archive = self.archive()
        every = [*archive.manifest.artifacts, *_parts(archive, archive.manifest.artifacts)]
        return [each.parts.file.key for each in every if each.parts and each.parts.file]

    def repaired(self, *, alone: bool = False, dry_run: bool = False) -> RepairReport:
        others = [] if alone else [location.find(str(self.second / PREFIX))]
        return repair(location.find(str(self.first / PREFIX)), others, dry_run=dry_run)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.first.rglob("*") if path.is_file()}


def _parts(archive: Archive, artifacts: tuple[Artifact, ...]) -> Iterator[Artifact]:
    for artifact in artifacts:
        if artifact.parts is not None:
            parts = archive.parts_of(artifact)
            yield from parts
            yield from _parts(archive, tuple(parts))


@pytest.fixture
def two(long: LongArchive, tmp_path: Path) -> Two:
    return Two(tmp_path)


def test_what_is_whole_is_read_and_left(two: Two) -> None:
    before = two.files()
    report = two.repaired()
    assert (report.lost, report.repaired, report.objects) == ([], [], report.read)
    # But for the manifest, and the writer's own notes beside the objects.
    objects = [path for path in before if "epoch=" in str(path)]
    assert report.objects == len(objects)
    assert two.files() == before


def test_every_object_that_only_files_name_comes_from_the_other(two: Two) -> None:
    before, keys = two.files(), two.listed()
    for key in keys:
        (two.first / key).unlink()
    dry = two.repaired(dry_run=True)
    assert (len(dry.repaired), dry.lost) == (len(keys), [])
    assert two.files().keys() == before.keys() - {two.first / key for key in keys}
    report = two.repaired()
    assert (len(report.repaired), report.lost) == (len(keys), [])
    assert two.files() == before
    assert verify(two.archive()).sound


def test_one_that_nobody_has_is_named_with_what_it_costs(two: Two) -> None:
    key = two.listed()[0]
    (two.first / key).unlink()
    (lost,) = map(str, two.repaired(alone=True).lost)
    assert key in lost and "only boundaries inside the merged diff" in lost
    assert "POST /snapshot" not in lost
    spoil(two.second / key, b"?")
    (lost,) = map(str, two.repaired().lost)
    assert str(two.second / key) in lost and not (two.first / key).exists()


def test_a_damaged_one_stays_since_no_list_is_changed(two: Two) -> None:
    key = two.listed()[0]
    spoil(two.first / key, b"?")
    before = two.files()
    (lost,) = map(str, two.repaired().lost)
    assert key in lost and "no other object can take its place" in lost
    assert two.files() == before


@pytest.mark.parametrize("which", drawn.first(1, [0, -1]))
def test_a_list_that_is_gone_is_named_and_the_rest_is_repaired(two: Two, which: int) -> None:
    gone, other = two.lists()[which], two.archive().manifest.artifacts[-1].keys[0]
    (two.first / gone).unlink()
    (two.first / other).unlink()
    report = two.repaired()
    (lost,) = map(str, report.lost)
    assert gone in lost and lost.startswith("the list of the parts of diff ")
    assert len(report.repaired) == 1 and (two.first / other).exists()


def test_a_part_that_the_manifest_names_costs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its merged diff leads past it."""
    monkeypatch.setattr(merged, "LISTED_AT_MOST", 64)
    two = Two(tmp_path)
    places = [LocalDestination(two.first), LocalDestination(two.second)]
    long = compacted(LongArchive(opened(places)), rounds=4)
    tops = two.archive().manifest.artifacts
    part = next(each.parts.diffs[0] for each in tops if each.parts and each.parts.diffs)
    (two.first / part.keys[0]).unlink()
    (lost,) = map(str, two.repaired(alone=True).lost)
    assert "only boundaries inside the merged diff" in lost
    assert len(two.repaired().repaired) == 1
    path = two.first / part.keys[0]
    spoil(path, path.read_bytes().replace(b"id", b"ID"))
    report = two.repaired()
    origin = LocalDestination(two.second).uri_of(part.keys[0])
    assert ([repaired.origin for repaired in report.repaired], report.lost) == ([origin], [])
    for position, state in long.states.items():
        assert rows_at(LocalDestination(two.first), position) == state
