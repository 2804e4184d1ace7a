"""Contents of distributions: the commit that they were built from, if known, and the pages."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from laredo_service import build
from tests.install.bare import PROGRAMS, ROOT, source
from tests.support.processes import completed

WRITTEN = "laredo_service/commit.txt"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources without what is compiled: what is asked here is quick to build."""
    tree = source(tmp_path / "tree")
    text = (tree / "setup.py").read_text()
    before, _, rest = text.partition("COMPILED = (")
    (tree / "setup.py").write_text(f"{before}COMPILED = (){rest[rest.index(')') + 1 :]}")
    return tree


def git(tree: Path, *arguments: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    asked = subprocess.run(
        ["git", *who, *arguments], cwd=tree, capture_output=True, text=True, check=True
    )
    return asked.stdout.strip()


def committed(tree: Path) -> str:
    """The tree as a repository with one commit; its name in twelve letters."""
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "x")
    return git(tree, "rev-parse", "--short=12", "HEAD")


def named(tree: Path, into: Path, **environment: str) -> str:
    """The commit in a wheel made of the tree."""
    setup(tree, "bdist_wheel", into, **environment)
    with zipfile.ZipFile(next(into.glob("*.whl"))) as opened:
        return opened.read(WRITTEN).decode().strip()


def setup(tree: Path, command: str, into: Path, **environment: str) -> None:
    done = completed(
        [sys.executable, "setup.py", "-q", command, "-d", into],
        cwd=tree,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_names_the_repository_s_commit(tree: Path, tmp_path: Path) -> None:
    commit = committed(tree)
    assert named(tree, tmp_path / "clean") == commit
    readme = tree / "README.md"
    readme.write_text(readme.read_text() + "\n")
    assert named(tree, tmp_path / "dirty") == f"{commit}-dirty"


@pytest.mark.thorough
def test_a_build_without_a_repository_is_given_it_or_says_unknown(
    tree: Path, tmp_path: Path
) -> None:
    assert named(tree, tmp_path / "given", SOURCE_COMMIT="0123456789ab") == "0123456789ab"
    # Within another project's repository, whose commit isn't ours.
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "another's")
    assert named(tree, tmp_path / "unknown") == "unknown"


@pytest.mark.thorough
def test_a_source_distribution_carries_it_to_the_wheel(tree: Path, tmp_path: Path) -> None:
    commit = committed(tree)
    setup(tree, "sdist", tmp_path / "dist")
    (tmp_path / "unpacked").mkdir()
    packed = next((tmp_path / "dist").glob("*.tar.gz"))
    # Not by tarfile, which has no filters before Python 3.11.4, and wants one later.
    assert completed(["tar", "-xzf", packed, "-C", tmp_path / "unpacked"]).returncode == 0
    assert named(next((tmp_path / "unpacked").iterdir()), tmp_path / "wheel") == commit


def test_a_source_distribution_has_pages_examples_and_the_protocol(
    tree: Path, tmp_path: Path
) -> None:
    setup(tree, "sdist", tmp_path / "dist")
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert names >= {
        "CHANGELOG.md",
        "docs/quickstart.md",
        "examples/kubernetes/server.yaml",
        "proto/laredo/replication/v1/replication.proto",
        "runbooks/README.md",
    }
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.parametrize("command", PROGRAMS)
def test_the_four_commands_show_version_and_commit(command: str) -> None:
    shown = CliRunner().invoke(PROGRAMS[command], ["--version"], prog_name=command).output
    assert shown == f"{command}, version {build.version()}, commit {build.commit()}\n"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a work tree")
def test_a_work_tree_runs_its_own_commit() -> None:
    assert build.commit().removesuffix("-dirty") == git(ROOT, "rev-parse", "--short=12", "HEAD")
