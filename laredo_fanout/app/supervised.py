"""Supervised tasks: they run as long as the program does, and an error that ends one is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import structlog

Crashed: TypeAlias = Callable[[str, BaseException], None]
"""Called with the task's name and its error, which was logged."""

log = structlog.get_logger("laredo_fanout")


def only_logged(what: str, why: BaseException) -> None:
    """Do nothing more: the program goes on without the task."""


def supervised(
    work: Coroutine[Any, Any, None], what: str, crashed: Crashed = only_logged
) -> asyncio.Task[None]:
    """Run ``work`` in a task; an error that ends it is logged and given to ``crashed``."""
    task = asyncio.create_task(work, name=what)

    def ended(done: asyncio.Task[None]) -> None:
        why = None if done.cancelled() else done.exception()
        if why is not None:
            log.error("a part of the server crashed", part=what, error=str(why), exc_info=why)
            crashed(what, why)

    task.add_done_callback(ended)
    return task
