"""``laredo-spark package``: the files that ``spark-submit`` takes to a cluster."""

import re
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

PACKAGES = ("laredo_model", "laredo_service", "laredo_archive", "laredo_spark", "pyspark_laredo")
MODULES = "laredo-spark.zip"
PROGRAM = "laredo-spark.py"
REQUIREMENTS = "laredo-spark-workers.txt"
NEEDED_BY_WORKERS = ("boto3", "orjson", "pyarrow", "zlib-ng", "zstandard")
_PROJECT = "laredo-snapshotter"
_PROGRAM_TEXT = '''"""What spark-submit runs: the command laredo-spark."""

from laredo_spark.cli import main

main(prog_name="laredo-spark")
'''
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can say; one for all, so that the same code is the same zip."""


@dataclass(frozen=True)
class Package:
    """The files for a cluster."""

    #: The modules, for ``--py-files``.
    modules: Path
    #: The program to submit.
    program: Path
    #: What the workers' Python needs beside the modules, for ``pip install -r``.
    requirements: Path


def write(directory: Path) -> Package:
    """Write the files into ``directory``.

    :raises OSError: if they can't be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    made = Package(directory / MODULES, directory / PROGRAM, directory / REQUIREMENTS)
    with ZipFile(made.modules, "w", ZIP_DEFLATED) as modules:
        for package in PACKAGES:
            for file in _files(package):
                name = file.relative_to(_home(package).parent).as_posix()
                modules.writestr(ZipInfo(name, _OLDEST), file.read_bytes(), ZIP_DEFLATED)
    made.program.write_text(_PROGRAM_TEXT)
    made.requirements.write_text("".join(f"{each}\n" for each in requirements()))
    return made


def requirements() -> list[str]:
    """Packages that reading an archive needs, in the versions that this project names.

    If the project isn't installed and runs from its files, any version is allowed.
    """
    try:
        declared = metadata.requires(_PROJECT) or ()
    except metadata.PackageNotFoundError:
        return list(NEEDED_BY_WORKERS)
    found = (each.partition(";")[0].strip() for each in declared)
    return sorted(each for each in found if re.split(r"[^\w-]", each)[0] in NEEDED_BY_WORKERS)


def _home(package: str) -> Path:
    found = find_spec(package)
    assert found is not None and found.origin is not None, f"{package} is part of this project"
    return Path(found.origin).parent


def _files(package: str) -> list[Path]:
    return sorted(_home(package).rglob("*.py"))
