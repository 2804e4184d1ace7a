"""A full disk and a read-only one: one clear message, nothing lost, and it goes on when cured."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.archive.storage.on_small_disk import SCENARIOS
from tests.support.processes import PATIENCE_S


@cache
def forbidden() -> str | None:
    """Reason why no file system can be mounted here, or None."""
    try:
        done = subprocess.run(
            ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as missing:
        return str(missing)
    return None if done.returncode == 0 else done.stderr.strip()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_a_small_disk(scenario: str, tmp_path: Path) -> None:
    reason = forbidden()
    if reason is not None:
        pytest.skip(f"FULL AND READ-ONLY DISKS ARE NOT TESTED HERE: unshare -Urm: {reason}")
    program = [sys.executable, "-m", "tests.archive.storage.on_small_disk"]
    done = subprocess.run(
        ["unshare", "-Urm", *program, scenario, str(tmp_path / "disk")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
