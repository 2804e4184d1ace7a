"""Anonymous memory of a Spark on this machine: its JVM, and the Python workers below."""

import os
import threading
from types import TracebackType
from typing import Self

import psutil

from benchmarks.processes import anonymous_bytes

_EVERY_S = 0.1


class SparkMemory:
    """Watches this process's children while it is entered. Bytes.

    ``jvm``: the most of the driver's JVM, in which local tasks run too; ``workers``: of all Python
    workers at once; ``worker``: of the largest one; ``tree``: of all, the driver too.
    """

    def __init__(self) -> None:
        self.jvm = self.workers = self.worker = self.tree = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_EVERY_S):
            jvm, workers = _now()
            self.jvm = max(self.jvm, jvm)
            self.workers = max(self.workers, sum(workers))
            self.worker = max(self.worker, *workers, 0)
            own = anonymous_bytes(os.getpid()) or 0
            self.tree = max(self.tree, own + jvm + sum(workers))


def _now() -> tuple[int, list[int]]:
    jvm, workers = 0, []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            name = process.name()
        except psutil.Error:
            continue
        size = anonymous_bytes(process.pid) or 0
        if name == "java":
            jvm += size
        elif name.startswith("python"):
            workers.append(size)
    return jvm, workers
