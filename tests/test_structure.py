"""The house stays as it is drawn: imports go one way, folders and files stay small."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import ROOT, files

PACKAGES = [
    "laredo_model",
    "laredo_service",
    "laredo_archive",
    "laredo_fanout",
    "laredo_snapshotter",
    "laredo_spark",
]
MOST_LINES = 650
MOST_FILES = 16
LEAST_WAIT_S = 60
EMPTY_FIRST_LINE = re.compile(r"(What|How|Where|When|Why|Who|Whose|Whether|The same|So)\b")
"""Beginning of a docstring that makes no sense to a reader of nothing else (docs/writing.md)."""
WAITS = {
    "join": 0,
    "result": 0,
    "settimeout": 0,
    "timeout": 0,
    "until": 1,
    "wait": 0,
    "wait_for": 1,
    "wait_until": 2,
}
"""Functions that wait for something, and the index of the argument with the time."""
HTTPX = {"get", "post", "put", "delete", "request", "stream", "Client", "AsyncClient"}
HTTPX_WAITS = {"timeout", "transport"}
"""One of these is given to httpx, which gives up after 5 s by itself."""
SHARED_CLASS_NAMES = {
    "Difference": "public in laredo_archive.reader and in the client: a change of one row",
}
"""Names of more than one class, and why."""


def sources(package: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / package).rglob("*.py"))
        if "_pb2" not in path.name and path.name != "__init__.py"
    ]


@cache
def parsed(path: Path) -> list[ast.AST]:
    """Nodes of a file, which several tests look through."""
    return list(ast.walk(ast.parse(path.read_text())))


def test_imports_go_downwards_and_never_in_circles() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_holds_one_idea(package: str) -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for path in [*sources(package), *(ROOT / package).rglob("*.[ch]")]
    }
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_folder_is_seen_at_a_glance(package: str) -> None:
    folders = [path.parent for path in sources(package)]
    many = {folder: folders.count(folder) for folder in folders}
    assert {folder: count for folder, count in many.items() if count > MOST_FILES} == {}


def imported(path: Path) -> Iterator[str]:
    """The modules of tests that a file imports, also inside its functions, or names as programs."""
    for node in parsed(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            is_module = (ROOT / node.module.replace(".", "/")).with_suffix(".py").exists()
            names = [node.module] if is_module else [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if re.fullmatch(r"tests(\.\w+)+", node.value) else []
        else:
            continue
        yield from (name for name in names if name.startswith("tests."))


def test_tests_share_what_is_in_support() -> None:
    """A test imports helpers of its own folder, and tests.support; never another test."""
    strangers = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        home = ".".join(path.relative_to(ROOT).parent.parts)
        for module in imported(path):
            folder, _, name = module.rpartition(".")
            is_helper = not name.startswith("test_") and name != "conftest"
            is_own = folder == home and (is_helper or name == path.stem)
            if not is_own and not module.startswith("tests.support."):
                strangers.append(f"{path.relative_to(ROOT)} imports {module}")
    assert strangers == []


def test_what_tests_share_is_small_too() -> None:
    for path in sorted((ROOT / "tests" / "support").rglob("*.py")):
        assert len(path.read_text().splitlines()) <= MOST_LINES, path


def patience(path: Path) -> Iterator[tuple[int, float]]:
    """Lines that wait for something, and for how long at most."""
    for call in parsed(path):
        if not isinstance(call, ast.Call):
            continue
        module, _, name = ast.unparse(call.func).rpartition(".")
        if module == "httpx" and name in HTTPX and not HTTPX_WAITS & {w.arg for w in call.keywords}:
            yield call.lineno, 5.0
        given = [word.value for word in call.keywords if word.arg == "timeout"]
        given += call.args[WAITS[name] : WAITS[name] + 1] if name in WAITS else []
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
                yield call.lineno, value.value


def test_a_slow_machine_is_no_failure() -> None:
    """Waits last up to a minute; those of less than a second show that nothing comes."""
    short = [
        f"{path.relative_to(ROOT)}:{line} waits {seconds} s"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, seconds in patience(path)
        if 1 <= seconds < LEAST_WAIT_S
    ]
    assert short == []


def test_a_class_name_means_one_thing() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in [*sources(package), *(ROOT / package).rglob("__init__.py")]:
            for node in parsed(path):
                if isinstance(node, ast.ClassDef):
                    defined[node.name].append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}")
    shared = {name: found for name, found in defined.items() if len(found) > 1}
    listed = set(SHARED_CLASS_NAMES)
    assert {name: found for name, found in shared.items() if name not in listed} == {}
    assert listed - set(shared) == set(), "each of these names one class now: drop it from the list"


def test_a_file_that_is_named_exists() -> None:
    """Comments and pages lead to files, which are merged and renamed."""
    known = files()
    named = re.compile(r"(?<![\w/.$-])(?:[a-z_0-9]+/)*_?[a-z0-9][a-z_0-9]*\.(?:py|c)(?![\w.])")
    gone = [
        f"{name}:{text[: found.start()].count(chr(10)) + 1}: {found[0]}"
        for name in known
        if name.endswith((".py", ".c", ".md"))
        and name.startswith(("laredo_", "docs/", "runbooks/"))
        for text in [(ROOT / name).read_text()]
        for found in named.finditer(text)
        if not any(f"/{each}".endswith(f"/{found[0]}") for each in known)
    ]
    elsewhere = ("heapam.c", "numeric.c", "follow.py", "_pb2.py", "sitecustomize.py")
    assert [each for each in gone if not each.endswith(elsewhere)] == []


def test_a_docstring_makes_sense_alone() -> None:
    empty = []
    for name in (name for name in files() if name.endswith(".py")):
        for node in parsed(ROOT / name):
            match node:
                case ast.Expr(ast.Constant(str(text))) if EMPTY_FIRST_LINE.match(text.lstrip()):
                    empty.append(f"{name}:{node.lineno}: {text.split(maxsplit=9)[:8]}")
    assert empty == [], "say what it is, or what it does: see docs/writing.md"
