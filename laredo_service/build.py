"""Version of the project, and the commit that it was built from."""

import subprocess
from collections.abc import Callable
from functools import cache
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import click

UNKNOWN = "unknown"
_WRITTEN = Path(__file__).with_name("commit.txt")
"""setup.py writes it."""
_WORK_TREE = Path(__file__).parents[1]
_GIT_PATIENCE_S = 5.0


def version() -> str:
    """The version of the installed distribution."""
    return installed_version("laredo-snapshotter")


@cache
def commit() -> str:
    """The commit that the build recorded, or that git names for a work tree; else ``unknown``.

    It ends with ``-dirty`` if files had been changed since.
    """
    try:
        return _WRITTEN.read_text().strip()
    except FileNotFoundError:
        return _of_work_tree(_WORK_TREE)


def _of_work_tree(directory: Path) -> str:
    if not (directory / ".git").exists():
        return UNKNOWN
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        asked = subprocess.run(
            describe,
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_PATIENCE_S,
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return asked.stdout.strip() or UNKNOWN


def version_option() -> Callable[[Any], Any]:
    """The ``--version`` of a command line."""

    def show(context: click.Context, option: click.Parameter, asked: bool) -> None:
        del option
        if asked and not context.resilient_parsing:
            name = context.find_root().info_name
            click.echo(f"{name}, version {version()}, commit {commit()}")
            context.exit()

    return click.option(
        "--version",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show the version and the commit that it was built from, and exit.",
    )
