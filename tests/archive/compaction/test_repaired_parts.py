"""Repairs of what only files of parts name."""

import gzip
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from laredo_archive.cli import main
from laredo_archive.maintain import collect as collecting
from laredo_archive.maintain.repair import RepairReport, repair
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest.model import Artifact
from laredo_archive.read import location
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from tests.support import drawn
from tests.support.archive.archiving import MANIFEST, PREFIX, ScriptedDestination, opened, rebased
from tests.support.archive.long_archive import (
    HOUR_S,
    LongArchive,
    collected,
    compacted,
    rows_at,
    spoil,
)

UNREADABLE = re.compile(r"boundaries between (\S+) and (\S+) can't be read; \1 and \2 can")


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
    monkeypatch.setattr(merged_, "LISTED_AT_MOST", 64)
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


# ``verify`` proves merged diffs by their parts, and ``ls`` shows them.


def deepest(archive: Archive) -> Artifact:
    """A diff that only a file of parts names."""
    named = {entry.key for entry in archive.manifest.named()}
    archive.unfold(merged_.everywhere)
    hidden = [a for a in archive.manifest.artifacts if not named & set(a.keys)]
    return hidden[len(hidden) // 2]


def test_every_level_is_proven(two: Two, long: LongArchive) -> None:
    report = verify(two.archive())
    assert report.problems == []
    assert report.boundaries == len(long.states)


def test_a_damaged_part_is_named_with_what_it_costs(two: Two, long: LongArchive) -> None:
    path = two.first / deepest(two.archive()).formats["jsonl"].key
    spoil(path, path.read_bytes().replace(b'"id"', b'"ID"') + b"\n")
    report = verify(two.archive())
    assert any(path.name in problem for problem in report.problems)
    assert any(UNREADABLE.search(problem) for problem in report.problems)
    assert 0 < report.boundaries < len(long.states)


def test_a_merged_diff_that_its_parts_do_not_make(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = two.archive()
    merged = next(a for a in archive.manifest.artifacts if a.parts)
    real = merged_.PartsFiles.diffs_of

    def others(files: merged_.PartsFiles, of: Artifact) -> tuple[Artifact, ...]:
        # As if the list led where it should, by other diffs.
        return real(files, of)[:-1] if of.same_as(merged) else real(files, of)

    monkeypatch.setattr(merged_.PartsFiles, "diffs_of", others)
    [problem] = verify(archive).problems
    assert "have other net changes than the diff" in problem


def test_a_list_that_is_gone(two: Two) -> None:
    for path in two.first.rglob("parts-*"):
        path.unlink()
    report = verify(two.archive())
    assert report.problems
    assert all(UNREADABLE.search(problem) for problem in report.problems)


def test_ls_shows_what_was_merged(long: LongArchive, tmp_path: Path) -> None:
    archive = str(tmp_path / "first" / PREFIX)
    listed = CliRunner().invoke(main, ["ls", archive]).output.splitlines()
    merged = [json.loads(line)["merged_from"] for line in listed]
    assert merged[0] is None
    assert sum(count or 1 for count in merged[1:]) == len(long.states) - 1
    everything = CliRunner().invoke(main, ["ls", "--all", archive]).output.splitlines()
    ends = [json.loads(line)["to_position"] for line in everything]
    assert len(ends) == len(set(ends)) == len(long.states)


def test_a_summary_has_a_line_for_each_epoch(long: LongArchive, tmp_path: Path) -> None:
    long.archive = opened([LocalDestination(tmp_path / "first")], "w2")
    rebased(long.archive, long.head, long.states[long.head])
    long.grow(3)
    archive = str(tmp_path / "first" / PREFIX)
    output = CliRunner().invoke(main, ["ls", "--summary", archive]).output
    one, two = map(json.loads, output.splitlines())
    assert (one["epoch"], one["diffs"], one["from_position"]) == (1, 80, "0/A")
    assert one["artifacts"] < 20
    assert (two["epoch"], two["diffs"], two["artifacts"], two["continues"]) == (2, 3, 4, True)
    assert two["rows"] == len(long.states[long.head])
    assert one["to_position"] == two["from_position"]


# Parts that files list are kept as long as a file may be read, and deleted after it.


pytestmark = pytest.mark.usefixtures("short_lists")


def compacted_archive(destination: ScriptedDestination, **more: object) -> LongArchive:
    long = compacted(LongArchive(opened([destination], **more)))
    files = [key for key in destination.store.objects if "/parts-" in key]
    assert len(files) > 3
    assert len(files) > sum(key in destination.manifest.known_keys() for key in files)
    return long


def test_what_files_name_stays(destination: ScriptedDestination) -> None:
    long = compacted_archive(destination)
    before = set(destination.store.objects)
    for _ in range(3):
        assert collected(destination).deleted == []
    assert set(destination.store.objects) == before
    for position, state in long.states.items():
        assert rows_at(destination, position) == state


@pytest.mark.parametrize("named_at_once", [2000, 1])
def test_dropped_parts_are_deleted_to_the_last(
    destination: ScriptedDestination, monkeypatch: pytest.MonkeyPatch, named_at_once: int
) -> None:
    monkeypatch.setattr(collecting, "NAMED_AT_ONCE", named_at_once)
    long = compacted_archive(destination)
    destination.store.world.now += 10 * HOUR_S
    long.grow(3)
    long.archive.merging.drop_parts(timedelta(hours=5))
    planned = collected(destination, 0, dry_run=True)
    assert planned.deleted == []
    collected(destination, 0)
    due = collected(destination, dry_run=True)
    done = collected(destination, 0)
    assert set(done.deleted) == set(due.deleted)
    assert len(done.deleted) > 80
    collected(destination)
    left = set(destination.store.objects) - destination.manifest.known_keys()
    assert left == {MANIFEST}
    assert destination.manifest.retired == ()
    for artifact in destination.manifest.artifacts:
        assert rows_at(destination, artifact.to_position) == long.states[artifact.to_position]


def test_an_epoch_that_leaves_takes_its_parts_along(destination: ScriptedDestination) -> None:
    long = compacted_archive(destination, keep_epochs=1)
    rebased(long.archive, long.head, long.states[long.head])
    for _ in range(3):
        collected(destination)
    assert set(destination.store.objects) == {MANIFEST} | destination.manifest.kept_keys()
    assert len(destination.manifest.artifacts) == 1


def test_a_list_deletes_only_what_it_covers_and_nothing_else_needs(
    destination: ScriptedDestination,
) -> None:
    long = compacted_archive(destination)
    head = destination.manifest.artifacts[-1].formats["jsonl"]
    base = destination.manifest.artifacts[0].formats["jsonl"]
    merged = next(a for a in destination.manifest.artifacts if a.parts and a.parts.file)
    assert merged.parts is not None and merged.parts.file is not None
    part = merged_.read(destination, merged.parts.file.key, merged.parts.file, PREFIX)[0]
    key = f"{PREFIX}epoch=1/parts-0_1-0_FFFF.json.gz"
    hostile = [
        {**part.to_json(), "formats": {"jsonl": {**head.to_json(), "key": named}}}
        for named in (
            head.key,
            base.key,
            MANIFEST,
            "other/epoch=1/diff-0_1-0_2.jsonl",
            part.formats["jsonl"].key,
        )
    ]
    body = json.dumps({"parts_version": 1, "diffs": hostile}).encode()
    objects = destination.store.objects
    for name in (key, "other/epoch=1/diff-0_1-0_2.jsonl"):
        objects[name] = (gzip.compress(body), *next(iter(objects.values()))[1:])
    before = set(objects)
    for _ in range(4):
        collected(destination)
    # An orphan by name: it is retired and deleted, and takes nothing along.
    assert before - set(objects) == {key}
    for position, state in long.states.items():
        assert rows_at(destination, position) == state


def test_an_unreadable_list_is_deleted_and_what_it_named_is_found_by_listing(
    destination: ScriptedDestination,
) -> None:
    long = compacted_archive(destination)
    destination.store.world.now += 10 * HOUR_S
    long.grow(3)
    long.archive.merging.drop_parts(timedelta(hours=5))
    for key in [key for key in destination.store.objects if "/parts-" in key]:
        destination.store.objects[key] = (b"?", *destination.store.objects[key][1:])
    for _ in range(5):
        collected(destination)
    assert set(destination.store.objects) == {MANIFEST} | destination.manifest.kept_keys()
