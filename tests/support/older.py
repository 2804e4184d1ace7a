"""Programs as an earlier commit has them, in the same virtual environment."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import Program
from tests.support.repository import ROOT


class CommitUnknown(Exception):
    """The repository hasn't got the commit: its history was cut off."""


def checkout(commit: str, directory: Path) -> Path:
    """The commit's packages, in a directory of their own.

    :raises CommitUnknown: if the repository hasn't got it.
    """
    tree = directory / commit
    tree.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise CommitUnknown(packed.stderr.decode(errors="replace").strip())
    subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
    return tree


def checked_out(commit: str, directory: Path) -> Path:
    """Check out a commit for a test, which is skipped if the history was cut off."""
    try:
        return checkout(commit, directory)
    except CommitUnknown as unknown:
        pytest.skip(f"AN EARLIER VERSION WASN'T TESTED: {unknown}")


def environment(tree: Path) -> Mapping[str, str]:
    """Environment in which the virtual environment's scripts, and their children, run this tree."""
    # Children are started with `python -m`, which else begins with the working directory.
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def run_as(program: Program, tree: Path) -> None:
    """Have the program be the tree's from its next start on.

    It has its defaults, and no compiled modules: an earlier version's aren't built.
    """
    program.environment = {**program.environment, **environment(tree)}
    ran = subprocess.run(
        [sys.executable, "-c", "import laredo_fanout; print(laredo_fanout.__file__)"],
        env={**os.environ, **environment(tree)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith(str(tree)), "the virtual environment's own would run"
