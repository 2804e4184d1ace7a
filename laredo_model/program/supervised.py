"""Supervised tasks: they run as long as the program does, and an error that ends one is logged."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

Crashed: TypeAlias = Callable[[str, BaseException], None]
"""Called with the task's name and its error, which was logged."""


def supervised(
    work: Coroutine[Any, Any, None], what: str, crashed: Crashed, log: Any, event: str
) -> asyncio.Task[None]:
    """Run ``work`` in a task; an error that ends it is logged as ``event`` and given to
    ``crashed``."""
    task = asyncio.create_task(work, name=what)

    def ended(done: asyncio.Task[None]) -> None:
        why = None if done.cancelled() else done.exception()
        if why is not None:
            log.error(event, part=what, error=str(why), exc_info=why)
            crashed(what, why)

    task.add_done_callback(ended)
    return task
