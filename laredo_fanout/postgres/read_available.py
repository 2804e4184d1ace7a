"""A thread that empties the stream's socket while the ingest's thread waits for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_PAUSE_S = 0.001
"""A unix socket is full after about as long, and then the server's sender sleeps."""


class BackgroundReading:
    """A thread that calls ``read_available`` again and again, but only within :meth:`meanwhile`.

    Its caller must leave the stream alone there: a connection is used by one thread at a time.
    """

    def __init__(self, read_available: Callable[[], None]) -> None:
        self._read_available = read_available
        self._thread = ThreadPoolExecutor(1, "laredo-gulping")

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Let the thread read during the block; its error is raised at the block's end."""
        done = threading.Event()
        working = self._thread.submit(self._until, done)
        try:
            yield
        finally:
            done.set()
            # Also behind an error: closing the connection needs it alone.
            failed = working.exception()
        if failed is not None:
            raise failed

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _until(self, done: threading.Event) -> None:
        while not done.wait(_PAUSE_S):
            self._read_available()
