"""Archives of the original: their diffs, where their objects are, and that nothing is changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laredo_archive.cli import main
from laredo_archive.errors import ArtifactDamaged, ManifestDamaged, NoSuchBoundary, OfTheOriginal
from laredo_archive.maintain.collect import collect
from laredo_archive.read import original
from laredo_archive.reader import Archive
from laredo_archive.storage.local import LocalDestination
from laredo_archive.write.table_archive import TableArchive
from laredo_model.line import TRUNCATION, Action, Change
from laredo_model.position import Position
from tests.support.archive.objects import put
from tests.support.archive.s3_maker import S3Maker
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth

ORIGINAL = ARCHIVES / "original"
TRUTH = Truth(TRUTHS / "original")


def row(number: int | str, value: str = "") -> bytes:
    return json.dumps({"id": number, "v": value}, separators=(",", ":")).encode()


def change(old: bytes | None, new: bytes | None, key: bytes = b"?") -> Change:
    action = Action.INSERT if old is None else Action.DELETE if new is None else Action.UPDATE
    return Change(action, key, old, new)


def resolved(*changes: Change) -> list[Change]:
    return list(original.resolved(changes, ["id"]))


def test_keys_are_of_the_rows_and_in_order() -> None:
    found = resolved(
        change(None, row(7), b"7"),
        change(row(1000001), None, b"1.000001e+06"),
        change(row("10", "a"), row("10", "b"), b"10"),
    )
    assert [(c.action.name, c.key) for c in found] == [
        ("UPDATE", b"10"),
        ("DELETE", b"1000001"),
        ("INSERT", b"7"),
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_truncate_anywhere_comes_first(place: int) -> None:
    records = [change(row(1, "a"), row(1, "b")), change(row(2), None)]
    records.insert(place, TRUNCATION)
    assert resolved(*records) == [TRUNCATION, change(None, row(1, "b"), b"1")]


def test_a_changed_key_removes_the_former_row() -> None:
    assert resolved(change(row(1), row(2))) == [
        change(row(1), None, b"1"),
        change(None, row(2), b"2"),
    ]


def test_a_former_key_that_got_another_row_keeps_it() -> None:
    found = resolved(change(row(1, "a"), row(2, "a")), change(None, row(1, "new")))
    assert {c.key: c.new for c in found} == {b"1": row(1, "new"), b"2": row(2, "a")}


def test_what_a_row_was_before_its_key_changed_is_removed() -> None:
    found = resolved(change(row(1, "a"), row(1, "b")), change(row(1, "b"), row(2, "b")))
    assert {c.key: c.new for c in found} == {b"1": None, b"2": row(2, "b")}


def test_a_key_of_several_columns_is_its_values_text() -> None:
    keys = original.keys_of([b'{"a":"r 2","n":14}', b'{"a":"r 2","n":"14"}'], ["a", "n"])
    assert keys == [b'["r 2",14]'] * 2


def test_numbers_are_the_same_however_they_are_written() -> None:
    keys = original.keys_of([b'{"k":1e-7}', b'{"k":1e-07}', b'{"k":"1e-07"}'], ["k"])
    assert keys == [b"1e-07"] * 3


def test_only_go_s_escapes_are_taken_out() -> None:
    line = rb'{"a":"\u003c\\u003c\u2028\u0001\" \u0026\u003E"}'
    found = rb'{"a":"<\\u003c' + "\u2028".encode() + rb'\u0001\" &>"}'
    assert original.plain(line) == found
    assert json.loads(found) == json.loads(line)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ORIGINAL, tmp_path / "elsewhere"))


def edited(archive: Path, edit: Any) -> Path:
    file = archive / "manifest.json"
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))
    return archive


def head_of(archive: Path | str, **more: Any) -> list[str]:
    opened = Archive.at(str(archive), **more)
    return [line.decode() for _, lines in opened.rows(opened.boundary()) for line in lines]


def test_uris_are_never_followed(copied: Path, tmp_path: Path) -> None:
    """They are another place's as they come, and anybody's as a bucket's writer may change them."""
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"id":1,"name":"secret"}\n')

    def lead_out(content: Any) -> None:
        for artifact in content["artifacts"]:
            for entry in artifact["formats"].values():
                entry["uri"] = secret.as_uri()

    assert head_of(edited(copied, lead_out)) == TRUTH.lines("3-0_60")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("to_position", "0/../../secret"),
        ("to_position", "../0/60"),
        ("from_position", "/0/1"),
        ("epoch", "../3"),
        ("to_position", None),
    ],
)
def test_no_name_that_is_computed_leads_out(copied: Path, field: str, value: object) -> None:
    def spoil(content: Any) -> None:
        content["artifacts"][-1][field] = value

    with pytest.raises(ManifestDamaged, match=field):
        head_of(edited(copied, spoil))


def test_a_format_s_name_doesnt_lead_out_either(copied: Path) -> None:
    def spoil(content: Any) -> None:
        content["artifacts"][-1]["formats"]["../../x"] = {"uri": "", "size_bytes": 1}

    archive = Archive.at(str(edited(copied, spoil)))
    keys = archive.manifest.artifacts[-1].keys
    assert all(key.startswith("epoch=3/diff-0-0_60.") and ".." not in key for key in keys)


def test_in_s3_below_a_prefix(s3: S3Maker) -> None:
    destination = s3()
    for path in ORIGINAL.rglob("*"):
        if path.is_file():
            key = f"there/{path.relative_to(ORIGINAL).as_posix()}"
            put(destination, key, path.read_bytes())
    archive = Archive.open(destination, "there/")
    found = [line.decode() for _, lines in archive.rows(archive.boundary()) for line in lines]
    assert found == TRUTH.lines("3-0_60")


