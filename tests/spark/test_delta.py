"""The tests of Delta targets, in the virtual environment with the PySpark that Delta Lake knows."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-delta/bin/python"


# Each test in there has a time limit of its own; this one is for a machine that does much else.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", ["test_sync_delta.py", "test_sync_delta_killed.py"])
def test_delta_targets(tmp_path: Path, file: str) -> None:
    """Their own report is shown where one of them fails."""
    assert PYTHON.exists(), "Delta's tests need .venv-delta: `make test` makes it, and runs all"
    ours = ("PYTEST", "PYSPARK", "SPARK")
    options = ("-p", "no:cacheprovider", f"--basetemp={tmp_path / 'delta'}")
    done = subprocess.run(
        [PYTHON, "-m", "pytest", f"tests/spark/delta/{file}", *options],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(ours)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
