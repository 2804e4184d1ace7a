"""Directories of clusters that a killed session left are removed by the next one."""

import subprocess
import sys
from pathlib import Path

from tests.support.postgres import owned_directory, remove_abandoned

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.postgres import owned_directory
with owned_directory(Path(sys.argv[1])) as path:
    (path / "data").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_only_what_has_no_owner_goes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    [left] = tmp_path.iterdir()
    assert (left / "data").is_dir()
    strangers = tmp_path / "laredo-data-of-somebody"
    strangers.mkdir()
    with owned_directory(tmp_path) as owned:
        remove_abandoned(tmp_path)
        assert set(tmp_path.iterdir()) == {owned, strangers}
