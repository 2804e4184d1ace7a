"""The house stays as it is drawn: imports go one way, folders and files stay small."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [
    "laredo_model",
    "laredo_archive",
    "laredo_fanout",
    "laredo_snapshotter",
    "laredo_spark",
]
MOST_LINES = 400
MOST_FILES = 16


def sources(package: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name and path.name != "__init__.py"
    ]


def test_imports_go_downwards_and_never_in_circles() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_holds_one_idea(package: str) -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for path in sources(package)
    }
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_is_seen_at_a_glance(package: str) -> None:
    folders = [path.parent for path in sources(package)]
    many = {folder: folders.count(folder) for folder in folders}
    assert {folder: count for folder, count in many.items() if count > MOST_FILES} == {}
