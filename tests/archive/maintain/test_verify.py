"""Every way in which an archive can be wrong is found, and named."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from laredo_archive.codec.arrow.rows import REST
from laredo_archive.maintain.verify import VerifyReport, verify
from laredo_archive.reader import Archive
from laredo_model.checksum import StateChecksum
from laredo_model.line import Action, Change
from tests.support.archive.building import Builder, row, state
from tests.support.archive.several_epochs import ONE, THREE, TWO, several_epochs


def report_of(built: Builder) -> VerifyReport:
    return verify(Archive.at(str(built.write())))


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"formats": ("protobuf",)},
        {"formats": ("jsonl", "protobuf")},
        {"base_formats": ("parquet",)},
        {"shuffled": True},
        {"shuffled": True, "base_formats": ("parquet",)},
    ],
)
def test_a_sound_archive_is_sound(tmp_path: Path, kind: dict) -> None:
    report = report_of(several_epochs(tmp_path, **kind))
    assert report.problems == []
    assert report.remarks == []
    assert report.boundaries == 7
    assert report.files == 7 * len(kind.get("formats", ("jsonl",)))


def test_an_archive_without_the_added_fields_is_sound_with_remarks(tmp_path: Path) -> None:
    built = several_epochs(tmp_path, plain=True)
    report = report_of(built)
    assert report.problems == []
    checksum = StateChecksum()
    checksum.add(list(ONE.values()))
    assert any(
        f"snapshot 0/64 of epoch 1: the manifest has no checksum; folding gives 3 rows,"
        f" {checksum.hex()}" in remark
        for remark in report.remarks
    )


def test_an_empty_archive_is_sound_and_says_that_it_is_empty(tmp_path: Path) -> None:
    report = report_of(Builder(tmp_path))
    assert report.sound
    assert "nothing in it yet" in report.remarks[0]


def entry(built: Builder, index: int, format_id: str = "jsonl") -> dict:
    return built.artifacts[index]["formats"][format_id]


def path(built: Builder, index: int, format_id: str = "jsonl") -> Path:
    return built.directory / entry(built, index, format_id)["key"]


def rewrite(built: Builder, index: int, change: Callable[[bytes], bytes]) -> None:
    """Another content, and the entry made to fit it."""
    file = path(built, index)
    data = change(file.read_bytes())
    file.write_bytes(data)
    entry(built, index)["size_bytes"] = len(data)
    entry(built, index)["sha256"] = hashlib.sha256(data).hexdigest()


def test_a_flipped_byte(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    file = path(built, 1)
    file.write_bytes(file.read_bytes().replace(b"Rob", b"Tob"))
    report = report_of(built)
    assert "diff-0_64-0_C8.jsonl: its sha256 is" in report.problems[0]
    assert "epoch 1: its states can't be checked, as files are damaged" in report.problems[1]
    assert len(report.problems) == 2
    assert report.boundaries == 4  # the other epochs are still proven


def test_a_missing_and_a_truncated_file_in_any_format(tmp_path: Path) -> None:
    built = several_epochs(tmp_path, formats=("jsonl", "protobuf"))
    path(built, 3, "protobuf").unlink()
    cut = path(built, 5, "protobuf")
    cut.write_bytes(cut.read_bytes()[:-1])
    problems = report_of(built).problems
    assert any(
        "snapshot-0_12C.pb" in problem and "doesn't exist" in problem for problem in problems
    )
    assert any("snapshot-0_258.pb: cut off" in problem for problem in problems)


def test_formats_that_hold_different_rows(tmp_path: Path) -> None:
    built = several_epochs(tmp_path, formats=("jsonl", "protobuf"))
    rewrite(built, 0, lambda data: data.replace(b"Ada", b"Eda"))
    assert "snapshot 0/64 of epoch 1: its formats (jsonl, protobuf) don't have the same rows" in (
        report_of(built).problems
    )


def test_a_changed_row_whose_file_fits_its_entry(tmp_path: Path) -> None:
    """Nothing but the state's checksum can tell."""
    built = several_epochs(tmp_path)
    rewrite(built, 5, lambda data: data.replace(b"Zo", b"Xo"))
    problems = report_of(built).problems
    assert any("snapshot 0/258 of epoch 3: folding gives the checksum" in p for p in problems)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change(Action.INSERT, *[row(1, "x")[0], None, row(1, "x")[1]]), "such a row already"),
        (Change(Action.DELETE, *[*row(5, "x"), None]), "there is no such row"),
        (Change(Action.UPDATE, *[*row(1, "x"), row(1, "y")[1]]), "its old row isn't the key's row"),
    ],
)
def test_a_change_that_doesn_t_fit(tmp_path: Path, change: Change, reason: str) -> None:
    built = Builder(tmp_path).base(100, ONE).diff_of(200, ONE, [change])
    problems = report_of(built).problems
    assert any(
        f"in the diff to 0/C8: {change.action.name} of the key" in problem and reason in problem
        for problem in problems
    )


@pytest.mark.parametrize("field", ["rows", "state_checksum"])
@pytest.mark.parametrize("index", range(7))
def test_a_wrong_state_at_any_boundary(tmp_path: Path, field: str, index: int) -> None:
    built = several_epochs(tmp_path)
    built.artifacts[index][field] = 17 if field == "rows" else "0" * 32
    (problem,) = report_of(built).problems
    assert "the manifest has" in problem
    assert f"epoch {built.artifacts[index]['epoch']}" in problem


