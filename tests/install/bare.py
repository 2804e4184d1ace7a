"""A virtual environment with nothing but the project and what it needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.processes import PATIENCE_S

ROOT = Path(__file__).parents[2]
COMMANDS = ("laredo-archive", "laredo-fanout", "laredo-snapshotter", "laredo-spark")


def source(directory: Path) -> Path:
    """The repository's files as they are now, where a build leaves nothing in the work tree."""
    listed = subprocess.run(
        [
            *("git", "ls-files", "-z", "pyproject.toml", "setup.py", "README.md"),
            *("laredo_*", "pyspark_laredo"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            copy = directory / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    return directory


def wheel(tree: Path, into: Path, **environment: str) -> tuple[Path, str]:
    """The wheel made of a tree, and what its build said."""
    # What an earlier build compiled would be taken as it is.
    shutil.rmtree(tree / "build", ignore_errors=True)
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", into, tree],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return next(into.glob("*.whl")), made.stdout + made.stderr


class Bare:
    """The environment; ``run`` runs one of its commands away from the repository."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        self.bin = directory / "venv" / "bin"

    def install(self, what: Path, *options: str) -> None:
        self.run("python", "-m", "pip", "install", *options, str(what), check=True)

    def run(self, command: str, *arguments: str, check: bool = False) -> "Ended":
        """Run it with a stdout that is no terminal."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        ended = subprocess.run(
            [self.bin / command, *arguments],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert not check or ended.returncode == 0, ended.stdout + ended.stderr
        return ended


Ended = subprocess.CompletedProcess[str]
