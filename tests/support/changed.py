"""The tests that a change can break: `make test-thorough CHANGED=1` runs these alone.

``--changed-since COMMIT`` selects a test if its module, or a module that it imports by any way,
differs from that commit, or lies in a folder of a package with a file that differs. A test that
names one of our programs is taken to import its command line. A file that Python doesn't import (C,
a page, a configuration, a fixture) counts as its folder; outside packages and tests, as everything.
"""

import re
import subprocess
from pathlib import Path

import grimp
import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = (
    "laredo_model",
    "laredo_service",
    "laredo_archive",
    "laredo_fanout",
    "laredo_snapshotter",
    "laredo_spark",
    "examples",
    "tests",
)
_PROGRAM = re.compile(r'"laredo[-_](archive|fanout|snapshotter|spark)\b')
_HARMLESS = ("docs/", "runbooks/", "benchmarks/", "README.md", "CHANGELOG.md", "mkdocs.yml")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--changed-since", metavar="COMMIT", help="only tests that a change can break")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    since = config.getoption("--changed-since")
    if since is None:
        return
    touched = affected(changed_files(since))
    chosen = [item for item in items if touched is None or _module(item.path) in touched]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def changed_files(since: str) -> list[str]:
    """Paths that differ from a commit, those that git doesn't know yet among them."""

    def git(*arguments: str) -> list[str]:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    return git("diff", "--name-only", since) + git("ls-files", "--others", "--exclude-standard")


def affected(files: list[str]) -> set[str] | None:
    """The modules that import any of these files, or their folders; None stands for all."""
    graph = grimp.build_graph(*_PACKAGES, include_external_packages=False)
    for each in graph.modules:
        source = Path(_ROOT, *each.split(".")).with_suffix(".py")
        if each.startswith(("tests.", "examples.")) and source.exists():
            for program in _PROGRAM.findall(source.read_text()):
                graph.add_import(importer=each, imported=f"laredo_{program}.cli")
    found: set[str] = set()
    for name in files:
        if name.startswith(_HARMLESS):
            continue
        path = Path(name)
        if path.parts[0] not in _PACKAGES or path.name == "conftest.py":
            return None
        if path.parts[0] == "examples" and path.suffix != ".py":
            return None
        changed = ".".join(path.parent.parts)
        if path.parts[0] == "tests" and path.suffix == ".py":
            changed += f".{path.stem}"
        while changed not in graph.modules:
            changed = changed.rpartition(".")[0]
        within = {each for each in graph.modules if f"{each}.".startswith(f"{changed}.")}
        found |= within.union(*map(graph.find_downstream_modules, within))
    return found


def _module(path: Path) -> str:
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts)
