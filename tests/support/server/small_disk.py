"""Small disks: a tmpfs in a user and mount namespace, seen by one program alone."""

import sys
from pathlib import Path

import pytest

from tests.support.processes import BIN, Program, completed
from tests.support.server.fanout_program import Fanout


def may_mount() -> None:
    """Skip the test where nobody may mount a tmpfs of one's own."""
    tried = completed(["unshare", "-Urm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"])
    if tried.returncode:
        pytest.skip(f"NO DISK WAS FILLED: unshare -Urm is forbidden here ({tried.stderr})")


def run_on_a_tmpfs(place: Path, size: str, module: str, *arguments: str) -> None:
    """Run a module with these arguments and ``place``, which is a disk of this size then."""
    may_mount()
    command = " ".join([sys.executable, "-m", module, *arguments, str(place)])
    mounted = f"mount -t tmpfs -o size={size} none {place} && exec {command}"
    run = completed(["unshare", "-Urm", "sh", "-c", mounted])
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"


def on_a_tmpfs(server: Fanout, place: Path, options: str, then: str = "true") -> Fanout:
    """The server with a tmpfs at ``place``, where ``then`` is run before it starts.

    Inside the namespace the test's own user is root, and nobody else exists: PostgreSQL's socket
    must be everybody's.
    """
    may_mount()
    place.mkdir()
    script = server.directory / "fanout-on-tmpfs"
    script.write_text(
        "#!/bin/sh\n"
        f"exec unshare -Urm sh -c 'mount -t tmpfs -o {options} none {place} && {then} &&"
        f' exec {BIN}/laredo-fanout "$@"\' sh "$@"\n'
    )
    script.chmod(0o755)
    old = server.program
    program = Program(str(script), old.config, int(old.http.rpartition(":")[2]), log=old.log)
    return Fanout(program, server.grpc_port, server.directory)
