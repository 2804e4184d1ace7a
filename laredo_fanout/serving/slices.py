"""Time of a serving process: slices of CPU time, and threads for reads that may hang.

The interpreter's end waits for the standard library's pools, so an object store that doesn't answer
would delay a server's restart for minutes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

# Slices of CPU time: a client's costly request yields to other work every few ms.
#
# One event loop serves all sessions of a process. Work that grows with a request, a record or a
# table is a generator that yields after each slice of it, whether or not there is anything to send
# yet; a slice is measured in rows and bytes, never in time, so that a slow machine only makes all
# of it slower.

T = TypeVar("T")

Sliced: TypeAlias = Generator[None, None, T]
"""A generator of work: it yields after each slice, and returns the result."""

SLICE_ROWS = 200
"""The rows, changes or values of a request in a slice: about 2 ms of Python."""
SLICE_BYTES = 64 << 10
"""The bytes of lines in a slice."""


async def run(work: Sliced[T]) -> T:
    """Do the work, with a turn of every other task between two slices."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)


class Slice:
    """The clock of one slice, which measures rows and bytes."""

    __slots__ = ("_bytes", "_rows")

    def __init__(self) -> None:
        self._rows = self._bytes = 0

    def done_with(self, size: int, rows: int = 1) -> bool:
        """Count what was read; returns True if that was a slice, and begins the next one."""
        self._rows += rows
        self._bytes += size
        if self._rows < SLICE_ROWS and self._bytes < SLICE_BYTES:
            return False
        self._rows = self._bytes = 0
        return True


P = ParamSpec("P")


def mount_of(path: Path) -> str:
    """The mount that a path is on. Nothing is asked of the mount, which may hang.

    https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
    """
    text = f"{os.path.abspath(path)}/"  # noqa: PTH100  # resolve() would ask the mount
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    points = (line.split(" ", 5)[4] for line in mounts.splitlines())
    return max((point for point in points if text.startswith(f"{point.rstrip('/')}/")), key=len)


class DaemonThreads(Executor):
    """At most `limit` threads, each started when the others are busy."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], object]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it in one of the threads.

        :raises RuntimeError: after `shutdown`, or if the system starts no more threads.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} are shut down")
            if self._waiting >= 0 and self._threads < self._limit:
                name = f"{self._name}-{self._threads + 1}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._threads += 1
            self._waiting += 1
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; what runs is left to itself."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            future, call = work
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as failure:  # noqa: BLE001  # it is the future's
                future.set_exception(failure)
            # Freed before the wait for the next.
            del future, call, work

    def _next(self) -> tuple[Future[Any], Callable[[], object]] | None:
        with self._lock:
            self._waiting -= 1
        return self._work.get()
