"""``verify`` proves merged diffs by their parts, and ``ls`` shows them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laredo_archive.cli import main
from laredo_archive.maintain.verify import verify
from laredo_archive.manifest import merged as merged_
from laredo_archive.manifest.model import Artifact
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import PREFIX, opened, rebased
from tests.support.archive.long_archive import LongArchive, spoil


def archive_at(directory: Path) -> Archive:
    return Archive.at(str(directory / "first" / PREFIX))


def deepest(archive: Archive) -> Artifact:
    """A diff that only a file of parts names."""
    named = {entry.key for entry in archive.manifest.named()}
    archive.unfold(merged_.everywhere)
    hidden = [a for a in archive.manifest.artifacts if not named & set(a.keys)]
    return hidden[len(hidden) // 2]


def test_every_level_is_proven(long: LongArchive, tmp_path: Path) -> None:
    report = verify(archive_at(tmp_path))
    assert report.problems == []
    assert report.boundaries == len(long.states)


def test_a_damaged_part_is_named_with_what_it_costs(long: LongArchive, tmp_path: Path) -> None:
    key = deepest(archive_at(tmp_path)).formats["jsonl"].key
    path = tmp_path / "first" / key
    spoil(path, path.read_bytes().replace(b'"id"', b'"ID"') + b"\n")
    report = verify(archive_at(tmp_path))
    assert any(path.name in problem for problem in report.problems)
    assert any("can't be read, those at both can" in problem for problem in report.problems)
    assert 0 < report.boundaries < len(long.states)


def test_a_merged_diff_that_its_parts_do_not_make(
    long: LongArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_at(tmp_path)
    merged = next(a for a in archive.manifest.artifacts if a.parts)
    real = merged_.PartsFiles.diffs_of

    def others(files: merged_.PartsFiles, of: Artifact) -> tuple[Artifact, ...]:
        # As if the list led where it should, by other diffs.
        return real(files, of)[:-1] if of.same_as(merged) else real(files, of)

    monkeypatch.setattr(merged_.PartsFiles, "diffs_of", others)
    [problem] = verify(archive).problems
    assert "make other changes than it holds" in problem


def test_a_list_that_is_gone(long: LongArchive, tmp_path: Path) -> None:
    for path in tmp_path.rglob("parts-*"):
        path.unlink()
    report = verify(archive_at(tmp_path))
    assert report.problems
    assert all("can't be read, those at both can" in problem for problem in report.problems)


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
