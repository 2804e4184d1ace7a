"""A virtual environment with nothing but the project and what it needs."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
from packaging.requirements import Requirement

from laredo_archive.cli import main as archive
from laredo_fanout.cli import main as fanout
from laredo_snapshotter.cli import cli as snapshotter
from laredo_spark.cli import main as spark
from tests.support.processes import completed, free_port

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, click.Command] = {
    "laredo-archive": archive,
    "laredo-fanout": fanout,
    "laredo-snapshotter": snapshotter,
    "laredo-spark": spark,
}
COMMANDS = tuple(PROGRAMS)


def source(directory: Path) -> Path:
    """The repository's files as they are now, where a build leaves nothing in the work tree."""
    listed = subprocess.run(
        [
            *("git", "ls-files", "-z", "pyproject.toml", "setup.py", "MANIFEST.in", "*.md"),
            *("docs", "examples", "proto", "runbooks", "laredo_*", "pyspark_laredo"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            copy = directory / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    return directory


def wheel(tree: Path, into: Path, **environment: str) -> tuple[Path, str]:
    """The wheel made of a tree, and what its build said."""
    # What an earlier build compiled would be taken as it is.
    shutil.rmtree(tree / "build", ignore_errors=True)
    made = completed(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-v",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            into,
            tree,
        ],
        env={**os.environ, **environment},
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return next(into.glob("*.whl")), made.stdout + made.stderr


def server_configuration(directory: Path) -> Path:
    file = directory / "fanout.conf"
    file.write_text(
        f'state.path = "{directory}/state"\n'
        f'sources.pg.connection = "host=127.0.0.1 port={free_port()} dbname=none"\n'
        "tables = [{ table = users }]\n"
        f"fanout {{ grpc.port = {free_port()}, drain_grace = 0s }}\n"
    )
    return file


def writer_configuration(directory: Path) -> Path:
    file = directory / "writer.conf"
    file.write_text(
        "snapshotter {\n"
        f'  source {{ server = "127.0.0.1:{free_port()}", table = users }}\n'
        f'  destinations = [{{ type = local, path = "{directory}/archive" }}]\n'
        "}\n"
    )
    return file


class Bare:
    """The environment; ``run`` runs one of its commands away from the repository."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        venv = [sys.executable, "-m", "venv", "--without-pip", directory / "venv"]
        subprocess.run(venv, check=True)
        self.bin = directory / "venv" / "bin"
        [self._packages] = (directory / "venv" / "lib").glob("python*/site-packages")

    def pip(self, *arguments: str | Path) -> None:
        """Run the common environment's pip for this one."""
        subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", "--python", self.bin / "python", *arguments],
            check=True,
        )

    def install(self, what: Path) -> None:
        """Install a wheel without what it needs."""
        self.pip("install", "--no-deps", "--no-build-isolation", "--no-compile", what)

    def link(self, distribution: str = "laredo-snapshotter") -> None:
        """Have what a distribution needs without extras from the common environment."""
        todo, linked = [Requirement(distribution)], set[str]()
        while todo:
            wanted = todo.pop()
            found = metadata.distribution(wanted.name)
            environments = [{"extra": extra} for extra in ("", *wanted.extras)]
            for each in map(Requirement, found.requires or ()):
                needed = each.marker is None or any(map(each.marker.evaluate, environments))
                if needed and str(each) not in linked:
                    linked.add(str(each))
                    todo.append(each)
            if wanted.name != distribution:
                self._link_files(found)

    def _link_files(self, found: metadata.Distribution) -> None:
        for file in found.files or ():
            link = self._packages / file
            if ".." not in file.parts and file.suffix != ".pyc" and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                original = Path(str(found.locate_file(file)))
                link.symlink_to(original)
                compiled = link.parent / "__pycache__"
                if not compiled.is_symlink():
                    compiled.symlink_to(original.parent / "__pycache__")

    def run(self, command: str, *arguments: str, check: bool = False) -> "Ended":
        """Run it with a stdout that is no terminal."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        ended = completed([self.bin / command, *arguments], cwd=self.directory, env=environment)
        assert not check or ended.returncode == 0, ended.stdout + ended.stderr
        return ended


Ended = subprocess.CompletedProcess[str]
