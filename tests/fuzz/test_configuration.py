"""Whatever stands in a file, the environment or behind --set: a configuration or a typed error."""

import subprocess
import sys

import pytest

from tests.fuzz import budget


@pytest.mark.timeout(3600)
def test_every_configuration_is_read_or_refused_by_name() -> None:
    """In a process of its own: one that hangs or takes more than 2 GB is ended, and has failed."""
    seconds = f"{budget.SECONDS:g}"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.fuzz.configurations",
            f"--seed={budget.FIRST_SEED}",
            f"--seconds={seconds}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    seeds = [line for line in ended.stdout.splitlines() if line.startswith("seed ")]
    said = f"{ended.stderr[-5000:]}\n{budget.repetition(int(seeds[-1].split()[1]))}"
    assert ended.returncode == 0, said
    assert "inputs held" in ended.stdout
