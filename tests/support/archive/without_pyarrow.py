"""A Python process that has no pyarrow."""

import subprocess
import sys

WITHOUT_PYARROW = """
import sys
from importlib.machinery import PathFinder
found = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == "pyarrow" else found(name, *more)
"""


def without_pyarrow(program: str) -> str:
    """Output of a Python process without pyarrow."""
    command = [sys.executable, "-c", WITHOUT_PYARROW + program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout
