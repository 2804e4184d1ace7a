"""Batches of several key ranges, read by some threads at a time, in bounded memory."""

from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

import pyarrow as pa

Part = TypeVar("Part")
Numbered = tuple[int, pa.RecordBatch]
"""A batch, and the number of its range."""

_LOOK_AROUND_S = 0.2
"""Seconds until a thread that waits for a consumer sees that there is none any more."""


def in_parallel(
    parts: Sequence[Part], read: Callable[[Part], Iterator[pa.RecordBatch]], threads: int
) -> Iterator[Numbered]:
    """Batches of all ``parts`` as they come; those of one part in their order.

    Raises what ``read`` raises, in whichever thread.
    """
    if min(threads, len(parts)) <= 1:
        for number, part in enumerate(parts):
            for batch in read(part):
                yield number, batch
        return
    pool = _RangePool(parts, read, min(threads, len(parts)))
    try:
        yield from pool.batches()
    finally:
        pool.stop()


class _RangePool:
    def __init__(
        self, parts: Sequence[Part], read: Callable[[Part], Iterator[pa.RecordBatch]], threads: int
    ) -> None:
        self._todo: SimpleQueue[tuple[int, Part]] = SimpleQueue()
        for numbered in enumerate(parts):
            self._todo.put(numbered)
        self._read = read
        # One batch waits for a slow consumer, and one in each thread.
        self._made: Queue[Numbered | BaseException | None] = Queue(1)
        self._stopped = Event()
        self._threads = [
            Thread(target=self._work, name="key-range", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def batches(self) -> Iterator[Numbered]:
        """Batches until all threads have ended."""
        working = len(self._threads)
        while working:
            found = self._made.get()
            if found is None:
                working -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found

    def stop(self) -> None:
        """End the threads, whatever they are at."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    number, part = self._todo.get_nowait()
                except Empty:
                    self._put(None)
                    return
                for batch in self._read(part):
                    if not self._put((number, batch)):
                        return
        except BaseException as failure:  # noqa: BLE001  # raised again in the consumer's thread
            self._put(failure)

    def _put(self, made: Numbered | BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._made.put(made, timeout=_LOOK_AROUND_S)
            except Full:
                continue
            return True
        return False
