"""A full disk and a read-only one: one clear message, nothing lost, and it goes on when cured."""

import sys
from functools import cache
from pathlib import Path

import pytest

from tests.archive.storage.on_small_disk import SCENARIOS
from tests.support.processes import completed


@cache
def forbidden() -> str | None:
    """Reason why no file system can be mounted here, or None."""
    try:
        done = completed(["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
    except FileNotFoundError as missing:
        return str(missing)
    return None if done.returncode == 0 else done.stderr.strip()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_a_small_disk(scenario: str, tmp_path: Path) -> None:
    reason = forbidden()
    if reason is not None:
        pytest.skip(f"FULL AND READ-ONLY DISKS ARE NOT TESTED HERE: unshare -Urm: {reason}")
    program = [sys.executable, "-m", "tests.archive.storage.on_small_disk"]
    done = completed(["unshare", "-Urm", *program, scenario, str(tmp_path / "disk")])
    assert done.returncode == 0, done.stderr
