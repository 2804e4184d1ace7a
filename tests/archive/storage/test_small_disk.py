"""A full disk and a read-only one: one clear message, nothing lost, and it goes on when cured."""

import sys
from pathlib import Path

import pytest

from tests.archive.storage.on_small_disk import SCENARIOS
from tests.support.processes import completed
from tests.support.server.small_disk import may_mount


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_a_small_disk(scenario: str, tmp_path: Path) -> None:
    may_mount()
    program = [sys.executable, "-m", "tests.archive.storage.on_small_disk"]
    done = completed(["unshare", "-Urm", *program, scenario, str(tmp_path / "disk")])
    assert done.returncode == 0, done.stderr