@pytest.mark.parametrize("index", range(7))
def test_a_wrong_count_at_any_artifact(tmp_path: Path, index: int) -> None:
    built = several_epochs(tmp_path)
    name = "row_count" if "row_count" in built.artifacts[index] else "change_count"
    built.artifacts[index][name] += 2
    assert "the manifest has" in report_of(built).problems[0]


def test_a_base_that_doesn_t_continue_though_it_says_so(tmp_path: Path) -> None:
    built = Builder(tmp_path).base(100, ONE).diff(200, TWO).base(200, THREE)
    (problem,) = report_of(built).problems
    assert problem.startswith("epoch 2 continues the one before, which has 3 rows")
    built = Builder(tmp_path / "gap").base(100, ONE).base(200, THREE, continues=False)
    assert report_of(built).sound


def test_truncate_flag_and_line_that_disagree(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    built.artifacts[2]["truncate"] = False
    assert "it has a TRUNCATE that its entry doesn't name" in report_of(built).problems[0]
    built = several_epochs(tmp_path / "other")
    built.artifacts[1]["truncate"] = True
    assert "records a TRUNCATE, and the file has none" in report_of(built).problems[0]


def test_splits_and_order_that_aren_t_so(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    line = len(ONE[b"1"]) + 1
    for splits, reason in (
        ([["1", 0], ["10", line]], None),
        ([["1", 0], ["2", line]], "its splits have '2' at byte"),
        ([["1", 0], ["10", line - 5]], "its splits have '10' at byte"),
        ([["10", line], ["1", 0]], "doesn't follow"),
    ):
        entry(built, 5)["splits"] = splits
        problems = report_of(built).problems
        assert (reason is None) == (problems == [])
        assert reason is None or reason in problems[0]
    shuffled = several_epochs(tmp_path / "shuffled", shuffled=True)
    entry(shuffled, 0)["sorted"] = True
    assert "declares it sorted" in report_of(shuffled).problems[0]


def test_parquet_beside_jsonl_is_compared_with_it(tmp_path: Path) -> None:
    both = {"base_formats": ("jsonl", "parquet")}
    assert report_of(several_epochs(tmp_path / "same", **both)).remarks == []
    built = several_epochs(tmp_path / "other", **both)
    table = pq.read_table(path(built, 0, "parquet"))
    names = pa.array(["somebody else"] * table.num_rows, pa.string())
    _replaced(built, 0, table.set_column(table.schema.get_field_index("name"), "name", names))
    [problem, _] = report_of(built).problems
    assert "its formats (jsonl, parquet) don't have the same rows" in problem


def test_parquet_that_gives_no_lines_back_is_counted_only(tmp_path: Path) -> None:
    built = several_epochs(tmp_path, base_formats=("parquet",))
    for index, artifact in enumerate(built.artifacts):
        if artifact["kind"] == "snapshot":
            _written_by_another_tool(built, index)
    report = report_of(built)
    assert report.problems == []
    assert "its base exists only in a format that doesn't restore the lines" in report.remarks[0]
    built.artifacts[0]["row_count"] += 1
    assert "rows, the manifest has" in report_of(built).problems[0]


def _written_by_another_tool(built: Builder, index: int) -> None:
    table = pq.read_table(path(built, index, "parquet"))
    _replaced(built, index, table.drop_columns([REST]).replace_schema_metadata(None))


def _replaced(built: Builder, index: int, table: pa.Table) -> None:
    file = path(built, index, "parquet")
    pq.write_table(table, file)
    described = entry(built, index, "parquet")
    described["size_bytes"] = file.stat().st_size
    described["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_format_of_another_program_is_hashed_only(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    orc = tmp_path / "users" / "table.orc"
    orc.write_bytes(b"ORC")
    described = {
        "uri": orc.as_uri(),
        "key": "users/table.orc",
        "size_bytes": 3,
        "sha256": hashlib.sha256(b"ORC").hexdigest(),
        "exact": False,
    }
    built.artifacts[0]["formats"]["orc"] = described
    report = report_of(built)
    assert report.sound
    assert "orc rows can't be read here" in report.remarks[0]
    described["sha256"] = "0" * 64
    assert "table.orc: its sha256 is" in report_of(built).problems[0]


def test_a_manifest_that_contradicts_itself(tmp_path: Path) -> None:
    built = several_epochs(tmp_path)
    directory = built.write()
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["head_position"] = "0/FFFF"
    (directory / "manifest.json").write_text(json.dumps(manifest))
    problems = verify(Archive.at(str(directory))).problems
    assert any("head_position is 0/FFFF" in problem for problem in problems)


def test_many_diffs_fold_to_every_boundary(tmp_path: Path) -> None:
    """More files than are opened at once, truncates in between."""
    built = Builder(tmp_path).base(10, ONE)
    for number in range(2, 120):
        rows = dict(built.states[-1])
        rows |= [row(number % 17, f"v{number}")]
        rows.pop(b"%d" % (number * 7 % 17), None)
        built.diff(number * 10, state(*rows.items()), truncate=number in (40, 100))
    report = report_of(built)
    assert report.problems == []
    assert report.boundaries == 119
