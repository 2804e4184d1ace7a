"""``laredo-spark package``: the files that ``spark-submit`` takes to a cluster."""

from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

PACKAGES = ("laredo_model", "laredo_archive", "laredo_spark", "pyspark_laredo")
MODULES = "laredo-spark.zip"
PROGRAM = "laredo-spark.py"
_PROGRAM_TEXT = '''"""What spark-submit runs: the command laredo-spark."""

from laredo_spark.cli import main

main(prog_name="laredo-spark")
'''
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can say; one for all, so that the same code is the same zip."""


def write(directory: Path) -> tuple[Path, Path]:
    """Write the modules for ``--py-files``, and the program to submit; give their paths.

    :raises OSError: if they can't be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    modules, program = directory / MODULES, directory / PROGRAM
    with ZipFile(modules, "w", ZIP_DEFLATED) as made:
        for package in PACKAGES:
            for file in _files(package):
                name = file.relative_to(_home(package).parent).as_posix()
                made.writestr(ZipInfo(name, _OLDEST), file.read_bytes(), ZIP_DEFLATED)
    program.write_text(_PROGRAM_TEXT)
    return modules, program


def _home(package: str) -> Path:
    found = find_spec(package)
    assert found is not None and found.origin is not None, f"{package} is part of this project"
    return Path(found.origin).parent


def _files(package: str) -> list[Path]:
    return sorted(_home(package).rglob("*.py"))
