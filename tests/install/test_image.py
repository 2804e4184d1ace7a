"""The image's parts, tried without a builder: its lock, its context, its health check."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from laredo_service.http.probe import main as probe
from tests.install.bare import ROOT, Bare, source, wheel
from tests.support.processes import BIN, completed, free_port, wait_until
from tests.support.writer.served import Served, rows
from tests.support.writer.writing import Writer

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instructions(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [
        line.partition(" ")[2].strip()
        for line in joined.splitlines()
        if line.startswith(f"{name} ")
    ]


def test_bases_are_pinned_and_the_user_is_a_number() -> None:
    assert {re.split(r" AS ", each)[0] for each in instructions("FROM")} == {
        "python:3.11.14-slim-bookworm"
    }
    assert all(user.isdecimal() and int(user) > 0 for user in instructions("USER"))
    assert instructions("HEALTHCHECK")


def test_the_linter_finds_nothing() -> None:
    done = completed([BIN / "hadolint", "Dockerfile"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_copied_is_there_and_not_ignored() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {
        path
        for each in instructions("COPY")
        if not each.startswith("--from")
        for path in shlex.split(each)[:-1]
    }
    assert copied == allowed
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.thorough
def test_the_lock_has_all_that_the_image_needs(tmp_path: Path) -> None:
    """Installed as the image does it: by hash, then the programs, verified."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [
        each for extra in ("aws", "parquet") for each in project["optional-dependencies"][extra]
    ]
    lock = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    names = {re.split(r"[\[<>=]", each)[0] for each in wanted}
    assert names <= locked, "make lock"
    image = Bare(tmp_path)
    image.pip("install", "--require-hashes", "-r", ROOT / "requirements.lock")
    tree = source(tmp_path / "tree")
    file = tree / "pyproject.toml"
    text = re.sub(r"^laredo-spark = .*\n", "", file.read_text(), flags=re.MULTILINE)
    file.write_text(text)
    made, _ = wheel(tree, tmp_path / "wheel")
    image.install(made)
    image.run("python", "-m", "laredo_fanout.app.compiled", check=True)
    image.pip("check")
    image.run("python", "-c", "import boto3, pyarrow", check=True)
    scripts = sorted(path.name for path in image.bin.glob("laredo-*"))
    assert scripts == ["laredo-archive", "laredo-fanout", "laredo-snapshotter"]


def test_the_health_check_is_the_programs_own_answer(tmp_path: Path) -> None:
    with Served(tmp_path / "state") as served:
        served.add("users", rows(0, 1))
        with Writer(tmp_path, served) as writer:
            port = writer.program.http.rpartition(":")[2]
            wait_until(lambda: probe([str(free_port()), port]) == 0, "serving")
    assert probe([port]) == 1
    done = subprocess.run(
        [sys.executable, "-m", "laredo_service.http.probe", port], cwd=ROOT, check=False
    )
    assert done.returncode == 1
