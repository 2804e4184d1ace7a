"""A Connect client in Go: connect-go and code generated from our proto/, built once a session."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import pytest

from tests.support.processes import PATIENCE_S, completed
from tests.support.repository import ROOT

SOURCE = ROOT / "tests/fanout/serving/connect/goclient"
PROTO = "laredo/replication/v1/replication.proto"
_PLUGINS = (
    "google.golang.org/protobuf/cmd/protoc-gen-go",
    "connectrpc.com/connect/cmd/protoc-gen-connect-go",
)


@pytest.fixture(scope="session")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; the Go modules that go.sum names are downloaded if they aren't there."""
    if shutil.which("go") is None:
        pytest.fail("go isn't in PATH: run tests/go.sh")
    folder = tmp_path_factory.mktemp("goclient")
    shutil.copytree(SOURCE, folder, dirs_exist_ok=True)
    _run(folder, "go", "build", "-mod=readonly", "-o", f"{folder}/bin/", *_PLUGINS)
    options = [
        option
        for plugin in ("go", "connect-go")
        for option in (
            f"--plugin=protoc-gen-{plugin}={folder}/bin/protoc-gen-{plugin}",
            f"--{plugin}_out={folder}",
            f"--{plugin}_opt=module=goclient",
            f"--{plugin}_opt=M{PROTO}=goclient/wire",
        )
    ]
    command = (sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *options, PROTO)
    _run(folder, *command)
    _run(folder, "go", "build", "-mod=readonly", "-o", f"{folder}/bin/goclient", ".")
    return folder / "bin/goclient"


def _run(folder: Path, *command: str) -> None:
    done = completed(command, cwd=folder, timeout=None)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


class GoCall:
    """One call that the program makes, or its Follow."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: Queue[str] = Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def line(self) -> dict[str, Any]:
        """The client's next line."""
        try:
            line = self._lines.get(timeout=PATIENCE_S)
        except Empty:
            raise AssertionError("the Go client says nothing") from None
        assert line, f"the Go client ended with {self._process.wait()}"
        return json.loads(line)

    def until(self, key: str) -> Any:
        """The client's next line of this kind."""
        while key not in (said := self.line()):
            pass
        return said[key]

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def state(self) -> dict[str, Any]:
        """A follower's state: its rows by id, and its counts."""
        self.tell("rows")
        while "rows" not in (said := self.line()):
            pass
        return {**said, "rows": {int(row["id"]): row for row in said["rows"]}}

    def state_when(self, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Its state, once that is as asked."""
        while not reached(state := self.state()):
            time.sleep(0.05)  # poll
        return state

    def all(self) -> list[dict[str, Any]]:
        """All that is left; the last says how the call ended."""
        found = [self.line()]
        while "code" not in found[-1]:
            found.append(self.line())
        return found


@contextmanager
def calling(
    program: Path, port: int, call: str, request: dict[str, Any], *options: str
) -> Iterator[GoCall]:
    """The call under way; ended with the block."""
    command = [str(program), "-url", f"http://127.0.0.1:{port}", *options, call]
    process = subprocess.Popen(
        [*command, json.dumps(request)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield GoCall(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def answer_of(
    program: Path, port: int, call: str, request: dict[str, Any], *options: str
) -> list[dict[str, Any]]:
    """All that the call says."""
    with calling(program, port, call, request, *options) as running:
        return running.all()
