"""A release of PySpark that lacks what a read needs is one line with the releases that fit."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from laredo_spark.errors import PYSPARK
from tests.support.processes import completed

ROOT = Path(__file__).parents[2]


def earlier_pyspark(directory: Path) -> str:
    """A package that says it is PySpark 4.0, without the classes that came later."""
    for package in ("pyspark", "pyspark/sql"):
        (directory / package).mkdir()
        (directory / package / "__init__.py").write_text("")
    (directory / "pyspark" / "__init__.py").write_text('__version__ = "4.0.1"\n')
    (directory / "pyspark" / "sql" / "datasource.py").write_text("")
    return f"{directory}:{ROOT}"


@pytest.mark.parametrize(
    "asked", ["from laredo_spark import read_table", "from pyspark_laredo import DefaultSource"]
)
def test_an_earlier_one_is_named(tmp_path: Path, asked: str) -> None:
    ended = run(tmp_path, "-c", asked)
    assert ended.stderr.splitlines()[-1].startswith(
        "laredo_spark.errors.PySparkUnfit: PySpark 4.0.1 lacks what this needs: pip install"
        f" '{PYSPARK}'"
    )


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "-m", "laredo_spark", "read", "archive")
    assert ended.returncode == 1 and ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line.startswith("laredo-spark: PySpark 4.0.1 lacks what this needs")


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(
        [sys.executable, *arguments], env={"PYTHONPATH": earlier_pyspark(directory)}, cwd=directory
    )


def test_the_releases_are_those_of_the_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert PYSPARK in extras["optional-dependencies"]["spark"]
