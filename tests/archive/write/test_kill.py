"""kill -9 between any two steps of the commit, on a real file system and on S3."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from laredo_archive import failpoint
from tests.support import drawn
from tests.support.aws import AwsServer
from tests.support.processes import completed

ALL_POINTS = os.environ.get("LAREDO_TEST_ALL_POINTS") == "1"


def run(*arguments: str | Path, setting: str = "") -> subprocess.CompletedProcess[str]:
    return completed(
        [sys.executable, "-m", "tests.archive.write.killed_writer", *map(str, arguments)],
        env={**os.environ, failpoint.VARIABLE: setting},
        timeout=1500 if ALL_POINTS else 800,
    )


def local(directory: Path) -> list[str]:
    return [str(directory / "archive{}" / name) for name in ("one", "other")]


@pytest.mark.parametrize("every", drawn.first(1, [False, True]), ids=["of each name", "all"])
def test_between_any_two_steps(tmp_path: Path, every: bool) -> None:
    places = local(tmp_path)
    passed = trace(tmp_path, [place.replace("{}", "unkilled") for place in places])
    numbered = {name: number for number, name in enumerate(passed, 1)}
    points = list(range(1, len(passed) + 1)) if every else sorted(numbered.values())
    done = run("kill-at", ",".join(map(str, points)), tmp_path, *places)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == points[-1]
    assert len(passed) > 200, "points of the whole protocol"
    assert set(passed) >= OF_THE_PROTOCOL | OF_DIRECTORIES


_PROTOCOL = """
    claim.swap claim.swapped archive.open base.written base.uploaded diff.encoded
    upload.written upload.finished folders.copied folders.prepared commit.uploaded commit.swap
    commit.swapped commit.done merge.encoded parts.listed merge.done garbage.opened
    garbage.listed garbage.marked garbage.deleted garbage.dropped
"""
_DIRECTORIES = """
    local.upload.synced local.upload.linked local.upload.durable local.upload.done
    local.link.linked local.link.done local.swap.locked local.swap.written local.swap.synced
    local.swap.renamed local.swap.done
"""
_S3 = """
    s3.upload.part s3.upload.completing s3.upload.done s3.copy.part s3.swap.sent s3.swap.done
"""
OF_THE_PROTOCOL, OF_DIRECTORIES, OF_S3 = (set(n.split()) for n in (_PROTOCOL, _DIRECTORIES, _S3))


def trace(directory: Path, places: list[str]) -> list[str]:
    """The names of the points that a writer passes that nobody kills."""
    passed = directory / "trace"
    done = run("write", directory, *places, setting=f"trace:{passed}")
    assert done.returncode == 0, done.stderr
    return passed.read_text().split()


@pytest.mark.timeout(1600 if ALL_POINTS else 900)
@drawn.seeds(0, 1)
def test_at_points_of_each_name_on_s3(seed: int, tmp_path: Path, s3_server: AwsServer) -> None:
    places = on_s3(s3_server, tmp_path)
    names = trace(tmp_path, [place.replace("{}", "unkilled") for place in places])
    assert set(names) >= OF_THE_PROTOCOL | OF_DIRECTORIES | OF_S3
    points = list(range(1, len(names) + 1))
    if not ALL_POINTS:
        points = some_of_each_name(names, random.Random(seed))
    done = run("kill-at", ",".join(map(str, points)), tmp_path, *places)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == points[-1]


def some_of_each_name(names: list[str], chance: random.Random) -> list[int]:
    """First, last and middle occurrences of S3's own points, and random ones of the others.

    Those of directories have their own test.
    """
    points: set[int] = set()
    for name in OF_THE_PROTOCOL | OF_S3:
        passed = [number for number, known in enumerate(names, 1) if known == name]
        points.add(chance.choice(passed))
        if name in OF_S3:
            points |= {passed[0], passed[-1]}
    return sorted(points)


def on_s3(server: AwsServer, directory: Path) -> list[str]:
    bucket = server.new_bucket()
    return [f"s3://{bucket}/{{}}/here/?endpoint={server.endpoint}", str(directory / "other{}")]


def test_it_is_off_unless_asked_for() -> None:
    assert failpoint._action("") is None
    program = "from laredo_archive import failpoint; print(failpoint._reached)"
    environment = {k: v for k, v in os.environ.items() if k != failpoint.VARIABLE}
    shown = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert shown == "None\n"
