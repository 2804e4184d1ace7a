"""The two programs, as the console scripts that a user starts."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """One console script with a configuration of examples/snapshotter and its overrides."""

    def __init__(
        self, script: str, config: Path, settings: dict[str, object], log: Path, http_port: int
    ) -> None:
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self.name = script
        self.command: Sequence[str] = (str(BIN / script), "--config", str(config), *sets)
        self.log = log
        self._http = f"http://127.0.0.1:{http_port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.state = "not started"
        """State in words, as of the last start or end by the demo."""

    @property
    def pid(self) -> int | None:
        """None while it doesn't run."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Start it; its own output goes to its log."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # Installed without bytecode: each start would compile all that it imports anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is the demo's to handle: it ends the programs in order.
                start_new_session=True,
                env=environment,
            )
        self.state = f"pid {self._process.pid}"

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.state = "killed"

    def stop(self, timeout: float = 240) -> int | None:
        """SIGTERM; the exit code, None if it didn't run."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -9
        self.state = f"stopped, exit code {code}"
        return code

    def status(self) -> dict[str, Any] | None:
        """Content of /status; None while the program doesn't answer."""
        try:
            with urllib.request.urlopen(f"{self._http}/status", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
        except OSError:
            return None
        return found

    def is_ready(self) -> bool:
        """True if /health/ready reports that the program is ready."""
        try:
            with urllib.request.urlopen(f"{self._http}/health/ready", timeout=2):
                return True
        except OSError:
            return False
