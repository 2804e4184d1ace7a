"""Directories of clusters that a killed session left are removed by the next one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.postgres import owned_directory, remove_abandoned

KILLED = """
import os, signal
from tests.support.postgres import owned_directory
with owned_directory() as path:
    (path / "data").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_only_what_has_no_owner_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    [left] = tmp_path.iterdir()
    assert (left / "data").is_dir()
    strangers = tmp_path / "laredo-data-of-somebody"
    strangers.mkdir()
    with owned_directory() as owned:
        remove_abandoned()
        assert set(tmp_path.iterdir()) == {owned, strangers}
