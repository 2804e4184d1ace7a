"""Running the programs: start, wait, stop, and how much memory they take."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

SCRIPTS = Path(sys.executable).parent


class Program:
    """One process of ours; its output goes to ``log``."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self.command = list(command)
        with log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def check(self) -> None:
        """:raises RuntimeError: if it has ended; the message has the end of its log."""
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(
                f"{self.command[0]} ended with {self.process.returncode}; its log ends:\n{tail}"
            )

    def go_on(self) -> None:
        """Let it run again after it was stopped (SIGSTOP)."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        """Stop it and its children."""
        if self.process.poll() is None:
            children = psutil.Process(self.pid).children(recursive=True)
            self.process.send_signal(how)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            psutil.wait_procs(children, timeout=timeout)


def wait_until(
    condition: Callable[[], Any], *, timeout: float, what: str, pause: float = 0.02
) -> Any:
    """Wait until ``condition`` returns something true, and return that.

    :raises TimeoutError: naming ``what``.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} didn't happen within {timeout:g} s")
        time.sleep(pause)


def get_json(url: str) -> dict[str, Any] | None:
    """The JSON there; None while nobody answers."""
    try:
        answer = httpx.get(url, timeout=5, trust_env=False)
    except httpx.TransportError:
        return None
    found: dict[str, Any] = answer.json()
    return found


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class AnonymousMemory:
    """Watches the anonymous resident memory of processes, in bytes, by what they are.

    From /proc/PID/status: the mapped store isn't in it, it is the kernel's cache. (smaps_rollup
    walks all of the map to say the same, and the process stands still meanwhile.)
    """

    def __init__(self, every: float = 0.2) -> None:
        self.peaks: dict[str, int] = {}
        self._watched: dict[int, str] = {}
        self._every = every
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def watch(self, pid: int, what: str) -> None:
        """Watch a process and its children (as ``what``'s) until they end."""
        with self._lock:
            self._watched[pid] = what

    def stop(self) -> None:
        """End watching."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self._every):
            with self._lock:
                watched = list(self._watched.items())
            for pid, what in watched:
                self._note(pid, what)
                for child in _children(pid):
                    self._note(child, what.replace("ingest", "serving"))

    def _note(self, pid: int, what: str) -> None:
        size = anonymous_bytes(pid)
        if size is None:
            with self._lock:
                self._watched.pop(pid, None)
        else:
            self.peaks[what] = max(self.peaks.get(what, 0), size)


def anonymous_bytes(pid: int) -> int | None:
    """Anonymous resident memory now; None if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # A process that has ended and wasn't waited for has none.
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), None)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all below it, of those that have ended too."""
    process = psutil.Process(pid)
    found = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            times = each.cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


def _children(pid: int) -> list[int]:
    try:
        found = psutil.Process(pid).children(recursive=True)
        return [child.pid for child in found if "resource_tracker" not in " ".join(child.cmdline())]
    except psutil.Error:
        return []
