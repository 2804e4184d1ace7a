"""The golden archives are as their truths say, and laredo-archive reads them so.

No expected row is this program's own: truth/ is written by hand, but for ``types``, whose
rows are a real PostgreSQL's.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laredo_archive.cli import main
from tests.golden import postgres
from tests.golden.by_the_page import Page
from tests.golden.make import made
from tests.support.archive.command_line import printed
from tests.support.golden.truth import ARCHIVES, TRUTHS, Truth, all_truths, position_of
from tests.support.postgres import Database

NAMES = [truth.name for truth in all_truths()]
DOCUMENT = Path(__file__).parents[2] / "docs/archive-format.md"
FORMATS = ("jsonl", "protobuf", "parquet")
BOUNDARIES = [(truth.name, name) for truth in all_truths() for name in truth.boundaries]
WINDOWS = [(t.name, start, end) for t in all_truths() for start, end, _ in t.windows()]
AS_OF = [(t.name, number) for t in all_truths() for number in range(len(t.as_of))]
WITHOUT_CHECKSUMS = ("bare", "original", "originals_keys", "originals_windows")


def of(name: str) -> Truth:
    return Truth(TRUTHS / name)


def in_one_format(name: str, format_id: str, directory: Path) -> Path:
    """A copy whose manifest names no other format, where there is this one."""
    copy = directory / name
    shutil.copytree(ARCHIVES / name, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for artifact in manifest["artifacts"]:
        choose(artifact, format_id)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def choose(artifact: dict[str, Any], format_id: str) -> None:
    found = artifact["formats"]
    chosen = {id_: found[id_] for id_ in found if id_.removesuffix(".zst") == format_id}
    artifact["formats"] = chosen or found
    for part in artifact.get("parts", {}).get("diffs", ()):
        choose(part, format_id)


@pytest.mark.parametrize("name", NAMES)
def test_files_are_as_the_truth_says(name: str) -> None:
    """Else: ``python -m tests.golden.make``."""
    expected = made(of(name))
    found = {
        path.relative_to(ARCHIVES).as_posix(): path.read_bytes()
        for path in (ARCHIVES / name).rglob("*")
        if path.is_file()
    }
    assert found == expected


def test_every_archive_has_a_truth_and_is_documented() -> None:
    assert sorted(path.name for path in ARCHIVES.iterdir()) == NAMES
    _, _, conformance_set = DOCUMENT.read_text().partition("## Conformance set")
    documented = re.findall(r"^\| (\w+) \|", conformance_set, re.MULTILINE)
    assert sorted(documented) == sorted(["archive", *NAMES])


def test_the_document_s_example_is_what_postgresql_computes(database: Database) -> None:
    """Of a checksum: two rows with their md5, the sum of these, and what is left of it."""
    example = re.search(r"Example, two rows:\n\n(.*?)\n\n", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    rows = re.findall(r"^ +(\{.*\}) +md5 +(\w{32})$", example[1], re.MULTILINE)
    with database.connect() as connection:
        assert [postgres.checksum(connection, [line]) for line, _ in rows] == [
            (1, digest) for _, digest in rows
        ]
        rows_and_sum = postgres.checksum(connection, [line for line, _ in rows])
    assert rows_and_sum == (2, example[1].split()[-1])


@pytest.mark.parametrize("format_id", FORMATS)
@pytest.mark.parametrize(("name", "boundary"), BOUNDARIES)
def test_rows_at_every_boundary(name: str, boundary: str, format_id: str, tmp_path: Path) -> None:
    position, epoch = position_of(boundary)
    archive = in_one_format(name, format_id, tmp_path)
    found = printed("cat", archive, "--as-of", position, "--epoch", epoch, "--exact")
    assert found == of(name).lines(boundary)


@pytest.mark.parametrize(("name", "start", "end"), WINDOWS)
def test_changes_between_boundaries(name: str, start: str, end: str) -> None:
    (expected,) = (lines for s, e, lines in of(name).windows() if (s, e) == (start, end))
    assert printed("diff", ARCHIVES / name, "--from", start, "--to", end) == expected


@pytest.mark.parametrize(("name", "number"), AS_OF)
def test_which_boundary_is_meant(name: str, number: int) -> None:
    asked = of(name).as_of[number]
    arguments = ["--as-of", asked["as_of"]] if asked["as_of"] else []
    arguments += ["--exact"] if asked.get("exact") else []
    arguments += ["--epoch", asked["epoch"]] if "epoch" in asked else []
    if asked["gives"] is None:
        done = CliRunner().invoke(main, ["cat", str(ARCHIVES / name), *map(str, arguments)])
        assert (done.exit_code, done.stdout) == (1, ""), asked
        return
    assert printed("cat", ARCHIVES / name, *arguments) == of(name).lines(asked["gives"]), asked


@pytest.mark.parametrize("name", NAMES)
def test_verify_finds_them_sound(name: str) -> None:
    printed("verify", ARCHIVES / name)


def test_types_are_what_postgresql_shows(database: Database) -> None:
    """Else: ``python -m tests.golden.postgres``."""
    truth = of("types")
    with database.connect() as connection:
        for name, lines in postgres.states(connection).items():
            assert truth.lines(name) == lines
        assert truth.described["columns"] == postgres.columns(connection)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_CHECKSUMS])
def test_checksums_are_what_postgresql_computes(name: str, database: Database) -> None:
    committed = Page(ARCHIVES, f"{name}/", "jsonl").committed()
    with database.connect() as connection:
        for artifact, boundary in zip(committed, of(name).boundaries, strict=True):
            expected = postgres.checksum(connection, of(name).lines(boundary))
            assert (artifact["rows"], artifact["state_checksum"]) == expected
