"""Sends several requests at the same time: a commit waits for the slowest, not for the sum."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from laredo_archive.errors import DestinationError

log = structlog.get_logger(__name__)

T = TypeVar("T")


class AtOnce(Protocol):
    """Runs tasks at the same time: in threads, or in order in a simulation."""

    def __call__(self, tasks: Sequence[Callable[[], T]], /) -> list[T]:
        """The tasks' results, in their order; the first failure in that order is raised.

        All have ended by then, those after one that failed too.
        """


def in_threads(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run each task in a thread; a single task needs none."""
    if len(tasks) < 2:
        return [task() for task in tasks]
    with ThreadPoolExecutor(len(tasks), thread_name_prefix="at-once") as threads:
        running = [threads.submit(task) for task in tasks]
    failures = [failure for done in running if (failure := done.exception()) is not None]
    for failure in failures[1:]:
        log.warning("parallel request failed", failure=str(failure))
    if failures:
        if isinstance(failures[0], DestinationError):
            failures[0].others = tuple(f for f in failures[1:] if isinstance(f, DestinationError))
        raise failures[0]
    return [done.result() for done in running]