def test_where_a_prefix_isnt_a_directory(tmp_path: Path) -> None:
    """The original's key_prefix is put before names as it stands."""
    for path in ORIGINAL.rglob("*"):
        if path.is_file():
            target = tmp_path / f"users-{path.relative_to(ORIGINAL).as_posix()}"
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
    assert head_of(tmp_path / "users-manifest.json") == TRUTH.lines("3-0_60")


def test_a_base_without_a_position_is_no_answer_but_to_0_0(copied: Path) -> None:
    archive = Archive.at(str(copied))
    with pytest.raises(NoSuchBoundary, match=r"isn't recorded. To read that base, ask for 0/0"):
        archive.boundary(Position(5))
    assert archive.boundary(Position(0x15)).position == 0x10
    assert archive.boundary(Position(0), epoch=1).epoch == 1
    assert str(archive.boundary(Position(0))) == "a position not recorded (epoch 3)"


def test_a_wrong_key_that_lost_changes_is_named(copied: Path) -> None:
    diff = copied / "epoch=3/diff-0-0_60.jsonl"
    diff.write_bytes(diff.read_bytes().replace(b'"key":"1"', b'"key":"<nil>"'))

    def fit(content: Any) -> None:
        formats = content["artifacts"][-1]["formats"]
        content["artifacts"][-1]["formats"] = {"jsonl": formats["jsonl"]}
        formats["jsonl"]["size_bytes"] = diff.stat().st_size

    with pytest.raises(ArtifactDamaged, match="a key column that the table doesn't have"):
        head_of(edited(copied, fit))


def test_verify_says_what_isnt_proven_and_finds_what_is_wrong(copied: Path) -> None:
    done = CliRunner().invoke(main, ["verify", str(copied)])
    assert done.exit_code == 0
    assert "without checksums" in done.output
    assert "Not proven" in done.output
    diff = copied / "epoch=1/diff-0-0_10.pb"
    diff.write_bytes(diff.read_bytes()[:-1])
    done = CliRunner().invoke(main, ["verify", str(copied)])
    assert done.exit_code == 1
    assert "cut off" in done.output


@pytest.mark.parametrize("command", ["cat", "export", "verify"])
@pytest.mark.parametrize("key", [[], ["--key", "id"]])
def test_two_rows_of_a_base_with_one_key_are_said(
    copied: Path, tmp_path: Path, command: str, key: list[str]
) -> None:
    """Most often the key is another one than was assumed."""
    base = copied / "epoch=2/snapshot-0_30.jsonl"
    lines = base.read_bytes().splitlines(keepends=True)
    base.write_bytes(b"".join([*lines, lines[0]]))

    def fit(content: Any) -> None:
        artifact = next(one for one in content["artifacts"] if one["to_position"] == "0/30")
        artifact["formats"] = {"jsonl": {"uri": "", "size_bytes": base.stat().st_size}}
        artifact["row_count"] += 1

    edited(copied, fit)
    target = [str(tmp_path / "out.jsonl")] if command == "export" else []
    as_of = [] if command == "verify" else ["--as-of", "0/40"]
    done = CliRunner().invoke(main, [command, str(copied), *target, *as_of, *key])
    assert done.exit_code == 1, done.output
    assert "snapshot-0_30.jsonl: two of its rows have the key '7'" in done.output
    assert ("set it with --key" in done.output) is not key


def test_key_columns_may_stand_in_one_option(tmp_path: Path) -> None:
    golden = ARCHIVES / "originals_keys"
    archive = edited(
        Path(shutil.copytree(golden, tmp_path / "elsewhere")),
        lambda content: content.pop("columns", None),
    )
    for options in (["--key", "region,no"], ["--key", "region", "--key", "no"]):
        done = CliRunner().invoke(main, ["cat", str(archive), *options])
        assert done.exit_code == 0, done.output
        assert done.output.splitlines() == Truth(TRUTHS / "originals_keys").lines("1-0_20")
    refused = CliRunner().invoke(main, ["cat", str(archive), "--key", ","])
    assert refused.exit_code == 2
    assert "write --key COLUMN,COLUMN" in " ".join(refused.output.split())


def snapshot_of(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", [["gc"], ["gc", "--dry-run"], ["copy"]])
def test_nothing_is_collected_or_copied(copied: Path, tmp_path: Path, command: list[str]) -> None:
    before = snapshot_of(copied)
    target = [str(tmp_path / "target")] if command == ["copy"] else []
    done = CliRunner().invoke(main, [command[0], str(copied), *target, *command[1:]])
    assert done.exit_code == 1
    assert "the original laredo-snapshotter wrote this archive" in done.output
    assert snapshot_of(copied) == before
    assert not (tmp_path / "target/manifest.json").exists()


def test_no_writer_and_no_collector_begins_there(copied: Path) -> None:
    before = snapshot_of(copied)
    destination = LocalDestination(copied.parent)
    with pytest.raises(OfTheOriginal, match="changes nothing there"):
        TableArchive.open([destination], "public.settings", key_prefix=f"{copied.name}/")
    with pytest.raises(OfTheOriginal):
        collect(destination, "public.settings", key_prefix=f"{copied.name}/")
    assert snapshot_of(copied) == before


def test_it_has_nothing_to_compare_a_database_with(copied: Path) -> None:
    done = CliRunner().invoke(main, ["verify", str(copied), "--against", "host=127.0.0.1"])
    assert done.exit_code == 1
    assert "they can't be compared with a database" in done.output


def test_it_is_exported(copied: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    done = CliRunner().invoke(main, ["export", str(copied), str(target), "--as-of", "0/10"])
    assert done.exit_code == 0, done.output
    assert target.read_text().splitlines() == TRUTH.lines("1-0_10")
