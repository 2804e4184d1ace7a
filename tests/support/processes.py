"""The real console scripts as processes of a test: started, waited for, killed, stopped by pid."""

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tests.support.forked import SCRIPTS, Forked

BIN = Path(sys.executable).parent
PATIENCE_S = 240.0
"""For what is to come: enough for a machine that does much else. What comes late is no failure."""


# A client of httpx is 35 ms of work to make: far more than a question. No connection is kept, as
# the program that has accepted it may be killed meanwhile.
_CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))

_WORKERS = 8


def _ports() -> Iterator[int]:
    """Ports to try, none twice; other workers of the same run have others.

    They are below those that the system gives to connections: whoever is killed finds its own
    free again. One that was given to a test may be bound late, so that it looks free until then.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    mine = list(range(12_000 + worker % _WORKERS, 32_000, _WORKERS))
    random.SystemRandom().shuffle(mine)
    return itertools.cycle(mine)


_PORTS = _ports()


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on, and no other test was given."""
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> Any:
    """The first true value of ``condition``, which is asked again and again.

    :raises AssertionError: naming ``what``, if it isn't true in time.
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.02)  # poll
    return value


def eventually(figure: Callable[[], Any], wanted: object) -> None:
    """Wait until ``figure``, which is published from time to time, is what is ``wanted``."""
    deadline = time.monotonic() + PATIENCE_S
    while (shown := figure()) != wanted:
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {wanted}; it is {shown}"
        time.sleep(0.02)  # poll


async def until(condition: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
    """The first true value of ``condition``, waited for on an event loop."""
    async with asyncio.timeout(timeout):
        while not (value := condition()):
            await asyncio.sleep(0.01)  # poll
    return value


def run(
    script: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a console script to its end, as subprocess.run does."""
    command = [script, *map(str, arguments)]
    with TemporaryDirectory() as directory:
        output, errors = Path(directory, "stdout"), Path(directory, "stderr")
        process = Forked(script, command[1:], output, errors, environment)
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, output.read_text(), errors.read_text())


def completed(
    command: Sequence[object], *, timeout: float | None = PATIENCE_S, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run any program to its end, for its exit status and what it printed."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=timeout, **options
    )


class Program:
    """One console script with its configuration file, and its HTTP side."""

    def __init__(self, script: str, config: Path, http_port: int, *, log: Path) -> None:
        self.script = script
        self.config = config
        self.http = f"http://127.0.0.1:{http_port}"
        self.log = log
        self.environment: Mapping[str, str] = {}
        self.wrapper: tuple[str, ...] = ()
        """A command that is to exec the script: its own arguments, before the script's."""
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.script} was not started"
        return self._process.pid

    def start(self, *options: str) -> None:
        arguments = ["--config", str(self.config), *options]
        if self.script in SCRIPTS and not self.wrapper and not self.environment:
            self._process = Forked(self.script, arguments, self.log)
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.wrapper, str(BIN / self.script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    def get(self, path: str) -> httpx.Response | None:
        """The answer, or None while nobody answers."""
        try:
            return _CLIENT.get(self.http + path)
        except httpx.TransportError:
            return None

    @property
    def metrics(self) -> dict[str, float]:
        """Every sample, by its name with its labels."""
        answer = self.get("/metrics")
        assert answer is not None and answer.status_code == 200
        lines = [line for line in answer.text.splitlines() if line and line[0] != "#"]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def is_ready(self) -> bool:
        answer = self.get("/health/ready")
        return answer is not None and answer.status_code == 200

    def wait_ready(self, timeout: float = PATIENCE_S) -> None:
        def ready_or_dead() -> bool:
            assert self.is_running(), f"{self.script} ended:\n{self.tail()}"
            return self.is_ready()

        try:
            wait_until(ready_or_dead, f"{self.script} ready", timeout)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.tail()}") from None

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout: float = PATIENCE_S) -> int:
        """Ask it to end; its exit code."""
        return self._end(how, timeout)

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait until it ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def tail(self, characters: int = 4000) -> str:
        """The end of what it logged."""
        return self.log.read_text(errors="replace")[-characters:]

    def _end(self, how: signal.Signals, timeout: float = PATIENCE_S) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self.script} did not end:\n{self.tail()}") from None

    def __enter__(self) -> "Program":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_running():
            self.stop()
