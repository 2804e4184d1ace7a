"""Build steps that pyproject.toml can't express: C extensions, and the commit that is built.

The commit is written into the package, so that every installation can name it
(laredo_service/build.py reads it).
"""

import os
import subprocess
import warnings
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
FILE = Path("laredo_service", "commit.txt")
COMPILED = (
    "laredo_fanout.decode._row_scan",
    "laredo_fanout.decode._frames",
    "laredo_fanout.wire._repeated",
    "laredo_fanout.serving._struct_rows",
    "laredo_fanout.store._seals",
    "laredo_archive.codec._struct_scan",
)
# pip repeats it in each editable installation.
warnings.filterwarnings("ignore", "Editable installation")


def built_commit() -> str:
    """The commit: what SOURCE_COMMIT says, git's, that of a source distribution; else unknown."""
    given = os.environ.get("SOURCE_COMMIT", "").strip()
    if given:
        return given
    # Only of the project's own repository: its files may lie within another one.
    if (ROOT / ".git").exists():
        describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        try:
            asked = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True)
            return asked.stdout.strip()
        except (OSError, subprocess.CalledProcessError) as failed:
            print(f"warning: git doesn't say which commit is built: {failed}")
    carried = ROOT / FILE
    return carried.read_text().strip() if carried.exists() else "unknown"


class BuildNamingCommit(build_py):
    """Copies the modules, and writes the commit beside them."""

    def run(self) -> None:
        super().run()
        # An editable installation runs the work tree, whose commit changes.
        if not self.editable_mode:
            self.mkpath(str(Path(self.build_lib) / FILE.parent))
            (Path(self.build_lib) / FILE).write_text(f"{built_commit()}\n")


class SdistNamingCommit(sdist):
    """A source distribution carries the commit: it has no repository."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / FILE).write_text(f"{built_commit()}\n")


setup(
    cmdclass={"build_py": BuildNamingCommit, "sdist": SdistNamingCommit},
    # Without a C compiler Python code does their work, at a sixth of the speed.
    ext_modules=[
        Extension(
            name, [f"{path}.c"], depends=sorted(map(str, path.parent.glob("_*.h"))), optional=True
        )
        for name in COMPILED
        for path in [Path(*name.split("."))]
    ],
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)
