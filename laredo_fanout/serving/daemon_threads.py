"""A pool of daemon threads for reads that may hang: the process exits without waiting.

The standard library's pool is waited for at the interpreter's end, and an object store
that doesn't answer would hold a server's restart for minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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

        :raises RuntimeError: after `shutdown`.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the threads {self._name!r} are shut down")
            self._waiting += 1
            if self._waiting > 0 and self._threads < self._limit:
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
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
            # Nothing of it is held while waiting for the next.
            del future, call, work

    def _next(self) -> tuple[Future[Any], Callable[[], object]] | None:
        with self._lock:
            self._waiting -= 1
        return self._work.get()
