"""kill -9 between any two steps of the commit, on a real file system."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from laredo_archive import failpoint
from tests.archive.killed_writer import look

SHARED_MEMORY = Path("/dev/shm")


def run(command: str, directory: Path, setting: str = "") -> subprocess.CompletedProcess[str]:
    directory.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "tests.archive.killed_writer", command, str(directory)],
        env={**os.environ, failpoint.VARIABLE: setting},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_between_any_two_steps() -> None:
    # A kill loses nothing that was written, so memory does, and its fsync takes no time.
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as fast:
        done = run("kill-everywhere", Path(fast) / "archive")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200, "points of the whole protocol"


def test_each_kind_of_point_is_passed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = run("write", tmp_path / "archive", f"trace:{trace}")
    assert done.returncode == 0, done.stderr
    assert set(trace.read_text().split()) >= {
        "claim.swap",
        "claim.swapped",
        "archive.open",
        "base.written",
        "base.uploaded",
        "diff.encoded",
        "upload.written",
        "upload.finished",
        "commit.placed",
        "commit.swap",
        "commit.swapped",
        "commit.done",
        "local.upload.synced",
        "local.upload.linked",
        "local.upload.durable",
        "local.upload.done",
        "local.swap.locked",
        "local.swap.written",
        "local.swap.synced",
        "local.swap.renamed",
        "local.swap.done",
        "garbage.listed",
        "garbage.marked",
        "garbage.deleted",
        "garbage.dropped",
    }


def test_a_point_is_named_by_the_environment(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    done = run("write", directory, "commit.swapped:3")
    assert done.returncode == -signal.SIGKILL
    look(directory, finished=False)
    assert run("write", directory).returncode == 0
    look(directory, finished=True)


def test_it_is_off_unless_asked_for() -> None:
    assert failpoint._action("") is None
    program = "from laredo_archive import failpoint; print(failpoint._reached)"
    environment = {k: v for k, v in os.environ.items() if k != failpoint.VARIABLE}
    shown = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert shown == "None\n"
