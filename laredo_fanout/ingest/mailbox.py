"""The ingest loop's mailbox: what other threads leave for it, with a pipe that wakes it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue for the loop; ``fileno`` becomes readable when something is in it."""

    def __init__(self) -> None:
        self._things: deque[T] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self._closed = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """File descriptor that becomes readable when something was put in."""
        return self._read

    def put(self, thing: T) -> bool:
        """Leave ``thing``; from any thread. False: nobody will take it any more."""
        with self._lock:
            if self._ended:
                return False
            self._things.append(thing)
        self.notify()
        return True

    def notify(self) -> None:
        """Wake the loop."""
        with self._lock:
            if self._closed:
                return
            # When so many wake-ups lie there that it blocks, one more says nothing.
            with suppress(BlockingIOError):
                os.write(self._write, b"\0")

    def take(self) -> Iterator[T]:
        """Take everything that was put in since the last call, one by one.

        If the caller fails on one, the rest stays for the next call.
        """
        with suppress(BlockingIOError):
            os.read(self._read, 65536)
        for _ in range(len(self._things)):
            yield self._things.popleft()

    def take_last(self) -> Iterator[T]:
        """Close the mailbox, and take what is left in it."""
        with self._lock:
            self._ended = True
        return self.take()

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._closed = True
            os.close(self._read)
            os.close(self._write)
