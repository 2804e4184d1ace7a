"""An archive whose writer began to compress: every tool reads, copies, repairs and collects it."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from laredo_archive.cli import main
from laredo_archive.codec.zstd_frames import PlainBytes
from laredo_archive.maintain.collect import Policy, collect
from laredo_archive.manifest import object_keys
from laredo_archive.read import fetched_diff, location
from laredo_archive.storage.access import S3Access
from laredo_archive.storage.local import LocalDestination
from tests.support.archive.archiving import (
    ONE,
    PREFIX,
    TABLE,
    THREE,
    TWO,
    based,
    diffed,
    rebased,
)
from tests.support.archive.command_line import printed

AT_ONCE = Policy(cut_off=timedelta(seconds=-1), grace=timedelta(seconds=-1))
ALL = ("jsonl.zst", "protobuf.zst")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Plain at first, then compressed, in two epochs."""
    directory = tmp_path / "archive"
    directory.mkdir()
    made = based([LocalDestination(directory)])
    diffed(made, 10, 20, ONE, TWO, formats=ALL)
    rebased(made, 20, TWO, formats=ALL)
    diffed(made, 20, 30, TWO, THREE, formats=ALL)
    return directory / PREFIX


def test_it_is_read_and_verified(archive: Path) -> None:
    assert any("jsonl.zst" in line for line in printed("ls", archive))
    for position, state in (("0/A", ONE), ("0/14", TWO), ("0/1E", THREE)):
        rows = printed("cat", archive, "--as-of", position, "--exact")
        assert [row.encode() for row in rows] == [state[key] for key in sorted(state)]
    assert printed("diff", archive, "--from", "0/A", "--to", "0/1E")
    printed("verify", archive)


@pytest.mark.parametrize("name", ["t.jsonl.zst", "t.pb.zst"])
def test_it_is_exported_as_the_file_s_name_says(archive: Path, tmp_path: Path, name: str) -> None:
    plain = tmp_path / name.removesuffix(".zst")
    printed("export", archive, tmp_path / name)
    printed("export", archive, plain)
    with (tmp_path / name).open("rb") as compressed:
        assert PlainBytes(compressed).read() == plain.read_bytes()


def test_a_damaged_object_is_named(archive: Path) -> None:
    (diff,) = archive.glob("epoch=2/diff-*.jsonl.zst")
    diff.write_bytes(diff.read_bytes()[:-1] + b"\x00")
    done = CliRunner().invoke(main, ["cat", str(archive), "--epoch", "2"])
    assert done.exit_code == 1
    assert diff.name in done.output


def test_a_copy_has_it_all(archive: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy" / PREFIX
    printed("copy", archive, target)
    printed("verify", target)
    assert sorted(p.name for p in target.rglob("*.zst")) == sorted(
        p.name for p in archive.rglob("*.zst")
    )


def test_what_left_the_manifest_is_collected(archive: Path) -> None:
    destination = LocalDestination(archive.parent)
    left = f"{PREFIX}epoch=1/diff-0_1-0_2.jsonl.zst", f"{PREFIX}epoch=1/snapshot-0_1.pb.zst"
    other = f"{PREFIX}epoch=1/notes.zst"
    for key in (*left, other):
        (archive.parent / key).write_bytes(b"litter")
    assert all(object_keys.is_own(key, PREFIX) for key in left)
    deleted: list[str] = []
    for _ in range(3):
        deleted += collect(destination, TABLE, key_prefix=PREFIX, policy=AT_ONCE).deleted
    assert set(left) <= set(deleted)
    assert (archive.parent / other).exists()
    printed("verify", archive)


@pytest.mark.parametrize("format_id", ALL)
def test_a_diff_is_fetched_for_a_server_s_client(
    archive: Path, tmp_path: Path, format_id: str
) -> None:
    found = location.find(str(archive), S3Access())
    base, diff = found.manifest.artifacts[-2:]
    changes = fetched_diff.changes(found, diff, base.columns, [format_id], tmp_path)
    state = dict(TWO)
    for change in changes:
        if change.new is None:
            del state[change.key]
        else:
            state[change.key] = change.new
    assert state == THREE


def test_a_format_of_a_later_version_is_refused_by_its_name(archive: Path) -> None:
    """As a reader that doesn't know jsonl.zst refuses that."""
    manifest = archive / "manifest.json"
    text = manifest.read_text().replace('"jsonl.zst"', '"jsonl.x"').replace('"protobuf.zst"', '"y"')
    manifest.write_text(text)
    done = CliRunner().invoke(main, ["cat", str(archive)])
    assert done.exit_code == 1
    assert "jsonl.x, y only" in done.output
