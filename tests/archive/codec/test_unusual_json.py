"""Rows with json that few parsers hold go through the archive as PostgreSQL wrote them."""

import subprocess
import sys
from pathlib import Path

import pytest

from laredo_archive.reader import Archive
from tests.support.archive.building import Builder
from tests.support.archive.unusual_json import COLUMNS, DOCS, HUGE, rows
from tests.support.processes import PATIENCE_S


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    builder = Builder(
        tmp_path, columns=COLUMNS, formats=("jsonl", "protobuf"),
        base_formats=("jsonl", "protobuf", "parquet"),
    )  # fmt: skip
    return builder.base(100, rows("old")).diff(200, rows("new")).write()


def ran(*arguments: object) -> bytes:
    program = Path(sys.executable).with_name("laredo-archive")
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done.stdout


@pytest.mark.thorough
def test_every_command_gives_the_rows_back(archive: Path, tmp_path: Path) -> None:
    assert sorted(ran("cat", archive).splitlines()) == sorted(rows("new").values())
    assert ran("diff", archive, "--from", "0/64", "--to", "0/C8").count(b"\n") == len(DOCS)
    ran("verify", archive)
    ran("copy", archive, tmp_path / "copy")
    assert sorted(ran("cat", tmp_path / "copy").splitlines()) == sorted(rows("new").values())
    for format_id in ("jsonl", "protobuf", "parquet", "csv"):
        ran("export", archive, tmp_path / f"rows.{format_id}", "--format", format_id)
    assert HUGE in (tmp_path / "rows.csv").read_bytes()


@pytest.mark.parametrize("format_id", ["jsonl", "protobuf"])
def test_each_format_gives_the_rows_back(tmp_path: Path, format_id: str) -> None:
    builder = Builder(tmp_path, columns=COLUMNS, formats=(format_id,))
    archive = Archive.at(str(builder.base(100, rows("old")).diff(200, rows("new")).write()))
    found = [line for part in archive.rows(archive.boundary()) for line in part[1]]
    assert sorted(found) == sorted(rows("new").values())
